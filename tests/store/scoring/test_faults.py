"""What stops a job, with its pieces kept, and what is the answer of a row."""

import errno

import pytest

from polyhead.engine.backends.base import whole
from polyhead.engine.backends.reference.backend import ReferenceBackend
from polyhead.engine.session import Session
from polyhead.errors import BackendError
from support.scoring_files import failed, read, run, texts, write

TASKS = ("mood", "urgency")


class _ArrayMemoryError(MemoryError):
    """As numpy's, which has this name."""


@pytest.fixture
def session(bundle):
    """Rows of unlike lengths lie in batches of their own."""
    return Session(bundle, backend="reference", deterministic=True)


def failing(monkeypatch, error, *, when=lambda batch: True):
    """The backend raises `error` for batches of which `when` holds; the numbers of rows of those that it ran."""
    inner, ran = ReferenceBackend.stages, []

    def stages(self, plan, batch):
        if when(batch):
            raise error
        ran.append(len(batch.ids))
        yield from inner(self, plan, batch)

    monkeypatch.setattr(ReferenceBackend, "stages", stages)
    monkeypatch.setattr(ReferenceBackend, "run", lambda self, plan, batch: whole(self.stages(plan, batch)))
    return ran


def is_wide(batch):
    return batch.ids.shape[1] > 40


def with_long_rows(*numbers):
    rows = texts(8)
    for number in numbers:
        rows[number]["text"] = "lamp " * 60
    return rows


MACHINE = [
    (MemoryError("no room"), MemoryError, "no room"),
    (_ArrayMemoryError("Unable to allocate 3 GiB"), MemoryError, "3 GiB"),
    (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), MemoryError, "DefaultCPUAllocator"),
    (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED"), MemoryError, "ALLOC_FAILED"),
    (OSError(errno.EIO, "the disk is gone"), OSError, "the disk is gone"),
    (FileNotFoundError(errno.ENOENT, "weights are gone"), OSError, "weights are gone"),
]


@pytest.mark.parametrize(("error", "kind", "said"), MACHINE, ids=[type(one[0]).__name__ for one in MACHINE])
@pytest.mark.parametrize("long", [(5,), (3, 4, 5)], ids=["beside_answers", "alone"])
def test_want_of_memory_or_of_a_file_is_nobodys_answer(session, tmp_path, monkeypatch, error, kind, said, long):
    """It stood in `error` as the final reason of these rows, and the command ended with 0."""
    source, out = write(tmp_path / "in.jsonl", with_long_rows(*long)), tmp_path / "out.jsonl"
    run(session, source, tmp_path / "whole.jsonl", tasks=TASKS)
    with monkeypatch.context() as patch:
        failing(patch, error, when=is_wide)
        with pytest.raises(kind, match=said):
            run(session, source, out, tasks=TASKS)
    assert not out.exists()
    assert run(session, source, out, tasks=TASKS).done_before == 3
    assert out.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


@pytest.mark.parametrize("tasks", [("mood",), TASKS], ids=["one", "two"])
def test_a_backend_that_fails_on_everything_stops_the_job_and_keeps_its_pieces(session, tmp_path, monkeypatch, tasks):
    """All rows that were left had its reason, and the pieces were gone."""
    source, out = write(tmp_path / "in.jsonl", texts(8)), tmp_path / "out.jsonl"
    run(session, source, tmp_path / "whole.jsonl", tasks=tasks)
    columns, calls = session.columns, []

    def dying(inputs, **options):
        calls.append(len(inputs))
        if len(calls) == 2:
            failing(monkeypatch, RuntimeError("device lost"))
        return columns(inputs, **options)

    monkeypatch.setattr(session, "columns", dying)
    said = f"fail on every text.*are kept. Got: {', '.join(tasks)}: RuntimeError: device lost.*the same command"
    with pytest.raises(BackendError, match=said):
        run(session, source, out, tasks=tasks)
    assert not out.exists()
    monkeypatch.undo()
    assert run(session, source, out, tasks=tasks).done_before == 3
    assert out.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


def test_a_backend_that_fails_within_a_piece_stops_the_job(session, tmp_path, monkeypatch):
    """Rows that were answered before it failed stand in the same piece."""
    source, out, ran = write(tmp_path / "in.jsonl", with_long_rows(1)), tmp_path / "out.jsonl", []
    ran = failing(monkeypatch, RuntimeError("device lost"), when=lambda batch: bool(ran))
    with pytest.raises(BackendError, match="device lost"):
        run(session, source, out, tasks=TASKS, piece_rows=8)
    assert len(ran) == 1 and not out.exists()


@pytest.mark.parametrize("piece_rows", [1, 2, 8])
def test_rows_that_fail_for_themselves_have_the_reason_however_many_lie_together(
    session, tmp_path, monkeypatch, piece_rows
):
    """A text of our own is answered, so these are at fault: the job comes to its end."""
    failing(monkeypatch, RuntimeError("too much"), when=is_wide)
    rows = with_long_rows(*range(8))
    source, out = write(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl"
    done = run(session, source, out, tasks=TASKS, piece_rows=piece_rows)
    wanted = "mood: RuntimeError: too much; urgency: RuntimeError: too much"
    assert [row["error"] for row in read(out)] == [wanted] * 8
    assert done.counts.failed == {"mood": 8, "urgency": 8} and done.counts.partly == 0


def test_every_form_of_task_answers_the_text_that_it_is_tested_with(session):
    from polyhead.engine.inputs import input_types_of
    from polyhead.store.jobs.faults import PROBES

    for name, task in session.tasks.items():
        given = [probe for form, probe in PROBES.items() if form in input_types_of(task)]
        assert given and all(name in one.answers for one in session.predict(given, tasks=[name]))


def test_rows_without_answers_are_counted_by_their_reason(session, tmp_path, monkeypatch):
    """Rows that failed in one task were taken off the rows that do not fit another."""
    failing(monkeypatch, RuntimeError("too much"), when=is_wide)
    columns = session.columns

    def urgent(inputs, **options):
        """`urgency` alone fails on what is urgent."""
        error = BackendError("broke")
        rows = {row: error for row, given in enumerate(inputs) if "urgent" in given[0]}
        found = columns(inputs, **options)
        return failed(found, "urgency", rows) if rows else found

    monkeypatch.setattr(session, "columns", urgent)
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    write(
        source,
        [{"text": "good"}, {"text": "bad"}, {"text": "urgent"}, {"text": "urgent too"}, {"text": "urgent 3"}]
        + [{"text": "a lamp", "text_b": "a box"}, {"text": "lamp " * 60}, {"text": " "}, {"text": None}, {"id": 9}],
    )
    with source.open("a") as file:
        file.write("no JSON\n")
    counts = run(session, source, out, tasks=("mood", "urgency", "same"), piece_rows=20).counts
    assert (counts.rows, counts.unread, counts.idle, counts.partly) == (11, 3, 1, 3)
    assert counts.failed == {"mood": 1, "urgency": 4, "same": 0}
    assert counts.unfit == {"mood": 1, "urgency": 1, "same": 6}
    found = read(out)
    assert counts.errors == sum("error" in row for row in found) == 8
    for name, count in counts.unanswered.items():
        assert count == sum(row[name] is None for row in found)
        assert count == counts.unread + counts.idle + counts.failed[name] + counts.unfit[name]
    pieces = run(session, source, tmp_path / "apart.jsonl", tasks=("mood", "urgency", "same"), piece_rows=1)
    named = ("errors", "unread", "idle", "partly", "unanswered", "failed", "unfit")
    assert all(getattr(pieces.counts, name) == getattr(counts, name) for name in named)


def test_words_of_a_row_in_an_error_are_not_the_machines(session, tmp_path, monkeypatch):
    """A customer's phone that is out of memory is no fault of this one."""
    failing(monkeypatch, BackendError("no answer", got="my phone is out of memory"), when=is_wide)
    source, out = write(tmp_path / "in.jsonl", with_long_rows(5)), tmp_path / "out.jsonl"
    done = run(session, source, out, tasks=TASKS)
    assert done.counts.failed == {"mood": 1, "urgency": 1}
    assert "my phone is out of memory" in read(out)[5]["error"]
