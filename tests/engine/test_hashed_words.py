"""Heads that add hashed words of the text: the same bits on every backend, alone and beside others, of whole texts."""

import math
import threading
from functools import partial

import msgspec
import numpy as np
import pytest

import polyhead.engine.outputs as engine_outputs
import polyhead.engine.request as engine_request
from polyhead.bundle.create import write_bundle
from polyhead.bundle.live_versions import Probe
from polyhead.bundle.manifest import TaskRecord
from polyhead.bundle.write import Draft, add_tasks
from polyhead.certify import certified
from polyhead.engine.export.write import export_bundle
from polyhead.engine.session import Session
from polyhead.errors import BackendError, PlanError, StoreError
from polyhead.plan import Pool
from polyhead.plan.cost import WORD_WEIGHTS
from polyhead.store.packed import check_packed
from polyhead.store.words import MOST_COLUMNS
from polyhead.tasks.task import Task
from polyhead.testing import tiny_part, tiny_path, tiny_tasks, tiny_trunk
from polyhead.text.hashing import HashedRows, hashed_pair, hashed_text, hashed_texts
from polyhead.text.question import Question, read_alone

COLUMNS = 256
TRUNK = tiny_trunk()
MOOD = tiny_tasks()[0]
BARE = tiny_path(MOOD, TRUNK, pool=Pool(positions="mean"))
WORDS = msgspec.structs.replace(BARE, nodes=(*BARE.nodes[:-1], msgspec.structs.replace(BARE.head, words=COLUMNS)))
ARRAYS = tiny_part(WORDS, TRUNK.architecture, "task:mood")
TEXTS = ["where is my order?", "the lamp is broken and late", "good", "", "my bill is 12 . " * 40 + "zebra"]
PAIRS = [("where is my order?", "my order is late"), ("good", "the lamp is good"), ("the bill", "the bill")]
QUESTIONS = [
    Question(text="what is late?", options=("my order", "the lamp is late", "a bill")),
    Question(text="where is it?", options=("late", "good"), context="the order is late"),
]


@pytest.fixture(params=["reference", "torch", "openvino", "onnxruntime"])
def backend(request):
    pytest.importorskip(request.param if request.param != "reference" else "numpy")
    return request.param


@pytest.fixture
def root(tmp_path):
    """A bundle with tasks that read no words."""
    write_bundle(tmp_path / "b", TRUNK)
    tasks = [task for task in tiny_tasks() if task.name in ("topics", "urgency")]
    add_tasks(tmp_path / "b", [draft(task, tiny_path(task, TRUNK, pool=Pool(positions="mean"))) for task in tasks])
    return tmp_path / "b"


def draft(task, path):
    record = TaskRecord(task=task, path=path, trunk=TRUNK.digest)
    arrays = tiny_part(path, TRUNK.architecture, path.head.part)
    return Draft(record=record, arrays=arrays, scores={}, probes=[Probe.of((text,)) for text in TEXTS[:3]], card="")


def opened(root, backend="reference"):
    return Session(root, backend=backend, precision="float32", deterministic=True)


def with_mood(session, path=WORDS, arrays=ARRAYS, task=MOOD):
    own = {name: array for name, array in arrays.items() if path.head.words or name != WORD_WEIGHTS}
    session.attach(TaskRecord(task=task, path=path, trunk=TRUNK.digest), own)
    return session


def outputs(session, task, texts=TEXTS):
    """Rows of outputs, for texts that are not blank."""
    return np.stack(list(session.columns(texts, tasks=[task])[task].outputs))


def words_of(text):
    """`HashedRows.sums` of one text, checked against the plain product."""
    columns, values = hashed_text(text, COLUMNS)
    added = hashed_texts([text]).sums(ARRAYS[WORD_WEIGHTS])[0]
    np.testing.assert_allclose(added, values @ ARRAYS[WORD_WEIGHTS][columns], atol=1e-6)
    return added


def test_every_backend_adds_the_same_bits_of_the_whole_text(root, backend):
    bare = outputs(with_mood(opened(root, backend), BARE), "mood")
    added = np.stack([words_of(text) for text in TEXTS if text])
    np.testing.assert_array_equal(outputs(with_mood(opened(root, backend)), "mood"), bare + added)
    assert np.abs(words_of(TEXTS[-1]) - words_of(TEXTS[-1].removesuffix("zebra"))).max() > 1e-4  # beyond the cut


def test_words_of_all_windows_are_those_of_the_text_once(root, backend):
    windowed = msgspec.structs.replace(MOOD, long_texts="windows")
    bare = outputs(with_mood(opened(root, backend), BARE, task=windowed), "mood")
    cut = outputs(with_mood(opened(root, backend), BARE), "mood")
    assert not np.array_equal(bare[-1], cut[-1])  # the mean of windows
    added = np.stack([words_of(text) for text in TEXTS if text])
    np.testing.assert_array_equal(outputs(with_mood(opened(root, backend), task=windowed), "mood"), bare + added)


def test_others_keep_their_bits_and_company_changes_none(root, backend):
    session = opened(root, backend)
    before = [outputs(session, name).tobytes() for name in ("topics", "urgency")]
    with_mood(session)
    together = session.columns(TEXTS)
    assert [np.stack(list(together[name].outputs)).tobytes() for name in ("topics", "urgency")] == before
    alone = np.concatenate([outputs(session, "mood", [text]) for text in TEXTS if text])
    np.testing.assert_array_equal(np.stack(list(together["mood"].outputs)), alone)


def test_a_stream_gives_the_same_answers(root):
    session = with_mood(opened(root))
    streamed = {row: answer for part in session.stream(TEXTS, tasks=["mood"]) for row, answer in part.answers.items()}
    whole = session.predict(TEXTS, tasks=["mood"])
    assert streamed == {row: result.answers["mood"] for row, result in enumerate(whole) if TEXTS[row]}


def test_a_sum_that_is_not_finite_is_no_answer(root):
    arrays = {**ARRAYS, WORD_WEIGHTS: np.full_like(ARRAYS[WORD_WEIGHTS], 3e38)}
    session = with_mood(opened(root), arrays=arrays)
    with pytest.raises(BackendError, match="task 'mood' gave an output that is not finite"):
        session.predict(["the lamp is broken and late"], tasks=["mood"])


def test_the_bundle_keeps_them_and_a_certificate_proves_the_others(root):
    proof = certified(root, "add", lambda: add_tasks(root, [draft(MOOD, WORDS)]), changing=["mood"])
    assert proof.unchanged and set(proof.before) == {"topics", "urgency"} and proof.after["mood"].probes == 3
    session = opened(root)
    assert session.records["mood"].path == WORDS
    np.testing.assert_array_equal(outputs(session, "mood"), outputs(with_mood(opened(root)), "mood"))
    louder = msgspec.structs.replace(draft(MOOD, WORDS), arrays={**ARRAYS, WORD_WEIGHTS: 2 * ARRAYS[WORD_WEIGHTS]})
    changed = certified(root, "add", lambda: add_tasks(root, [louder], replace=True), changing=["mood"])
    is_same = {name: changed.after[name].sha256 == proof.after[name].sha256 for name in proof.after}
    assert is_same == {"topics": True, "urgency": True, "mood": False}


def test_a_store_answers_them_where_it_keeps_their_words():
    check_packed(MOOD, WORDS, words=True)
    with pytest.raises(StoreError, match="reads the words of the text, and this store does not keep them") as caught:
        check_packed(MOOD, WORDS, words=False)
    assert "extract the texts into another store with --words" in str(caught.value)
    wide = msgspec.structs.replace(WORDS.head, words=2 * MOST_COLUMNS)
    with pytest.raises(StoreError, match="reads 524,288 columns of words, and a store keeps 262,144"):
        check_packed(MOOD, msgspec.structs.replace(WORDS, nodes=(*WORDS.nodes[:-1], wide)), words=True)
    with pytest.raises(StoreError, match="reads the words of two texts, and a store keeps those of single texts"):
        check_packed(msgspec.structs.replace(MOOD, pair="joined"), WORDS, words=True)


def test_an_export_answers_them_and_its_readme_computes_the_words(root, tmp_path, monkeypatch, capsys):
    pytest.importorskip("onnxruntime")
    add_tasks(root, [draft(MOOD, WORDS)])
    exported = export_bundle(root, tmp_path / "out", backend="reference")
    assert exported.tasks["mood"].columns == COLUMNS and exported.tasks["mood"].largest_difference < 1e-4
    monkeypatch.chdir(tmp_path / "out")
    program = (tmp_path / "out" / "README.md").read_text().split("```python\n")[1].split("```")[0]
    exec(compile(program, "README.md", "exec"), names := {})
    assert "mood ['bad', 'good']" in capsys.readouterr().out
    for text in ("The lamp, the LAMP, isn't it?", "東京タワー, e\u0301lan: 10mg 😀", "a"):
        row, (columns, values) = names["hashed_row"](text, COLUMNS), hashed_text(text, COLUMNS)
        np.testing.assert_allclose([row[column] for column in columns.tolist()], values, atol=1e-6)
        assert len(row) == len(columns)


def test_an_export_leaves_out_tasks_that_read_the_words_of_two_texts(root, tmp_path):
    pytest.importorskip("onnxruntime")
    task = Task(name="same", kind="single_label", labels=("a", "b"), pair="separate")
    bare = tiny_path(task, TRUNK, pool=Pool(positions="mean"))
    path = msgspec.structs.replace(bare, nodes=(*bare.nodes[:-1], msgspec.structs.replace(bare.head, words=COLUMNS)))
    own = msgspec.structs.replace(draft(task, path), probes=[Probe.of(pair) for pair in PAIRS])
    add_tasks(root, [own])
    with pytest.raises(BackendError, match="cannot be exported"):
        export_bundle(root, tmp_path / "one", tasks=["same"], backend="reference")
    exported = export_bundle(root, tmp_path / "all", backend="reference")
    assert set(exported.tasks) == {"topics", "urgency"} and "words of two texts" in exported.left_out["same"]


@pytest.mark.parametrize("columns", [-1, 1, 100, 2**21])
def test_columns_are_a_power_of_two(columns):
    with pytest.raises(PlanError, match="cannot have these columns"):
        msgspec.structs.replace(BARE.head, words=columns)


@pytest.mark.parametrize(
    ("task", "asked"),
    [
        (Task(name="same", kind="single_label", labels=("a", "b"), pair="separate"), PAIRS),
        (Task(name="joined", kind="single_label", labels=("a", "b"), pair="joined"), PAIRS),
        (Task(name="which", kind="multiple_choice"), QUESTIONS),
    ],
    ids=lambda value: value.name if isinstance(value, Task) else "",
)
def test_words_of_each_pair_that_is_read_are_added(root, backend, task, asked):
    bare = tiny_path(task, TRUNK, pool=Pool(positions="mean"))
    path = msgspec.structs.replace(bare, nodes=(*bare.nodes[:-1], msgspec.structs.replace(bare.head, words=COLUMNS)))
    arrays = tiny_part(path, TRUNK.architecture, f"task:{task.name}")
    answered = []
    for way in (bare, path):
        session = opened(root, backend)
        own = {name: array for name, array in arrays.items() if way.head.words or name != WORD_WEIGHTS}
        session.attach(TaskRecord(task=task, path=way, trunk=TRUNK.digest), own)
        answered.append(list(session.columns(asked, tasks=[task.name])[task.name].outputs))
    for example, before, after in zip(asked, *answered, strict=True):
        rows = HashedRows.of([hashed_pair(*pair, COLUMNS) for pair in read_alone([example])])
        added = rows.sums(arrays[WORD_WEIGHTS])
        np.testing.assert_allclose(after, before + added.reshape(np.shape(before)), rtol=1e-5, atol=1e-6)
        assert np.abs(added).max() > 0


TAGS = Task(name="tags", kind="tagging", labels=("O", "B-place", "I-place"), long_texts="windows")
BOTH = Task(name="same", kind="single_label", labels=("a", "b"), pair="separate")
WHICH = Task(name="which", kind="multiple_choice")


def with_words(session, task, **pool):
    """The session with a task whose head reads words."""
    bare = tiny_path(task, TRUNK, pool=Pool(**pool))
    path = msgspec.structs.replace(bare, nodes=(*bare.nodes[:-1], msgspec.structs.replace(bare.head, words=COLUMNS)))
    session.attach(
        TaskRecord(task=task, path=path, trunk=TRUNK.digest), tiny_part(path, TRUNK.architecture, f"task:{task.name}")
    )


@pytest.fixture
def mixed(root):
    """A session whose tasks of every kind of input read words, and inputs of all kinds, some of them blank."""
    session = with_mood(opened(root))
    with_words(session, TAGS, positions="tokens")
    with_words(session, BOTH, positions="mean")
    with_words(session, WHICH, positions="mean")
    texts = [*TEXTS, *(f"{text} {number}" for number, text in enumerate(TEXTS * 4))]
    return session, [entry for several in zip(texts, PAIRS * 9, QUESTIONS * 13, strict=False) for entry in several]


def test_words_of_many_inputs_are_summed_beside_the_encoder_and_as_of_each_alone(mixed, monkeypatch):
    session, inputs = mixed
    threads = set()

    def noted(hashed, values, **named):
        threads.add((hashed.__name__, threading.current_thread() is threading.main_thread()))
        return hashed(values, **named)

    for name in ("hashed_texts", "hashed_pairs", "hashed_in_contexts"):
        monkeypatch.setattr(engine_outputs, name, partial(noted, getattr(engine_outputs, name)))
    together = session.columns(inputs)
    assert threads == {("hashed_texts", False), ("hashed_pairs", False), ("hashed_in_contexts", False)}
    threads.clear()
    alone = [session.columns([entry]) for entry in inputs]
    assert {is_main for _, is_main in threads} == {True}  # a thread is not worth it
    for name, column in together.tasks.items():
        rows = [row for row, one in enumerate(alone) if len(one[name].rows)]
        assert column.rows.tolist() == rows and len(rows) > 20
        for row, values in zip(rows, column.outputs, strict=True):
            np.testing.assert_array_equal(values, alone[row][name].outputs[0])


def test_words_that_cannot_be_summed_fail_for_their_tasks_alone(mixed, monkeypatch):
    session, inputs = mixed

    def broken(texts, **named):
        raise MemoryError("no room")

    monkeypatch.setattr(engine_outputs, "hashed_texts", broken)
    together = session.columns(inputs, raises=False)
    assert set(together["mood"].failed.values()) == {"MemoryError: no room"} and not len(together["mood"].rows)
    assert all(len(together[name].rows) > 20 and not together[name].failed for name in ("topics", "tags", "which"))


@pytest.fixture
def hashing(monkeypatch):
    """An event: words are hashed in another thread, without end unless they are told to; a request waits for it."""
    begun, begin, hashed = threading.Event(), engine_outputs.WordOutputs.begin, engine_outputs.hashed_texts

    def endless(texts, *, check):
        begun.set()
        while threading.current_thread() is not threading.main_thread():
            check()
        return hashed(texts, check=check)

    def waiting(words, expected):
        begin(words, expected)
        assert words._ahead is None or begun.wait(30)

    monkeypatch.setattr(engine_outputs, "hashed_texts", endless)
    monkeypatch.setattr(engine_outputs.WordOutputs, "begin", waiting)
    return begun


def hashing_threads():
    return [each for each in threading.enumerate() if each.name == "polyhead-words"]


def test_after_the_deadline_no_more_words_are_hashed_ahead(root, hashing, monkeypatch):
    """The answers waited for the words of all texts, and those of the answered ones were hashed again."""
    session, texts = with_mood(opened(root)), TEXTS[:3] * 4
    expected, add = outputs(session, "mood", TEXTS[:3]), engine_outputs.Gathered.add

    def added(gathered, *batch):
        add(gathered, *batch)
        monkeypatch.setattr(engine_request, "monotonic", lambda: math.inf)

    monkeypatch.setattr(engine_outputs.Gathered, "add", added)
    found = session.columns(texts, tasks=["mood"], deadline=3600.0)["mood"]
    assert len(found.rows) and not hashing_threads()
    for row, values in zip(found.rows.tolist(), found.outputs, strict=True):
        np.testing.assert_array_equal(values, expected[row % 3])


def test_no_words_are_hashed_ahead_after_an_error(root, hashing, monkeypatch):
    def interrupted(gathered, *batch):
        raise KeyboardInterrupt

    monkeypatch.setattr(engine_outputs.Gathered, "add", interrupted)
    with pytest.raises(KeyboardInterrupt):
        with_mood(opened(root)).columns(TEXTS[:3] * 4, tasks=["mood"])
    assert hashing.is_set() and not hashing_threads()
