"""A loaded bundle answers: one pass, other tasks and other rows without influence, long texts, receipts."""

import importlib

import msgspec
import numpy as np
import pytest

from polyhead.bundle.create import write_bundle
from polyhead.bundle.manifest import TaskRecord
from polyhead.bundle.read import Bundle
from polyhead.engine.batch import batched, readings_of
from polyhead.engine.inputs import input_of
from polyhead.engine.readers import readers_by_type
from polyhead.engine.session import Session
from polyhead.errors import BackendError, DataError, UnknownTask
from polyhead.plan import Path, Plan, Pool, Prompt, cost
from polyhead.project.strategies import Adapter, InLayer, Pooled, Prompted, prompt_groups
from polyhead.tasks.task import Task
from polyhead.testing import tiny_part, tiny_path, tiny_tasks, tiny_trunk
from polyhead.testing.strategies import add_tiny, tiny_bundle, tiny_paths
from polyhead.text.tokenize import Tokenizer
from support.cases import cases
from support.precisions import FLOATS, HAS_BFLOAT16

SHORT = ["where is my order?", "the lamp is broken and late", "good", "happy ben, sad anna!", "my bill is 12"]
LONG = "the kettle is broken and my phone was late . " * 3  # about 30 tokens
TOO_LONG = "please refund the broken lamp , my phone is good and ben is happy . " * 6  # 90 tokens
PAIR = ("is the lamp good?", "the lamp is bad")
ATTENTION = Pooled(layers="mean", of=2, positions="attention", heads=2, hidden=8)
LORA = Adapter(delta="lora", size=2)
UPPER = InLayer(adapters=(Adapter(size=6, heads=2, start=1),))


@pytest.fixture(scope="module")
def trunk():
    return tiny_trunk()


@pytest.fixture(scope="module")
def root(trunk, tmp_path_factory):
    folder = tmp_path_factory.mktemp("engine") / "bundle"
    tiny_bundle(folder, trunk, tiny_paths(ATTENTION, trunk))
    return folder


@pytest.fixture(scope="module")
def session(root):
    return Session(root)


@pytest.fixture(scope="module", params=FLOATS)
def fixed(root, request):
    return Session(root, deterministic=True, precision=request.param)


def bits(session, texts, tasks=("mood", "topics", "urgency", "names")):
    """text -> the bytes of every task's outputs."""
    outputs = {name: session.outputs(name, [(text,) for text in texts]) for name in tasks}
    return {text: tuple(outputs[name][i].tobytes() for name in tasks) for i, text in enumerate(texts)}


def test_one_pass_answers_all_tasks_of_a_text(root):
    session = Session(root)
    result = session.predict([SHORT[0]])[0]
    assert set(result.answers) == {"mood", "topics", "urgency", "names"}
    assert result.receipt.passes == 1 and result.receipt.layers == 2
    assert session.backend.layers_run == 2
    assert result.receipt.tokens == len(session.tokenizer.encode([(SHORT[0],)])[0].ids)
    assert set(result.receipt.added_flops) == set(result.answers)
    assert all(flops > 0 for flops in result.receipt.added_flops.values())


def test_a_plain_pass_and_what_tasks_added_alone_and_together_are_the_whole(trunk, tmp_path):
    """Two tasks in one prompt group, an isolated prompt, an adapter in the upper layer, a pooler on the plain trunk."""
    tasks = {task.name: task for task in tiny_tasks()}
    ways = {"mood": Prompted(), "urgency": Prompted(), "topics": Prompted(isolated=True), "names": UPPER}
    groups = prompt_groups([(tasks[name], way) for name, way in ways.items()])
    shape, digest = trunk.architecture, trunk.digest
    paths = {name: way.path(tasks[name], trunk=digest, shape=shape, group=groups[name]) for name, way in ways.items()}
    tiny_bundle(tmp_path / "b", trunk, paths)
    plain = msgspec.structs.replace(tasks["topics"], name="plain")
    path = ATTENTION.path(plain, trunk=digest, shape=shape)
    add_tiny(tmp_path / "b", trunk, plain, path, seed=9)
    session = Session(tmp_path / "b")
    receipt = session.predict([LONG])[0].receipt
    assert set(receipt.added_flops) == {*ways, "plain", "shared: mood, urgency"}
    everything = session.plan([*ways, "plain"])
    trunks = Plan(steps=session.plan(["plain"]).steps[:2])
    whole, shared = (
        cost.cost_of(one, session.shape, receipt.tokens, folded=True).flops for one in (everything, trunks)
    )
    assert sum(receipt.added_flops.values()) + shared == whole
    assert receipt.passes == 1 and receipt.layers == cost.layer_evaluations(everything) == 2 + 2 + 1
    alone = session.predict([LONG], tasks=["mood"])[0].receipt.added_flops
    assert set(alone) == {"mood"} and alone["mood"] > shared > receipt.added_flops["mood"]


def test_a_pair_read_separately_adds_as_its_longer_text(trunk, tmp_path):
    session = Session(
        tiny_bundle(tmp_path / "b", trunk, {"alike": tiny_paths(InLayer(adapters=(LORA,)), trunk)["alike"]})
    )
    receipt = session.predict([PAIR])[0].receipt
    longer = max(len(session.tokenizer.encode([(text,)])[0].ids) for text in PAIR)
    assert receipt.passes == 2
    assert receipt.added_flops == {"alike": cost.flops(session.plan(["alike"]), session.shape, longer)}


def test_a_joined_pair_takes_one_pass_and_a_separate_pair_two(root):
    joined = Session(root).predict([PAIR], tasks=["same"])[0].receipt
    apart = Session(root).predict([PAIR], tasks=["alike"])[0].receipt
    both = Session(root).predict([PAIR])[0]
    assert (joined.passes, apart.passes, both.receipt.passes) == (1, 2, 3)
    assert both.receipt.layers == 6 and both.receipt.tokens == joined.tokens + apart.tokens
    assert set(both.answers) == {"same", "alike", "where", "who"}


def test_no_layer_above_the_deepest_asked_tap_runs(trunk, tmp_path):
    low, high = tiny_tasks()[0], tiny_tasks()[1]
    write_bundle(tmp_path / "b", trunk)
    add_tiny(tmp_path / "b", trunk, low, tiny_path(low, trunk, pool=Pool(positions="mean"), stop=1), seed=1)
    add_tiny(tmp_path / "b", trunk, high, tiny_path(high, trunk, pool=Pool(positions="mean")), seed=2)
    session = Session(tmp_path / "b")
    assert session.predict(SHORT, tasks=[low.name])[0].receipt.layers == 1
    assert session.backend.layers_run == 1
    assert session.predict(SHORT)[0].receipt.layers == 2
    assert session.backend.layers_run == 1 + 2  # the first layer is shared by both paths


def test_an_answer_does_not_depend_on_mates_padding_or_order(session):
    together = session.predict([*SHORT, LONG, PAIR, TOO_LONG])
    backwards = session.predict([TOO_LONG, PAIR, LONG, *SHORT[::-1]])[::-1]
    for text, one, other in zip([*SHORT, LONG, PAIR, TOO_LONG], together, backwards, strict=True):
        alone = session.predict([text])[0]
        assert_close(one.answers, other.answers)
        assert_close(one.answers, alone.answers)
        assert one.receipt == other.receipt == alone.receipt


def assert_close(one, other):
    if isinstance(one, dict):
        assert set(one) == set(other)
        for key in one:
            assert_close(one[key], other[key])
    elif isinstance(one, list):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_close(a, b)
    elif isinstance(one, float):
        assert one == pytest.approx(other, abs=1e-5)
    else:
        assert one == other


def test_deterministic_bits_are_the_same_alone_among_others_and_in_any_order(fixed):
    texts = [*SHORT, LONG, TOO_LONG, *(f"{word} {SHORT[1]}" for word in "abcdefghij")]
    whole = bits(fixed, texts)
    assert bits(fixed, texts[::-1]) == whole
    chance = np.random.default_rng(0)
    for _ in range(3):
        some = [texts[i] for i in chance.permutation(len(texts))[: chance.integers(1, len(texts))]]
        assert bits(fixed, some) == {text: whole[text] for text in some}
    for text in texts:
        assert bits(fixed, [text])[text] == whole[text], text


TEXT = "the kettle is broken and late . ben sat"
WORDS = [np.array([(0, 3), (4, 10)] * size)[:count] for size, count in ((1, 2), (1, 1), (13, 25), (30, 60))]
WORDS.append(np.stack([np.arange(36), np.arange(36) + 1], axis=1))
ORDERS = ([0, 1, 2, 3, 4], [4, 3, 0], [0, 2], [1, 4, 1, 0], [3, 3, 0, 1])


@pytest.fixture(scope="module")
def many_kinds(tmp_path_factory):
    """A bundle with a task whose head is one wide product over words, where bits follow shapes."""
    root, trunk = tmp_path_factory.mktemp("kinds") / "b", tiny_trunk(width=48)
    kinds = [f"{place}-{kind:02d}" for kind in range(23) for place in "BI"]
    task = Task(name="kinds", kind="tagging", labels=("O", *kinds))
    write_bundle(root, trunk)
    path = Pooled(hidden=None).path(task, trunk=trunk.digest, shape=trunk.architecture)
    add_tiny(root, trunk, task, path, seed=0)
    return root


@pytest.mark.parametrize("backend", ["reference", "torch", "openvino", "onnxruntime"])
def test_deterministic_bits_of_words_do_not_depend_on_how_many_others_have(many_kinds, backend):
    """Words that are given with an input may be few, or more than its tokens."""
    if backend != "reference":
        pytest.importorskip(backend)
    session = Session(many_kinds, backend=backend, precision="float32", deterministic=True)
    alone = [session.outputs("kinds", [(TEXT,)], words=[words])[0] for words in WORDS]
    assert [len(out) for out in alone] == [2, 1, 25, 60, 36] and np.isfinite(alone[0]).all()
    for order in ORDERS:
        found = session.outputs("kinds", [(TEXT,)] * len(order), words=[WORDS[i] for i in order])
        assert [out.tobytes() for out in found] == [alone[i].tobytes() for i in order], order


def test_deterministic_shapes_of_a_row_are_the_same_whatever_its_mates_are(many_kinds):
    session = Session(many_kinds, backend="reference", deterministic=True)

    def shapes(order):
        given, own = [(TEXT,)] * len(order), [WORDS[i] for i in order]
        readings = readings_of(given, readers_by_type(session.tasks), session.tokenizer, own)
        found = {}
        (alone,) = readings
        for batch, tokens in batched(alone, session.tokenizer, deterministic=True):
            for member in batch.entries:
                found[order[member]] = (tokens.ids.shape, tokens.words.shape)
        return found

    alone = {i: shapes([i])[i] for i in range(len(WORDS))}
    assert len(set(alone.values())) > 1
    for order in ORDERS:
        assert shapes(order) == {i: alone[i] for i in order}


def test_deterministic_bits_of_a_pair_do_not_depend_on_other_pairs(fixed):
    pairs = [(a, b) for a in (*SHORT, LONG) for b in (SHORT[0], LONG, TOO_LONG)]
    for task in ("same", "alike"):
        whole = [o.tobytes() for o in fixed.outputs(task, pairs)]
        assert [fixed.outputs(task, [pair])[0].tobytes() for pair in pairs] == whole
        assert [o.tobytes() for o in fixed.outputs(task, pairs[::-1])][::-1] == whole


def test_asking_for_some_tasks_gives_the_same_bits_as_asking_for_all(fixed):
    texts = [*SHORT, LONG, TOO_LONG]
    whole = fixed.predict(texts)
    for names in (["mood"], ["names", "topics"], ["urgency", "mood", "names"]):
        for some, all_of_them in zip(fixed.predict(texts, tasks=names), whole, strict=True):
            assert some.answers == {name: all_of_them.answers[name] for name in names}


def test_adding_replacing_and_removing_a_task_changes_no_bit_of_the_others(trunk, tmp_path):
    root, paths = tmp_path / "b", tiny_paths(ATTENTION, trunk)
    tiny_bundle(root, trunk, {name: paths[name] for name in ("mood", "names")})
    texts = [*SHORT, LONG, TOO_LONG]

    def now(*tasks):
        return bits(Session(root, deterministic=True), texts, tasks)

    before = now("mood", "names")
    tasks = {task.name: task for task in tiny_tasks()}
    windowed = msgspec.structs.replace(tasks["topics"], long_texts="windows")
    add_tiny(root, trunk, windowed, paths["topics"], seed=7)
    assert now("mood", "names") == before
    low = tiny_path(tasks["urgency"], trunk, pool=Pool(positions="mean"), stop=1)
    add_tiny(root, trunk, tasks["urgency"], low, seed=8)
    assert now("mood", "names") == before
    together = Session(root, deterministic=True).predict(texts)
    assert [r.answers["mood"] for r in together] == [
        r.answers["mood"] for r in Session(root, deterministic=True).predict(texts, tasks=["mood"])
    ]
    add_tiny(root, trunk, tasks["mood"], paths["mood"], seed=9, replace=True)
    assert now("names") == {text: (found[1],) for text, found in before.items()}
    Bundle.open(root).remove_task("mood")
    assert now("names") == {text: (found[1],) for text, found in before.items()}
    add_tiny(root, trunk, tasks["mood"], paths["mood"], seed=0)  # the arrays it had at first
    assert now("mood", "names") == before


def test_tasks_of_equal_prefix_share_their_pool_of_states(session):
    plan = session.plan(("mood", "topics", "urgency"))
    assert [len(step.tasks) for step in plan.steps[:2]] == [3, 3]
    one = Session(session.bundle)
    one.predict(SHORT)
    assert one.backend.layers_run == 2


def long_bundle(trunk, root, kinds):
    """Tasks of these names, each cut or read in windows."""
    tasks = {task.name: task for task in tiny_tasks()}
    write_bundle(root, trunk)
    for seed, (name, long_texts) in enumerate(kinds.items()):
        task = msgspec.structs.replace(tasks[name], long_texts=long_texts)
        add_tiny(root, trunk, task, tiny_paths(ATTENTION, trunk)[name], seed=seed)
    return Session(root, deterministic=True)


def test_a_long_text_is_read_in_windows_by_one_task_and_cut_for_another_in_one_call(trunk, tmp_path):
    mixed = long_bundle(trunk, tmp_path / "mixed", {"mood": "windows", "topics": "cut"})
    result = mixed.predict([TOO_LONG])[0]
    encoded = mixed.tokenizer.encode([(TOO_LONG,)])[0]
    assert encoded.cut > 0
    assert result.receipt.windows == result.receipt.passes == 3
    assert result.receipt.cut == encoded.cut  # what the task that cuts did not read
    only = mixed.predict([TOO_LONG], tasks=["mood"])[0]
    assert only.receipt.cut == 0 and only.receipt.windows == 3 and only.answers["mood"] == result.answers["mood"]
    cut = mixed.predict([TOO_LONG], tasks=["topics"])[0]
    assert (cut.receipt.windows, cut.receipt.passes, cut.receipt.cut) == (1, 1, encoded.cut)
    assert cut.answers["topics"] == result.answers["topics"]


@pytest.mark.parametrize("other", ["mood", "same"])
def test_words_of_a_cut_text_are_answered_beside_a_task_that_reads_windows(trunk, tmp_path, other):
    """The long text was late, without a deadline: a task that was asked with it took its answer away."""
    session = long_bundle(trunk, tmp_path / "mixed", {"names": "cut", other: "windows"})
    inputs = [TOO_LONG, "anna is here", (TOO_LONG, "good")]
    alone = session.predict(inputs, tasks=["names"])
    both = session.predict(inputs)
    for one, two in zip(alone, both, strict=True):
        assert one.answers.get("names") == two.answers.get("names") and not two.late
    assert both[0].answers["names"] and both[1].answers["names"]


def shifted(path, rows):
    """The path behind so many prompt rows of its own, which take positions of the text."""
    embed = msgspec.structs.replace(path.embed, prompts=(Prompt(part=path.head.part, rows=rows),), shift=True)
    return Path(nodes=(embed, *path.nodes[1:]))


@pytest.mark.parametrize("deterministic", [False, True], ids=["fast", "deterministic"])
@pytest.mark.parametrize("backend", ["reference", "openvino", "torch"])
def test_texts_longer_than_the_positions_behind_shifted_prompts_are_cut_to_these(
    trunk, tmp_path, backend, deterministic
):
    """They failed, and all texts of their batch with them. Of 48 positions 6 are for the prompt: 40 words."""
    pytest.importorskip("numpy" if backend == "reference" else backend)
    session = long_bundle(trunk, tmp_path / "b", {"urgency": "cut"})
    tasks, paths = {task.name: task for task in tiny_tasks()}, tiny_paths(ATTENTION, trunk)
    for seed, name in enumerate(("mood", "topics", "names", "alike")):
        task = msgspec.structs.replace(tasks[name], long_texts="windows" if name == "topics" else "cut")
        add_tiny(tmp_path / "b", trunk, task, shifted(paths[name], 6), seed=seed)
    session = Session(tmp_path / "b", backend=backend, precision="float32", deterministic=deterministic)
    words = ["lamp", "bill", "phone", "good", "bad", "my", "anna"] * 10
    long, cut = " ".join(words), " ".join(words[:40])
    assert len(session.tokenizer.encode([(cut,)])[0].ids) == 42

    def same(task, inputs, expected):
        for output, wanted in zip(session.outputs(task, inputs), session.outputs(task, expected), strict=True):
            np.testing.assert_allclose(output[: len(wanted)], wanted, atol=1e-5)

    for task in ("mood", "names"):
        same(task, [("good",), (long,)], [("good",), (cut,)])
    same("alike", [(long, "good")], [(cut, "good")])
    same("urgency", [(long,)], [(" ".join(words[:46]),)])
    windows = session.outputs("topics", [(" ".join(words[start : start + 40]),) for start in (0, 30)])
    np.testing.assert_allclose(session.outputs("topics", [(long,)])[0], np.mean(windows, axis=0), atol=1e-5)
    short, result, pair = session.predict(["good", long, (long, "good")])
    assert set(short.answers) == set(result.answers) == {"urgency", "mood", "topics", "names"} and not pair.failed
    assert (short.receipt.cut, result.receipt.cut, pair.receipt.cut) == (0, 30, 30)
    assert session.predict([long], tasks=["urgency"])[0].receipt.cut == 24
    assert session.predict([long], tasks=["topics"])[0].receipt.cut == 0


@pytest.mark.parametrize("deterministic", [False, True], ids=["fast", "deterministic"])
def test_only_texts_beyond_the_positions_behind_shifted_prompts_take_a_pass_more(
    trunk, tmp_path, monkeypatch, deterministic
):
    """All took it, and were tokenized twice, where one task had such prompts. Halves of pairs are short and long."""
    tasks, paths = {task.name: task for task in tiny_tasks()}, tiny_paths(ATTENTION, trunk)
    write_bundle(tmp_path / "b", trunk)
    for seed, name in enumerate(("urgency", "mood", "topics", "names", "alike", "near")):
        task = msgspec.structs.replace(
            tasks["alike" if name == "near" else name], name=name, long_texts="windows" if name == "topics" else "cut"
        )
        path = tiny_path(task, trunk, pool=Pool(positions="mean"))
        add_tiny(
            tmp_path / "b", trunk, task, path if name in ("urgency", "near") else shifted(paths[name], 6), seed=seed
        )
    session = Session(tmp_path / "b", backend="reference", precision="float32", deterministic=deterministic)
    of_41_tokens = "lamp " * 39
    short = ["good", (SHORT[0], SHORT[1]), SHORT[1], ("good", SHORT[0])]
    mixed = [(TOO_LONG, SHORT[1]), *short, TOO_LONG, (SHORT[1], of_41_tokens), of_41_tokens, ("good", TOO_LONG)]
    encoded, encodings = [], Tokenizer.encodings
    monkeypatch.setattr(
        Tokenizer, "encodings", lambda self, texts, **how: encoded.extend(texts) or encodings(self, texts, **how)
    )
    results = session.predict(short)
    assert len(encoded) == len(set(encoded)) == sum(result.receipt.passes for result in results)
    both = session.predict(mixed)
    assert [result.receipt.passes for result in both[1:5]] == [result.receipt.passes for result in results]
    assert both[5].receipt.passes == 1 + 3 and both[5].receipt.windows == 3
    columns = session.columns(mixed)
    for name in session.tasks:
        rows = [row for row, result in enumerate(both) if name in result.answers]
        assert rows == columns[name].rows.tolist() == [row for row in range(9) if name not in both[row].skipped]
        for row, output in zip(rows, columns[name].outputs, strict=True):
            (alone,) = session.outputs(name, [mixed[row]])
            np.testing.assert_allclose(
                output, alone, rtol=0 if deterministic else 1e-4, atol=0 if deterministic else 1e-5
            )


def test_a_text_in_windows_has_the_mean_of_the_outputs_of_its_windows(trunk, tmp_path):
    session = long_bundle(trunk, tmp_path / "w", {"mood": "windows"})
    from polyhead.text.tokenize import Windows

    windows = session.tokenizer.encode([(TOO_LONG,)], windows=Windows(size=48, stride=12))
    pieces = []
    for window in windows:
        ends = window.offsets[window.sequence == 0]
        pieces.append((TOO_LONG[ends[0, 0] : ends[-1, 1]],))
    alone = session.outputs("mood", pieces)
    np.testing.assert_allclose(session.outputs("mood", [(TOO_LONG,)])[0], np.mean(alone, axis=0), atol=1e-5)


def test_tagging_reads_words_of_later_windows_at_their_true_offsets(trunk, tmp_path):
    plain = Task(name="words", kind="tagging", labels=("a", "b", "c"), long_texts="windows")
    path = ATTENTION.path(plain, trunk=trunk.digest, shape=trunk.architecture, codec=tiny_trunk_codec())
    write_bundle(tmp_path / "b", trunk)
    add_tiny(tmp_path / "b", trunk, plain, path, seed=3)
    session = Session(tmp_path / "b")
    words = session.predict([TOO_LONG])[0].answers["words"]["words"]
    assert [TOO_LONG[w["start"] : w["end"]] for w in words] == TOO_LONG.split()
    cut = msgspec.structs.replace(plain, long_texts="cut")
    add_tiny(tmp_path / "b", trunk, cut, path, seed=3, replace=True)
    read = Session(tmp_path / "b").predict([TOO_LONG])[0].answers["words"]["words"]
    assert 0 < len(read) < len(words)
    assert [TOO_LONG[w["start"] : w["end"]] for w in read] == TOO_LONG.split()[: len(read)]


def tiny_trunk_codec():
    from polyhead.plan import Codec

    return Codec(name="float32")


@cases("count", [21, 22, 23, 30], ids=str)
@cases("max_tokens", [47, 48], ids=["odd", "even"])
def test_the_first_window_of_a_long_pair_is_its_cut_form(count, max_tokens):
    from polyhead.encoder.data import TextSettings
    from polyhead.text.tokenize import Windows

    tokenizer = Tokenizer(tiny_trunk().tokenizer, TextSettings(max_tokens=max_tokens))
    for other in (5, count - 1, count, count + 1, 40):
        pair = ("good " * count, "bad " * other)
        cut = tokenizer.encode([pair])[0]
        first = tokenizer.encode([pair], windows=Windows(size=max_tokens, stride=max_tokens // 4))[0]
        assert cut.ids.tolist() == first.ids.tolist(), (count, other)


def test_an_input_that_fits_no_task_is_skipped_with_the_reason(session):
    text, pair, empty = session.predict(["good", PAIR, "  "])
    given = "one text was given"
    assert text.skipped == {
        **dict.fromkeys(("same", "alike"), f"this task reads a pair of texts, {given}"),
        **dict.fromkeys(("where", "who"), f"this task reads a question and its context, {given}"),
        "reply": f"this task reads a question with options, {given}",
    }
    assert set(pair.skipped) == {"mood", "topics", "urgency", "names", "reply"}
    assert pair.skipped["mood"] == "this task reads one text, a pair was given"
    assert set(empty.skipped.values()) == {"the text is empty"} and not empty.answers
    assert empty.receipt.passes == empty.receipt.layers == empty.receipt.tokens == 0


def test_no_input_has_no_result(session):
    assert session.predict([]) == [] and session.outputs("mood", []) == []


def test_lone_surrogates_are_counted_and_offsets_stay_true(session):
    text = "ben \ud800 is good"
    result = session.predict([text], tasks=["names"])[0]
    assert result.receipt.repaired == 1
    clean = session.predict(["ben \ufffd is good"], tasks=["names"])[0]
    assert len(result.answers["names"]["spans"]) == len(clean.answers["names"]["spans"])


def test_given_words_are_the_words_that_are_answered(session, trunk, tmp_path):
    plain = Task(name="words", kind="tagging", labels=("a", "b"))
    path = ATTENTION.path(plain, trunk=trunk.digest, shape=trunk.architecture, codec=tiny_trunk_codec())
    write_bundle(tmp_path / "b", trunk)
    add_tiny(tmp_path / "b", trunk, plain, path, seed=3)
    given, words = input_of({"tokens": ["order", "#12", "is", "late"]}, where="row 1")
    found = Session(tmp_path / "b").predict([given], words=[words])[0].answers["words"]["words"]
    assert [given[0][w["start"] : w["end"]] for w in found] == ["order", "#12", "is", "late"]


def test_an_unknown_task_is_refused_by_name_before_anything_runs(root):
    session = Session(root)
    with pytest.raises(UnknownTask, match="'nothing'") as caught:
        session.predict(SHORT, tasks=["mood", "nothing"])
    assert caught.value.allowed == sorted(session.records) and session.backend.layers_run == 0


def test_an_unknown_backend_is_refused_with_the_known_ones(root):
    with pytest.raises(BackendError, match="torch, .*reference"):
        Session(root, backend="abacus")


def test_torch_and_reference_sessions_agree_on_every_task(root):
    torch, reference = Session(root, backend="torch"), Session(root, backend="reference")
    inputs = [*SHORT, LONG, TOO_LONG, PAIR, (LONG, TOO_LONG)]
    for one, other in zip(torch.predict(inputs), reference.predict(inputs), strict=True):
        assert_near(one.answers, other.answers, 1e-4)
        assert one.receipt == other.receipt


def assert_near(one, other, tolerance):
    numbers = [np.array(list(_numbers(answers))) for answers in (one, other)]
    assert set(one) == set(other) and len(numbers[0])
    np.testing.assert_allclose(numbers[0], numbers[1], atol=tolerance)


def _numbers(value):
    if isinstance(value, dict):
        for item in value.values():
            yield from _numbers(item)
    elif isinstance(value, list):
        for item in value:
            yield from _numbers(item)
    elif isinstance(value, float):
        yield value


def test_the_trained_precision_is_the_default_one_where_the_processor_has_it(trunk, tmp_path):
    task = tiny_tasks()[0]
    path = tiny_path(task, trunk, pool=Pool(positions="mean"))
    write_bundle(tmp_path / "b", trunk)
    trained = {"numerics": {"precision": "bfloat16"}}
    record = TaskRecord(task=task, path=path, trunk=trunk.digest, trained_with=trained)
    arrays = tiny_part(path, trunk.architecture, f"task:{task.name}")
    Bundle.open(tmp_path / "b").add_task(record, arrays, scores={}, probes=[], card="")
    assert Session(tmp_path / "b").backend.precision == ("bfloat16" if HAS_BFLOAT16 else "float32")
    assert Session(tmp_path / "b", precision="float32").backend.precision == "float32"


@pytest.mark.parametrize(
    "row",
    [None, 3, {"texts": "a"}, {"text": 5}, ["a"], {"tokens": ["a", 1]}],
    ids=["null", "number", "key", "type", "list", "token"],
)
def test_a_row_that_is_no_input_is_refused_with_its_place(row):
    with pytest.raises(DataError, match="row 7"):
        input_of(row, where="row 7")


def test_rows_that_are_inputs_become_texts_and_pairs():
    assert input_of("a", where="") == (("a",), None)
    assert input_of({"text": "a"}, where="") == (("a",), None)
    assert input_of({"text": "a", "text_b": "b"}, where="") == (("a", "b"), None)
    assert input_of({"text_a": "a", "text_b": "b"}, where="") == (("a", "b"), None)
    given, words = input_of({"tokens": ["my", "lamp"]}, where="")
    assert given == ("my lamp",) and words.tolist() == [[0, 2], [3, 7]]


def test_nine_value_types_pass_between_the_steps_of_answering():
    """From what is asked to its receipt: each is made in one place, and read by the next steps."""
    names = ("inputs", "batch", "outputs", "answers", "receipt", "request", "loaded", "session")
    types = {
        name
        for module in map(importlib.import_module, (f"polyhead.engine.{name}" for name in names))
        for name, one in vars(module).items()
        if isinstance(one, type) and issubclass(one, msgspec.Struct) and one.__module__ == module.__name__
    }
    assert types >= {"Passage", "Texts", "EncodedInputs", "Outputs", "Result", "Receipt", "TaskResults"}
    assert len(types) <= 9, sorted(types)
