"""Questions with options, and questions about a context: read, batched, merged, proven, scored."""

import json

import msgspec
import numpy as np
import pytest

from polyhead.bundle.create import write_bundle
from polyhead.bundle.live_versions import Probe
from polyhead.bundle.manifest import TaskRecord
from polyhead.bundle.read import Bundle
from polyhead.certify import ProbeRunner, certified
from polyhead.engine.backends.reference import ReferenceBackend
from polyhead.engine.inputs import Passage, input_of
from polyhead.engine.probes import probe_outputs
from polyhead.engine.session import Session
from polyhead.errors import BadValue, IsolationError
from polyhead.plan import Layers, Pool, cost
from polyhead.plan import Path as TaskPath
from polyhead.project.tables import Project, TaskEntry
from polyhead.tasks.task import Task
from polyhead.testing import tiny_part, tiny_path, tiny_tasks, tiny_trunk
from polyhead.text.question import Question
from polyhead.text.tokenize import Tokenizer
from support.split_scores import split_scores

TRUNK = tiny_trunk()
BY_NAME = {task.name: task for task in tiny_tasks()}
IMPORTED = msgspec.structs.replace(BY_NAME["who"], ends="last")  # as span heads of others read words
POOL = Pool(layers="mean", of=2, positions="attention", part="task:x", heads=2)
CHOICE = Question(text="is the lamp good?", options=("not good", "good", "the kettle is late"))
ABOUT = Question(text="when was it late?", options=("today", "monday"), context="my order was late on monday.")
PASSAGES = (
    ("who is happy?", "anna was sad today. ben is happy and not late."),
    ("what is broken?", "the lamp."),
    ("where?", "my order 12 is in the box, please refund the bill " * 2),
)
LONG = "the kettle was late and my phone bill is not good . " * 4  # 44 words
TOO_LONG = f"{LONG} anna was broken today"


def add(root, task, *, path=None, seed=0, probes=(), replace=False):
    path = path or tiny_path(task, TRUNK, pool=POOL)
    record = TaskRecord(task=task, path=path, trunk=TRUNK.digest)
    arrays = tiny_part(path, TRUNK.architecture, f"task:{task.name}", seed=seed)
    Bundle.open(root).add_task(record, arrays, scores={}, probes=list(probes), card="", replace=replace)


def make(root, *tasks, path=lambda task: None):
    write_bundle(root, TRUNK)
    for seed, task in enumerate(tasks):
        add(root, task, seed=seed, path=path(task))
    return root


def branch(task):
    """A path with a layer of the task's own above the first."""
    embed, _, pool, head = tiny_path(task, TRUNK, pool=Pool()).nodes
    return TaskPath(nodes=(embed, Layers(start=0, stop=1), Layers(start=1, stop=2, weights=head.part), pool, head))


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return make(tmp_path_factory.mktemp("questions") / "bundle", *BY_NAME.values())


@pytest.fixture(scope="module")
def fixed(root):
    return Session(root, deterministic=True)


def asked_of(name):
    return [CHOICE, ABOUT] if name == "reply" else list(PASSAGES)


def assert_near(one, other, tolerance=1e-4):
    """Equal up to the tolerance in every number."""
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert set(one) == set(other)
        for key in one:
            assert_near(one[key], other[key], tolerance)
    elif isinstance(one, list):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_near(a, b, tolerance)
    elif isinstance(one, float):
        assert one == pytest.approx(other, abs=tolerance)
    else:
        assert one == other


@pytest.mark.parametrize("path", [lambda task: None, branch], ids=["pooled", "branch"])
def test_torch_and_reference_answer_both_kinds_alike(tmp_path, path):
    tasks = [BY_NAME[name] for name in ("reply", "where", "who", "same")]
    root = make(tmp_path / "b", *tasks, path=path)
    inputs = [CHOICE, ABOUT, *(Passage(question=q, context=c) for q, c in PASSAGES), *PASSAGES]
    torch, reference = (Session(root, backend=name).predict(inputs) for name in ("torch", "reference"))
    for one, other in zip(torch, reference, strict=True):
        assert_near(one.answers, other.answers)
        assert (one.receipt, one.skipped) == (other.receipt, other.skipped)
    assert [set(result.answers) for result in torch] == [
        *[{"reply"}] * 2,
        *[{"where", "who"}] * 3,
        *[{"where", "who", "same"}] * 3,
    ]


def test_a_question_is_answered_with_its_options_and_a_passage_with_words_of_its_context(fixed):
    choice, passage = fixed.predict([CHOICE, Passage(question=PASSAGES[0][0], context=PASSAGES[0][1])])
    reply, where, who = choice.answers["reply"], passage.answers["where"], passage.answers["who"]
    assert CHOICE.options[reply["index"]] == reply["option"]
    assert sorted(reply["ranked"], key=lambda i: -reply["scores"][i]) == reply["ranked"]
    assert sum(reply["scores"]) == pytest.approx(1.0)
    assert PASSAGES[0][1][where["start"] : where["end"]] == where["text"] != ""
    assert who["text"] is None or PASSAGES[0][1][who["start"] : who["end"]] == who["text"]
    assert set(choice.answers) == {"reply"} and set(passage.answers) == {"where", "who"}


def test_an_option_is_read_as_a_pair_of_its_own(root):
    """Against a single-output head with the same arrays that reads each pair alone."""
    alone = Task(name="alone", kind="regression", range=(0.0, 1.0), pair="joined")
    path = tiny_path(alone, TRUNK, pool=POOL)
    session = Session(root, precision="float32")
    arrays = session.bundle.part("reply")
    bundle = write_bundle(root.parent / "alone", TRUNK)
    record = TaskRecord(task=alone, path=path, trunk=TRUNK.digest)
    bundle.add_task(record, arrays, scores={}, probes=[], card="")
    for question in (CHOICE, ABOUT):
        wanted = np.concatenate(Session(bundle.root, precision="float32").outputs("alone", question.pairs))
        (found,) = session.outputs("reply", [question])
        assert found.shape == (len(question.options),)
        np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_receipt_counts_a_pass_for_each_option(fixed):
    receipt = fixed.predict([CHOICE])[0].receipt
    lengths = [len(encoded.ids) for encoded in fixed.tokenizer.encode(CHOICE.pairs)]
    assert receipt.passes == 3 and receipt.windows == 1 and receipt.layers == 6
    assert receipt.tokens == sum(lengths)
    plan = fixed.plan(["reply"])
    each = [cost.added(plan, "reply", fixed.shape, tokens, folded=True).flops for tokens in lengths]
    assert receipt.added_flops == {"reply": sum(each)}
    strange = Question(text="\ud800?", options=("a", "b\ud800"))
    assert fixed.predict([strange])[0].receipt.repaired == 2


def test_inputs_that_do_not_fit_say_what_the_task_reads(fixed):
    pair, question, passage, text = fixed.predict([PASSAGES[1], CHOICE, Passage(question="a", context="b"), "a"])
    assert pair.skipped["reply"] == "this task reads a question with options, a pair was given"
    assert question.skipped["mood"] == "this task reads one text, a question with options was given"
    assert question.skipped["who"] == "this task reads a question and its context, a question with options was given"
    assert passage.skipped["same"] == "this task reads a pair of texts, a question about a context was given"
    assert text.skipped["who"] == "this task reads a question and its context, one text was given"
    blank = [Passage(question=" ", context="b"), Question(text="a", options=("b", " "))]
    for result in fixed.predict(blank):
        assert not result.answers and set(result.skipped.values()) == {"the text is empty"}
    with pytest.raises(BadValue, match="'reply' has no output for input 1.*a pair was given"):
        fixed.outputs("reply", [CHOICE, PASSAGES[0]])


@pytest.mark.parametrize("name", ["reply", "where", "who"])
def test_deterministic_bits_do_not_depend_on_batch_mates(fixed, name):
    inputs = asked_of(name)
    if name == "reply":
        inputs += [Question(text=f"{word} {CHOICE.text}", options=CHOICE.options[:2]) for word in "abcdefghi"]
    else:
        inputs += [(f"{word} {q}", f"{c} {word}") for word in "abcdef" for q, c in PASSAGES]
    whole = [o.tobytes() for o in fixed.outputs(name, inputs)]
    assert [o.tobytes() for o in fixed.outputs(name, inputs[::-1])][::-1] == whole
    assert [fixed.outputs(name, [one])[0].tobytes() for one in inputs] == whole
    predicted = [result.answers[name] for result in fixed.predict(inputs)]
    assert predicted == [fixed.predict([one], tasks=[name])[0].answers[name] for one in inputs]


@pytest.mark.parametrize("layers", ["last", "learned"])
def test_bits_of_a_span_do_not_depend_on_how_many_words_a_mate_has(tmp_path, layers):
    """Twenty mates of one-letter words, and a context whose tokens are as many but whose words are few."""
    part = "task:where" if layers == "learned" else None
    path = tiny_path(BY_NAME["where"], TRUNK, pool=Pool(layers=layers, part=part))
    session = Session(make(tmp_path / "b", BY_NAME["where"], path=lambda task: path), deterministic=True)
    few, many = ("good?", "abcdefghijklmnop qrst"), ("good?", "a b c d e f g h i j k l m n o p q r s t")
    lengths = {len(encoded.ids) for encoded in session.tokenizer.encode([few, many])}
    assert len(lengths) == 1, lengths
    (alone,) = session.outputs("where", [few])
    for mates in ([many], [many] * 20):
        assert session.outputs("where", [few, *mates])[0].tobytes() == alone.tobytes()


def test_tasks_answered_together_have_the_bits_that_each_has_alone(fixed):
    asked = {name: [Probe.of(one) for one in asked_of(name)] for name in ("reply", "where", "who")}
    asked |= {"same": [Probe.of(pair) for pair in PASSAGES], "mood": [Probe.of((c,)) for _, c in PASSAGES]}
    found = probe_outputs(fixed, asked)
    for name, some in asked.items():
        alone = fixed.outputs(name, [one.input for one in some])
        assert [o.tobytes() for o in found[name]] == [o.tobytes() for o in alone], name


# Windows: a fake backend whose span head knows a word by its token.


class Pointing:
    """A word whose token is `wanted` begins and ends the answer, the first token says "none"."""

    name, precision, tolerance, packs, breadth, layers_run = "pointing", "float32", 0.0, False, 1, 0

    def __init__(self, wanted, null):
        self.wanted, self.null = wanted, null

    def run(self, plan, batch):
        ids = np.take_along_axis(batch.ids, np.maximum(batch.words, 0), axis=1)
        logits = np.where(batch.words == 0, self.null, np.where(ids == self.wanted, 3.0, 0.0))
        return dict.fromkeys(plan.tasks, np.repeat(np.float32(logits)[..., None], 2, axis=-1))

    def compared(self, task, first, second):
        raise AssertionError("no task here is over pairs read separately")


def pointing(tmp_path, word, *, null=0.0, **changes):
    task = msgspec.structs.replace(BY_NAME["who"], **changes)
    wanted = int(Tokenizer(TRUNK.tokenizer, TRUNK.settings).encode([(word,)])[0].ids[1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("polyhead.engine.session.open_backend", lambda *_, **__: Pointing(wanted, null))
        return Session(make(tmp_path / "b", task), deterministic=True)


def test_windows_find_an_answer_at_the_end_of_a_long_context(tmp_path):
    session = pointing(tmp_path, "anna", long_texts="windows")
    (result,) = session.predict([Passage(question="who was broken?", context=TOO_LONG)])
    start = TOO_LONG.index("anna")
    answer = result.answers["who"]
    assert (answer["text"], answer["start"], answer["end"]) == ("anna", start, start + 4)
    assert result.receipt.windows == result.receipt.passes > 1 and result.receipt.cut == 0
    (outputs,) = session.outputs("who", [("who was broken?", TOO_LONG)])
    assert len(outputs) == 1 + len(TOO_LONG.split())
    assert np.isnan(outputs[1]).all() and not np.isnan(outputs[[0, -1]]).any()


def test_a_context_that_is_cut_has_no_answer_beyond_the_cut(tmp_path):
    session = pointing(tmp_path, "anna", null=1.0)
    (result,) = session.predict([Passage(question="who was broken?", context=TOO_LONG)])
    assert result.answers["who"]["text"] is None
    assert result.receipt.cut > 0 and result.receipt.windows == 1
    (outputs,) = session.outputs("who", [("who was broken?", TOO_LONG)])
    assert len(outputs) == 1 + len(TOO_LONG.split()) and np.isnan(outputs[-1]).all()


def test_no_answer_in_any_window_is_no_answer(tmp_path):
    session = pointing(tmp_path, "monday", null=1.0, long_texts="windows")
    (result,) = session.predict([Passage(question="who was broken?", context=TOO_LONG)])
    assert result.answers["who"]["text"] is None
    assert set(result.answers["who"]) == {"text", "start", "end", "score"}


@pytest.mark.parametrize("task", [BY_NAME["where"], IMPORTED], ids=["first tokens", "last tokens"])
def test_cut_counts_each_unread_token_of_a_pair_once(tmp_path, task):
    """A task that cuts beside one that reads windows: what stands in every window, the question, was read."""
    windowed = msgspec.structs.replace(task, long_texts="windows")
    session = Session(make(tmp_path / "b", windowed, BY_NAME["same"]))
    pair = ("who was broken?", TOO_LONG)
    both, cut = session.predict([pair])[0].receipt, session.predict([pair], tasks=["same"])[0].receipt
    assert both.cut == cut.cut > 0
    assert (both.windows, cut.windows) == (both.passes, 1)


def test_a_pair_is_read_again_only_for_words_read_at_their_first_token_beside_the_last(tmp_path):
    """Of the tasks only `where` and `who` read words otherwise; what is not read is counted once all the same."""
    session = Session(make(tmp_path / "b", IMPORTED, BY_NAME["same"], BY_NAME["where"]), deterministic=True)
    pairs = [*PASSAGES, ("who was broken?", TOO_LONG)]
    alone = {name: session.predict(pairs, tasks=[name]) for name in session.tasks}
    for names, passes in ((["same", "who"], 1), (["same", "where"], 1), (["where", "who"], 2), (list(alone), 2)):
        for row, result in enumerate(session.predict(pairs, tasks=names)):
            assert result.answers == {name: alone[name][row].answers[name] for name in names}
            receipt, single = result.receipt, alone["same"][row].receipt
            assert (receipt.passes, receipt.tokens, receipt.cut) == (passes, passes * single.tokens, single.cut)
    assert single.cut > 0


def test_a_long_text_keeps_no_features_of_words_that_a_window_does_not_hold(tmp_path, monkeypatch):
    """Of a text with thousands of words, each window's batch has only its own."""
    task = msgspec.structs.replace(BY_NAME["names"], long_texts="windows")
    session = Session(
        make(tmp_path / "b", task, msgspec.structs.replace(BY_NAME["who"], long_texts="windows")), backend="reference"
    )
    widths = []
    inner = ReferenceBackend.run

    def run(self, plan, batch):
        widths.append(batch.words.shape[1])
        return inner(self, plan, batch)

    monkeypatch.setattr(ReferenceBackend, "run", run)
    text = "the lamp is late " * 500
    spans = session.predict([text])[0].answers["names"]["spans"]
    answer = session.predict([("what is late?", text)])[0].answers["who"]
    assert max(widths) <= session.tokenizer.max_tokens
    assert all(text[span["start"] : span["end"]] == span["text"] for span in spans)
    assert answer["text"] is None or text[answer["start"] : answer["end"]] == answer["text"]


# Probes and certificates.


def probes_of(name):
    return [Probe.of(one).line() for one in asked_of(name)]


@pytest.mark.parametrize("given", [("a",), ("a", "b"), CHOICE, ABOUT], ids=["text", "pair", "options", "context"])
def test_a_probe_is_its_line_and_back(given):
    words = np.array([[-1, -1], [0, 1]], np.int32)
    for probe in (Probe.of(given), Probe.of(given, words)):
        line = json.loads(json.dumps(probe.line()))
        assert msgspec.convert(line, Probe) == probe and probe.input == given
    assert Probe.of(given).line().keys() == {"text", *(["options"] if isinstance(given, Question) else [])}


def test_probes_of_other_tasks_and_of_the_first_form_are_told_apart():
    old = msgspec.convert({"text": ["a", "b"], "answer": 1}, Probe)
    assert old.input == ("a", "b") and old.words is None
    fit = {name: old.fits(task) for name, task in BY_NAME.items()}
    assert [name for name, fits in fit.items() if fits] == ["same", "alike", "where", "who"]
    asked = Probe.of(CHOICE)
    assert [name for name, task in BY_NAME.items() if asked.fits(task)] == ["reply"]
    for options in ((), ("a",), ("a", " ")):
        assert not Probe(text=("q",), options=options).fits(BY_NAME["reply"])


def test_adding_and_replacing_a_multiple_choice_task_changes_no_bit_of_the_others(tmp_path):
    root = write_bundle(tmp_path / "b", TRUNK).root
    for seed, name in enumerate(("where", "who", "same")):
        add(root, BY_NAME[name], seed=seed, probes=probes_of(name))
    for replace in (False, True):
        certificate = certified(
            root,
            "add",
            lambda replace=replace: add(
                root, BY_NAME["reply"], seed=7 + replace, probes=probes_of("reply"), replace=replace
            ),
            changing=["reply"],
        )
        assert certificate.unchanged
        assert certificate.before == {n: a for n, a in certificate.after.items() if n != "reply"}
        assert {name: found.probes for name, found in certificate.after.items()} == {
            **dict.fromkeys(("where", "who", "same"), len(PASSAGES)),
            "reply": 2,
        }
    assert certificate.answers_asked == {"reply": 2}
    for change in certificate.answers_changed.get("reply", ()):
        assert change.before["option"] != change.after["option"]


def test_a_change_to_a_span_task_that_was_to_stay_is_found_and_undone(tmp_path):
    root = write_bundle(tmp_path / "b", TRUNK).root
    add(root, BY_NAME["where"], probes=probes_of("where"))
    before = ProbeRunner(Bundle.open(root)).answered(["where"])
    with pytest.raises(IsolationError, match="where"):
        certified(
            root,
            "add",
            lambda: add(root, BY_NAME["where"], seed=3, probes=probes_of("where"), replace=True),
            changing=["reply"],
        )
    assert ProbeRunner(Bundle.open(root)).answered(["where"]) == before


# Whole splits.


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_whole_splits_of_both_kinds_are_scored_from_a_bundle(tmp_path):
    """Labels and answers are what the bundle answers itself, but for known rows that are made wrong."""
    root = make(tmp_path / "bundle", *(BY_NAME[name] for name in ("reply", "who")))
    session = Session(root)
    questions = [
        {"question": f"{word} {CHOICE.text}", "choices": list(CHOICE.options)} for word in ("my", "the", "you", "not")
    ]
    for index, row in enumerate(questions):
        given, _ = input_of(row, where="")
        best = session.predict([given])[0].answers["reply"]["index"]
        row["label"] = best if index else (best + 1) % 3
    rows = []
    for word in ("my", "the", "you"):
        question, context = f"{word} {PASSAGES[0][0]}", f"{word} {PASSAGES[0][1]}"
        answer = session.predict([Passage(question=question, context=context)])[0].answers["who"]
        several = [{"text": "sad", "start": context.index("sad")}]
        if answer["text"] is not None:
            several.append({"text": answer["text"], "start": answer["start"]})
        rows.append({"question": question, "context": context, "answers": several if answer["text"] else []})
    write(tmp_path / "choice.jsonl", questions)
    write(tmp_path / "span.jsonl", rows)
    project = Project(
        tasks=(
            TaskEntry(name="reply", kind="multiple_choice", train="choice.jsonl", test="choice.jsonl"),
            TaskEntry(name="who", kind="span", null_answers=True, train="span.jsonl", test="span.jsonl"),
        )
    )
    reply, who = split_scores(session, project, folder=tmp_path)
    assert (reply.rows, reply.metric, reply.scores) == (4, "accuracy", {"accuracy": 0.75})
    assert (who.rows, who.metric, who.scores) == (3, "f1", {"f1": 1.0, "exact_match": 1.0})


# JSON.


def test_questions_from_json():
    asked = {"question": "q", "options": ["a", "b"]}
    assert input_of(asked, where="") == (Question(text="q", options=("a", "b")), None)
    named = {"question": "q", "choices": ["a", "b"], "options": None, "context": "c", "id": 3}
    assert input_of(named, where="") == (Question(text="q", options=("a", "b"), context="c"), None)
    about = input_of({"question": "q", "context": "c", "options": None}, where="")
    assert about == (Passage(question="q", context="c"), None)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"question": "q"}, "a context to be answered from, or options"),
        ({"question": "q", "options": ["a"]}, "a list of two strings or more"),
        ({"question": "q", "options": "a, b"}, "a list of two strings or more"),
        ({"question": "q", "choices": ["a", 2]}, "a list of two strings or more"),
        ({"question": "q", "context": 5}, "the context of a question is a text"),
        ({"question": 5, "context": "c"}, "this is not an input"),
        ({"context": "c"}, '"question": ..., "options"'),
    ],
)
def test_a_question_that_cannot_be_read_says_what_is_allowed(row, said):
    with pytest.raises(BadValue, match="row 7") as caught:
        input_of(row, where="row 7")
    assert said in str(caught.value)


def test_words_of_a_context_may_be_given_without_the_place_of_no_answer(fixed):
    """The first word was taken for it, and no words at all took every answer of the call down."""
    passage = Passage(question="who is happy?", context="ben is happy")
    spans = [name for name, task in BY_NAME.items() if task.kind == "span"]
    words = np.array([[0, 3], [4, 6], [7, 12]])
    with_place = np.concatenate([[[-1, -1]], words])
    (found,), (wanted,), (plain,) = (
        fixed.predict([passage], tasks=spans, words=[given]) for given in (words, with_place, None)
    )
    assert found.answers == wanted.answers == plain.answers and found.answers
    (none,) = fixed.predict([passage], tasks=spans, words=[np.zeros((0, 2), int)])
    assert all(answer["text"] is None for answer in none.answers.values()) and set(none.answers) == set(spans)
