"""Tasks that own their models beside those that read the trunk: nothing more is written after a deadline."""

import threading
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from polyhead.bundle.create import write_bundle
from polyhead.bundle.manifest import TaskRecord, read_bundle_file
from polyhead.bundle.models import ModelDraft
from polyhead.bundle.versions import replace_lines
from polyhead.bundle.write import add_tasks
from polyhead.encoder.summarizer import Seq2SeqData, Seq2SeqShape, SummarySettings
from polyhead.engine import request
from polyhead.engine import summaries as summaries
from polyhead.engine.session import Session
from polyhead.engine.summaries import SummaryTasks
from polyhead.errors import BadName, BadValue, UnknownTask
from polyhead.plan import Pool
from polyhead.tasks.task import Task
from polyhead.testing import tiny_part, tiny_path, tiny_tasks, tiny_trunk
from polyhead.testing.strategies import add_tiny

SHAPE = Seq2SeqShape(
    width=4,
    encoder_layers=1,
    decoder_layers=1,
    encoder_feed_forward=8,
    decoder_feed_forward=8,
    vocabulary=10,
    positions=16,
)
TEXTS = [f"document {number}" for number in range(20)]


class Writer:
    """Writes every text backwards; `texts` are those of each call, and time is how many were written."""

    def __init__(self):
        self.calls, self.broken = [], None

    def write(self, summaries, name, inputs):
        texts = [text for (text,) in inputs]
        if self.broken in texts:
            raise ValueError("no such word")
        self.calls.append(texts)
        return [SimpleNamespace(text=text[::-1], tokens=3, steps=2, cut=0, repaired=0) for text in texts]

    def clock(self):
        return float(sum(map(len, self.calls)))


@pytest.fixture
def writer(monkeypatch):
    made = Writer()
    monkeypatch.setattr(SummaryTasks, "_written", lambda *given: made.write(*given))
    monkeypatch.setattr(SummaryTasks, "_shape", lambda self, name: SHAPE)
    monkeypatch.setattr(request, "monotonic", made.clock)
    return made


@pytest.fixture
def session(tmp_path):
    root = write_bundle(tmp_path / "b", tiny_trunk()).root
    data = Seq2SeqData(
        name="by hand",
        config=b"{}",
        generation=b"{}",
        tokenizer=b"{}",
        arrays={"a": np.ones(2, np.float32)},
        settings=SummarySettings(max_tokens=16, summary_tokens=8),
    )
    task = Task(name="brief", kind="summarization")
    draft = ModelDraft(task=task, data=data, trained_with={}, scores={}, probes=[], card="")
    other = msgspec.structs.replace(draft, task=msgspec.structs.replace(task, name="other"))
    add_tasks(root, [draft, other])
    return Session(root, backend="reference")


def written(results, name="brief"):
    return [row for row, result in enumerate(results) if name in result.answers]


def test_no_text_is_begun_after_the_deadline_and_the_rest_is_late(session, writer):
    """The clock was read before the first text alone, and all were written."""
    results = session.predict(TEXTS, tasks=["brief"], deadline=10)
    assert list(map(len, writer.calls)) == [8, 8]
    assert written(results) == list(range(16))
    assert [result.late for result in results] == [()] * 16 + [("brief",)] * 4
    assert [result.receipt.passes for result in results] == [1] * 16 + [0] * 4
    assert TEXTS[9][::-1] in results[9].answers["brief"].values()


def test_a_task_after_the_deadline_is_late_in_all_texts(session, writer):
    stream = session.stream(TEXTS[:8], tasks=["brief", "other"], deadline=5)
    assert [(early.task, sorted(early.answers)) for early in stream] == [("brief", list(range(8)))]
    assert stream.columns()["other"].late == tuple(range(8))


def test_without_a_deadline_all_texts_are_written_at_once(session, writer):
    results = session.predict(TEXTS, tasks=["brief"])
    assert writer.calls == [TEXTS] and written(results) == list(range(20))


def test_texts_in_pieces_have_the_answers_and_receipts_of_all_at_once(session, writer):
    far, never = session.predict(TEXTS, deadline=1e9), session.predict(TEXTS)
    assert far == never


def test_a_task_that_owns_its_model_is_neither_detached_nor_replaced_by_one_that_reads_the_trunk(session):
    """Detaching it did nothing and said nothing; a namesake was attached, and never answered."""
    with pytest.raises(UnknownTask, match="'brief'.*owns its model.*polyhead tasks remove"):
        session.detach("brief")
    trunk, task = tiny_trunk(), msgspec.structs.replace(tiny_tasks()[0], name="brief")
    path = tiny_path(task, trunk, pool=Pool())
    record = TaskRecord(task=task, path=path, trunk=trunk.digest)
    with pytest.raises(BadName, match="'brief'.*another name"):
        session.attach(record, tiny_part(path, trunk.architecture, path.head.part))
    assert set(session.tasks) == {"brief", "other"} and not session.records


def test_a_name_that_comes_back_as_a_task_of_the_other_sort_is_that_alone(session):
    """Removed and added between two looks at the bundle, in both directions."""
    bundle, trunk = session.bundle, tiny_trunk()
    folder, line = bundle.root / "tasks" / "brief", bundle.lines["brief"]
    kept = {path.name: path.read_bytes() for path in (folder / line.version).iterdir()}
    bundle.remove_task("brief")
    task = msgspec.structs.replace(tiny_tasks()[0], name="brief")
    add_tiny(bundle.root, trunk, task, tiny_path(task, trunk, pool=Pool()), seed=0)
    assert session.refresh().replaced == ("brief",)
    assert set(session.records) == {"brief"} and set(session.summaries.tasks) == {"other"}
    bundle.remove_task("brief")
    (folder / line.version).mkdir(parents=True)
    for name, content in kept.items():
        (folder / line.version / name).write_bytes(content)
    now = read_bundle_file(bundle.root)
    replace_lines(bundle.root, now, {**now.lines, "task:brief": line})
    assert session.refresh().replaced == ("brief",)
    assert not session.records and set(session.summaries.tasks) == {"brief", "other"} == set(session.tasks)


@pytest.mark.parametrize("deadline", [None, 1e9])
def test_a_text_that_fails_fails_alone(session, writer, deadline):
    """All texts that were given with it, or after it, failed too."""
    writer.broken = TEXTS[12]
    results = session.predict(TEXTS, tasks=["brief"], deadline=deadline)
    assert written(results) == [number for number in range(20) if number != 12]
    assert results[12].failed == {"brief": "ValueError: no such word"}


def test_a_writer_that_fails_on_everything_is_not_asked_for_every_text(session, writer, monkeypatch):
    asked = []

    def fail(summaries, name, inputs):
        asked.append(len(inputs))
        raise ValueError("no such word")

    monkeypatch.setattr(SummaryTasks, "_written", fail)
    with pytest.raises(ValueError, match="no such word"):
        session.predict(TEXTS, tasks=["brief"], deadline=1e9)
    assert asked == [8] + [1] * 8


def test_no_text_is_blamed_for_a_lack_of_memory(session, writer, monkeypatch):
    asked = []

    def fail(summaries, name, inputs):
        asked.append(len(inputs))
        raise MemoryError

    monkeypatch.setattr(SummaryTasks, "_written", fail)
    with pytest.raises(MemoryError):
        session.predict(TEXTS, tasks=["brief"])
    assert asked == [20]


@pytest.mark.parametrize("given", [("a", "b"), "", " "])
def test_outputs_of_what_a_task_does_not_read_are_refused_as_for_any_other(session, writer, given):
    """Of a pair the first text was summarized, and questions were left out, so that rows moved up."""
    with pytest.raises(BadValue, match="task 'brief' has no output for input 1"):
        session.outputs("brief", ["a text", given])
    assert not writer.calls


def test_a_model_that_threads_ask_for_at_once_is_opened_once(session, monkeypatch):
    opened, inside, go = [], threading.Event(), threading.Event()

    class Seq2Seq:
        def __init__(self, data):
            opened.append(self)
            inside.set()
            assert go.wait(10)

        def write(self, texts, *, alone):
            return list(texts)

    monkeypatch.setattr(summaries, "missing", lambda: None)
    module = SimpleNamespace(Seq2Seq=Seq2Seq)
    monkeypatch.setattr(summaries, "importlib", SimpleNamespace(import_module=lambda name: module))
    mine, found = session.summaries, []
    threads = [threading.Thread(target=lambda: found.append(mine._written("brief", [("a",)]))) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert inside.wait(10)
    go.set()
    for thread in threads:
        thread.join(10)
    assert len(opened) == 1 and found == [["a"]] * 4
