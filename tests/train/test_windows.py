"""Texts longer than the trunk are trained on in windows: what each teaches, and that answers are those of a session."""

import random

import msgspec
import numpy as np
import pytest
import tokenizers
import torch

from polyhead.bundle.create import write_bundle
from polyhead.bundle.manifest import TaskRecord
from polyhead.data.read import Examples, ReadReport
from polyhead.deep.branch.run import Branches
from polyhead.deep.examples import FeatureExamples, module_outputs, module_outputs_of_each
from polyhead.deep.features import tap_examples, wanted_taps
from polyhead.deep.loop.loss import distilled
from polyhead.deep.recipes.joint_loop import text_examples
from polyhead.deep.recipes.joint_model import JointModel
from polyhead.deep.sharing.make import arrays_of_part
from polyhead.deep.sharing.part import PooledPart
from polyhead.engine.inputs import Passage
from polyhead.engine.session import Session
from polyhead.errors import EmptyData
from polyhead.plan import Path, Pool
from polyhead.project.recipes import Joint, Training
from polyhead.project.strategies import Branch, Pooled
from polyhead.project.strategies.branch import branch_path
from polyhead.project.tables import Project, TaskEntry, TrunkChoice
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.kinds.tagged import parts_of
from polyhead.testing import tiny_part, tiny_path, tiny_tasks, tiny_trunk
from polyhead.text.hashing import hashed_in_context
from polyhead.text.tokenize import Tokenizer
from polyhead.text.words import words_in
from polyhead.train.data.extract import Extractor
from polyhead.train.data.kept_examples import examples_of, tell_unread
from polyhead.train.data.prepare import wanted
from polyhead.train.data.prepared import Prepared, Split
from polyhead.train.events import Events
from polyhead.train.heads.inputs import WORDS, head_outputs, inputs_of
from polyhead.train.run import train_project
from support import tiny_project
from support.split_scores import split_scores
from support.tiers import first_of

COLUMNS = 256
SIZE = 16  # tokens that the trunk reads
DATA = tiny_trunk(max_tokens=SIZE)
TOKENISER = Tokenizer(DATA.tokenizer, DATA.settings)
TASKS = {
    task.name: msgspec.structs.replace(task, long_texts="windows") for task in tiny_tasks() if kind_of(task).per_word
}
TRAINING = Training(seed=1, epochs=1, patience=1, batch=8, dropout=0.0, precision="float32")
POOL = Pool(layers="mean", of=2)
POOLED = Pooled(layers="last", hidden=8, codec="float32")
QUESTION = "where is it?"
PLAIN = ("the", "my", "is", "abcdef", "late", "xyz", "order", ".")  # "abcdef" is six tokens
ONE_TOKEN = "กขค"  # three words in one token, that of unknown letters


def drawn(task, count=24, seed=0):
    """Examples of up to 40 words: answers anywhere, or nowhere; or a label for each word."""
    chance, inputs, targets = random.Random(seed), [], []
    for _ in range(count):
        words = PLAIN if task.kind == "span" else (*PLAIN, ONE_TOKEN)
        context = " ".join(chance.choices(words, k=chance.randint(3, 40)))
        given = (QUESTION, context) if task.kind == "span" else (context,)
        words = words_in(given)
        if task.kind != "span":
            target = np.array([chance.randrange(len(task.labels)) for _ in words], np.int64)
        elif chance.random() < 0.2:
            target = np.zeros((1, 4), np.int64)
        else:
            first = chance.randint(1, len(words) - 1)
            last = min(len(words) - 1, first + chance.choice((0, 0, 1, 2)))
            target = np.array([[first, last, words[first, 0], words[last, 1]]], np.int64)
        inputs.append(given)
        targets.append(target)
    words = [words_in(given) for given in inputs]
    return Examples(inputs=inputs, targets=targets, words=words, rows=[*range(count)], report=ReadReport())


def prepared_of(task, strategy=POOLED, training=TRAINING):
    examples = drawn(task)
    train, validation = (Split(name=name, examples=examples) for name in ("train", "validation"))
    return Prepared(
        task=task, strategy=strategy, training=training, team=None, train=train, validation=validation, test=None
    )


def windows_of_squad(given, start, end):
    """What scripts of SQuAD make of a context: for each window its ids, and the tokens of the answer's ends, or 0, 0.

    The windows are the library's own; an answer is characters [start, end), or (0, 0).
    """
    library = tokenizers.Tokenizer.from_buffer(DATA.tokenizer)
    library.enable_truncation(SIZE, stride=SIZE // 4, strategy="only_second")
    whole = library.encode(*given)
    for window in (whole, *whole.overflowing):
        here = [i for i, sequence in enumerate(window.sequence_ids) if sequence == 1]
        offsets = window.offsets
        if end == 0 or offsets[here[0]][0] > start or offsets[here[-1]][1] < end:
            yield window, (0, 0)
        else:
            first = max(i for i in here if offsets[i][0] <= start)
            yield window, (first, min(i for i in here if offsets[i][1] >= end))


def test_windows_of_a_context_teach_what_scripts_of_squad_make_of_them():
    examples = drawn(TASKS["where"], 60)
    texts = text_examples(examples, TASKS["where"], TOKENISER)
    expected = [
        (window, ends, row)
        for row, (given, target) in enumerate(zip(examples.inputs, examples.targets, strict=True))
        for window, ends in windows_of_squad(given, *target[0, 2:])
    ]
    assert texts.count == len(expected) > 2 * len(examples.inputs)
    held = 0
    for member, (window, (first, last), row) in enumerate(expected):
        batch = texts.batch(np.array([member]))
        (read,) = batch.arguments
        assert read.ids[0].tolist() == window.ids and texts.windows.texts[member] == row
        marks, tokens = batch.targets[0], read.words[0]
        assert int((marks == 1).sum()) == 2 and bool((marks >= 0).all()) and bool((tokens >= 0).all())
        begins, ends = (int(torch.nonzero(marks[:, side] == 1)) for side in (0, 1))
        assert int(tokens[begins]) == first
        place = examples.words[row][texts.windows.read[member][ends]]
        assert (int(tokens[ends]) == 0) if not last else (place[1] == window.offsets[last][1])
        held += bool(last)
    assert held > 20 and len(expected) - held > 20


@pytest.mark.parametrize("name", TASKS)
def test_windows_together_read_every_word_and_merge_to_one_output_a_text(name):
    task = TASKS[name]
    examples = drawn(task)
    texts = text_examples(examples, task, TOKENISER)
    for row, words in enumerate(examples.words):
        mine = np.flatnonzero(texts.windows.texts == row)
        assert texts.windows.numbers[mine].tolist() == list(range(len(mine)))
        found = np.unique(np.concatenate([texts.windows.read[i] for i in mine]))
        goes_on = np.append(False, words[1:, 0] == words[:-1, 1])  # spaces stand between all words but these
        assert found.tolist() == np.flatnonzero(~goes_on).tolist()
    whole = module_outputs(lambda batch: torch.zeros(*batch.words.shape, 2), texts)
    assert [len(one) for one in whole] == [len(words) for words in examples.words]


def test_each_window_of_a_tagged_text_has_the_labels_of_its_words():
    task = TASKS["names"]
    examples = drawn(task)
    texts = text_examples(examples, task, TOKENISER)
    for member, row in enumerate(texts.windows.texts):
        (labels,) = texts.batch(np.array([member])).targets
        assert labels.tolist() == examples.targets[row][texts.windows.read[member]].tolist()


def test_a_task_that_cuts_has_one_example_a_text():
    for name, task in TASKS.items():
        texts = text_examples(drawn(task), msgspec.structs.replace(task, long_texts="cut"), TOKENISER)
        assert texts.count == 24 and texts.windows is None, name


# Answers over whole texts


def answered(folder, task, path, part):
    """The outputs of a session whose bundle holds the part."""
    bundle = write_bundle(folder / "bundle", DATA)
    record = TaskRecord(task=task, path=path, trunk=DATA.digest)
    bundle.add_task(record, arrays_of_part(part), scores={}, probes=[], card="")
    return Session(bundle.root, backend="torch").outputs(task.name, drawn(task).inputs)


def live(folder, task):
    path = tiny_path(task, DATA, pool=POOL)
    module = JointModel(
        DATA, {task.name: path}, training=TRAINING, recipe=Joint(layer_dropout=0.0), bfloat16=False
    ).eval()
    texts = text_examples(drawn(task), task, TOKENISER)
    return path, module.model.parts[task.name], module_outputs(module.bound(task.name), texts, batch=5)


def kept(folder, task):
    prepared, extractor = prepared_of(task), Extractor(DATA, folder=folder, precision="float32")
    path = tiny_path(task, DATA, pool=POOL)
    extractor.fill(wanted(prepared, path, extractor))
    part = PooledPart(path, 16, generator=torch.Generator().manual_seed(3)).eval()
    return path, part, module_outputs(part, FeatureExamples(examples_of(prepared, prepared.train, path, extractor)))


@pytest.mark.parametrize("long_texts", ["windows", "cut"])
def test_words_of_windows_have_the_features_that_they_have_in_the_text(tmp_path, long_texts):
    """In training, in a session, and by the formula: a word's features do not depend on where a window begins."""
    task = msgspec.structs.replace(TASKS["names"], long_texts=long_texts)
    prepared, extractor = prepared_of(task), Extractor(DATA, folder=tmp_path, precision="float32")
    bare = tiny_path(task, DATA, pool=Pool())
    path = Path(nodes=(*bare.nodes[:-1], msgspec.structs.replace(bare.head, hidden=0, words=COLUMNS)))
    extractor.fill(wanted(prepared, path, extractor))
    arrays = tiny_part(path, DATA.architecture, path.head.part)
    examples = examples_of(prepared, prepared.train, path, extractor)
    found = head_outputs(path, arrays, examples, DATA.architecture.width)
    without = head_outputs(path, {**arrays, WORDS: 0 * arrays[WORDS]}, examples, DATA.architecture.width)
    bundle = write_bundle(tmp_path / "bundle", DATA)
    record = TaskRecord(task=task, path=path, trunk=DATA.digest)
    bundle.add_task(record, arrays, scores={}, probes=[], card="")
    answers = Session(bundle.root, backend="reference").outputs("names", drawn(task).inputs)
    drawn_words = zip(prepared.train.examples.inputs, prepared.train.examples.words, strict=True)
    for one, plain, other, ((text,), words) in zip(found, without, answers, drawn_words, strict=True):
        goes_on = parts_of(plain)  # with the token of the word before: no feature changes the answer
        np.testing.assert_array_equal(goes_on, parts_of(other))
        np.testing.assert_allclose(one[~goes_on], other[~goes_on], atol=2e-5, equal_nan=True)
        hashed = hashed_in_context([text[start:stop] for start, stop in words], COLUMNS)
        sums = np.stack([(arrays[WORDS][of.columns] * of.values[:, None]).sum(axis=0) for of in hashed])
        np.testing.assert_allclose(one[~goes_on], (plain + sums)[~goes_on], atol=2e-5, equal_nan=True)


def test_folds_hold_out_every_window_of_a_text(tmp_path):
    """Rows of inputs were numbered by windows, which folds took for texts: a text's windows stood on both sides."""
    task = TASKS["names"]
    prepared, extractor = prepared_of(task), Extractor(DATA, folder=tmp_path, precision="float32")
    path = tiny_path(task, DATA, pool=Pool())
    extractor.fill(wanted(prepared, path, extractor))
    examples = examples_of(prepared, prepared.train, path, extractor)
    inputs = inputs_of(path, examples, loss="word_cross_entropy", outputs=len(task.labels))
    texts, targets = prepared.train.examples.inputs, prepared.train.examples.targets
    assert examples.count > len(texts) and set(inputs.members.tolist()) == set(range(len(texts)))
    for member, place, target in zip(inputs.members, inputs.places, inputs.targets, strict=True):
        assert targets[member][place] == target
    held = [0, 5, 11]
    ((train, other),) = inputs.sides([held])
    assert not set(train.members.tolist()) & set(held) and set(other.members.tolist()) == set(held)


def tapped(folder, task):
    strategy = Branch(layers=1, hidden=8)
    prepared, extractor = prepared_of(task, strategy), Extractor(DATA, folder=folder, precision="float32")
    path = branch_path(task, strategy, trunk=DATA.digest, shape=DATA.architecture, tap=1, layers=1)
    extractor.fill(wanted_taps(prepared, path, extractor))
    module, _ = Branches(prepared, strategy, extractor, precision="float32").loop(path)
    examples = tap_examples(prepared, prepared.train, path, extractor, precision="float32")
    return path, module.part, module_outputs(module.eval(), examples)


@pytest.mark.parametrize("way", first_of([live, kept, tapped]))
@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("long_texts", ["windows", "cut"])
def test_outputs_in_training_are_those_of_a_session(tmp_path, name, way, long_texts):
    task = msgspec.structs.replace(TASKS[name], long_texts=long_texts)
    path, part, found = way(tmp_path, task)
    if task.kind == "tagging":
        assert any(parts_of(one).any() for one in found)  # words that go on with the token of the word before
    for one, other in zip(found, answered(tmp_path, task, path, part), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5, equal_nan=True)


def test_a_student_is_taught_what_its_teacher_answers_in_each_window(tmp_path):
    """Not the merged answer, which has the places of the whole text."""
    task, strategy = TASKS["who"], Branch(layers=2, hidden=8, dropout=0.0, temperature=3.0)
    training = msgspec.structs.replace(TRAINING, learning_rate=1e-30, batch=1000)
    prepared = prepared_of(task, strategy, training)
    extractor = Extractor(DATA, folder=tmp_path, precision="float32")
    branches = Branches(prepared, strategy, extractor, precision="float32")
    extractor.fill(wanted_taps(prepared, branches.path(2), extractor))
    teacher = branches.teacher(2)
    student = branches.student(teacher, 1)
    examples = tap_examples(prepared, prepared.train, teacher.path, extractor, precision="float32")
    batch = examples.batch(np.arange(examples.count))
    with torch.inference_mode():
        found, taught = (one.module(*batch.arguments) for one in (student, teacher))
        expected = distilled("span_cross_entropy", 3.0)(found, batch.targets, None, taught)
    assert student.fitted.history[0]["loss"] == pytest.approx(float(expected), rel=1e-4)
    each = module_outputs_of_each(teacher.module, examples)
    assert [one.shape for one in each] == [(len(read), 2) for read in examples.windows.read]


def test_kept_windows_are_encoded_once_and_the_first_serves_tasks_that_cut(tmp_path):
    task, strategy = TASKS["where"], Branch(layers=1, hidden=8)
    windowed, cut = (prepared_of(one, strategy) for one in (task, msgspec.structs.replace(task, long_texts="cut")))
    path = branch_path(task, strategy, trunk=DATA.digest, shape=DATA.architecture, tap=1, layers=1)
    count = text_examples(windowed.train.examples, task, TOKENISER).count
    texts = len(set(windowed.train.examples.inputs))
    extractor = Extractor(DATA, folder=tmp_path / "one", precision="float32")
    requests = [*wanted_taps(windowed, path, extractor), *wanted_taps(cut, path, extractor)]
    told = []
    done = extractor.fill(requests, update=lambda *so_far: told.append(so_far))
    assert done.passes == count > texts and told[-1] == (texts, texts, 1.0)
    assert extractor.fill(requests).passes == 0
    other = Extractor(DATA, folder=tmp_path / "other", precision="float32")
    assert other.fill(wanted_taps(cut, path, other)).passes == texts
    assert other.fill(wanted_taps(windowed, path, other)).reused == 2 * texts
    states = (one.store(path_kept(requests)).features(requests[0].keys()) for one in (extractor, other))
    first, second = (one.take(range(count)).values for one in states)
    np.testing.assert_allclose(first, second, atol=1e-5)


def path_kept(requests):
    (path,) = {request.path for request in requests}
    return path


# Learning


THINGS, BEFORE = ("lamp", "kettle", "phone", "box"), ("the", "my", "is", "was", "today", "late", "and")


def far(chance):
    """The answer is a thing, beyond the tokens that are read at once."""
    words = chance.choices(BEFORE, k=chance.randint(14, 30))
    context = " ".join([*words, "."])
    answer = {"text": chance.choice(THINGS), "start": len(context) + 1}
    return {"question": QUESTION, "context": f"{context} {answer['text']} is good", "answers": [answer]}


WAYS = {
    "joint": {"recipe": Joint(micro_batches=1, layer_dropout=0.0)},
    "frozen": {"strategy": Pooled(of=2, hidden=16, codec="float32")},
    "branch": {"strategy": Branch(layers=1, hidden=16, dropout=0.0)},
}


def learned(folder, way, **changes):
    tiny_project.write_trunk(folder / "trunk", tiny_trunk())
    chance = random.Random(0)
    for split, count in (("train", 48), ("validation", 16)):
        tiny_project.write_jsonl(folder / f"{split}.jsonl", [far(chance) for _ in range(count)])
    entry = TaskEntry(name="far", kind="span", train="train.jsonl", validation="validation.jsonl", **changes)
    rate = {"joint": 3e-3, "frozen": 3e-2, "branch": 5e-3}[way]
    project = Project(
        tasks=(entry,),
        trunk=TrunkChoice(name=str(folder / "trunk"), max_tokens=SIZE),
        training=msgspec.structs.replace(TRAINING, epochs=8, patience=8, learning_rate=rate),
    )
    project = msgspec.structs.replace(project, **WAYS[way])
    if way == "joint":
        return project, train_project(project, folder=folder).scores["far"]
    return project, train_project(project, folder=folder).trained["far"]


@pytest.mark.slow
@pytest.mark.parametrize("way", first_of(WAYS))
def test_answers_beyond_the_first_window_are_learned_and_scored_as_they_are_answered(tmp_path, way):
    project, scores = learned(tmp_path, way, long_texts="windows")
    assert scores["validation"]["exact_match"] >= 0.8
    (found,) = split_scores(Session(tmp_path / "bundle"), project, folder=tmp_path, split="validation")
    assert found.scores == pytest.approx(scores["validation"])
    cut = tmp_path / "cut"
    with pytest.raises(EmptyData, match="beyond the 16 tokens.*long_texts = 'windows'"):
        learned(cut, way)


def test_answers_that_no_window_holds_whole_are_told_of(tmp_path):
    task, told = TASKS["where"], []
    examples = drawn(task)
    long = next(i for i, words in enumerate(examples.words) if len(words) > SIZE)
    end = len(examples.words[long]) - 1
    target = np.array([[1, end, 0, examples.words[long][end, 1]]], np.int64)
    for rows, lost in (([long], 1), ([*range(24)], None)):
        some = examples.take(rows)
        some.targets[rows.index(long)] = target
        prepared = msgspec.structs.replace(prepared_of(task), train=Split(name="train", examples=some))
        texts = text_examples(some, task, TOKENISER)
        if lost:
            with pytest.raises(EmptyData, match="1 answers, all in no window of 16 tokens whole"):
                tell_unread(prepared, texts, SIZE, Events(say=told.append))
            continue
        tell_unread(prepared, texts, SIZE, Events(say=told.append))
        answers = [(g, t[0, 2:]) for g, t in zip(some.inputs, some.targets, strict=True) if t[0, 1]]
        held = [any(last for _, (_, last) in windows_of_squad(g, *where)) for g, where in answers]
        lost = held.count(False)
    assert told == [
        f"where: {lost} of 24 training answers lie in no window of 16 tokens whole; they teach that there is no answer"
    ]
    assert 1 < lost < 5


@pytest.mark.parametrize("long_texts", ["windows", "cut"])
def test_labels_that_change_inside_a_token_are_told(long_texts):
    """Thai letters are one token here: no answer can begin at the second of them."""
    task, told = msgspec.structs.replace(TASKS["names"], long_texts=long_texts), []
    inputs = [(f"my {ONE_TOKEN} is",), (f"late {ONE_TOKEN}",), ("xyz",)]
    targets = [np.array(labels) for labels in ([0, 0, 1, 2, 0], [0, 1, 2, 2], [0])]
    words = [words_in(given) for given in inputs]
    examples = Examples(inputs=inputs, targets=targets, words=words, rows=[1, 2, 3], report=ReadReport())
    train = Split(name="train", examples=examples)
    prepared = msgspec.structs.replace(prepared_of(task), train=train)
    tell_unread(prepared, text_examples(examples, task, TOKENISER), SIZE, Events(say=told.append))
    (line,) = told
    assert line.startswith("names: in 1 of 3 training texts a label changes inside a token of the encoder")


def test_a_span_task_of_few_long_texts_learns_from_windows(tmp_path):
    """Folds of few rows are judged round by round, by the number of their texts: each has several windows here."""
    tiny_project.write_trunk(tmp_path / "trunk")
    chance, rows = random.Random(0), []
    for _ in range(60):
        words = chance.choices(("the", "my", "is", "late", "order"), k=40)
        place = chance.randrange(1, 40)
        words[place] = "lamp"
        answer = {"text": "lamp", "start": len(" ".join(words[:place])) + 1}
        rows.append({"question": "where is it?", "context": " ".join(words), "answers": [answer]})
    tiny_project.write_jsonl(tmp_path / "train.jsonl", rows)
    entry = TaskEntry(name="where", kind="span", train="train.jsonl", long_texts="windows")
    project = Project(
        tasks=(entry,),
        trunk=TrunkChoice(name="trunk", max_tokens=16),
        training=Training(epochs=1, precision="float32"),
        bundle="b",
    )
    train_project(project, folder=tmp_path)
    passage = Passage(question="where is it?", context=rows[0]["context"])
    (result,) = Session(tmp_path / "b", backend="reference").predict([passage])
    assert result.receipt.windows > 1 and result.answers["where"]["text"] in rows[0]["context"]
