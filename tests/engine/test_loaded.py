"""What is remembered of the tasks of a moment: so much and no more, whatever is asked in whichever order."""

from itertools import permutations

import pytest

from polyhead.engine import loaded
from polyhead.engine.backends.reference import ReferenceBackend
from polyhead.engine.session import Session
from polyhead.plan import cost
from polyhead.project.strategies import Prompted
from polyhead.testing import tiny_trunk
from polyhead.testing.strategies import tiny_bundle
from support.models import paths_of

NAMES = ("mood", "topics", "urgency", "names")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A bundle whose tasks share a prompt group."""
    trunk, folder = tiny_trunk(), tmp_path_factory.mktemp("loaded") / "b"
    tiny_bundle(folder, trunk, paths_of(trunk, Prompted(), *NAMES))
    return folder


def counted(monkeypatch, owner, name):
    """The calls of a function."""
    calls, inner = [], getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *given, **more: calls.append(given) or inner(*given, **more))
    return calls


def test_what_is_remembered_of_plans_and_passes_is_bounded(root, monkeypatch):
    """Every order of tasks and every length left an entry that stayed for good."""
    monkeypatch.setattr(loaded, "PLANS", 4)
    monkeypatch.setattr(loaded, "FLOPS", 4)
    tasks = Session(root, backend="reference").loaded
    merged, passes = counted(monkeypatch, loaded, "merge"), counted(monkeypatch, cost, "flops_by_sharers")
    orders = list(permutations(NAMES))
    for names in (*orders, orders[-1]):
        tasks.plan(names)
    assert len(merged) == len(orders) == 24
    for tokens in (*range(4, 12), 11):
        tasks.flops(NAMES, tokens)
    assert len(passes) == 8
    kept = (tasks._plan.cache_info(), tasks._layers.cache_info(), tasks._flops.cache_info())
    assert all(one.maxsize == 4 and one.currsize <= 4 for one in kept)
    before = len(merged)
    tasks.plan(orders[5])
    tasks.flops(NAMES, 4)
    assert len(merged) > before and len(passes) == 9, "the oldest are forgotten"


def test_the_same_tasks_in_another_order_share_what_they_cost_and_keep_their_order(root, monkeypatch):
    session = Session(root, backend="reference")
    tasks, passes = session.loaded, counted(monkeypatch, cost, "flops_by_sharers")
    layers = counted(monkeypatch, cost, "layer_evaluations")
    first = tasks.flops(NAMES, 12)
    assert f"shared: {', '.join(NAMES)}" in first
    for names in permutations(NAMES):
        assert tasks.flops(names, 12) == first and tasks.layers(names) == 2
        assert tasks.plan(names).tasks == names
    assert len(passes) == len(layers) == 1
    (result,) = session.predict(["the lamp is late"], tasks=NAMES[::-1])
    assert tuple(result.answers) == NAMES[::-1] and result.receipt.layers == 2


def test_what_could_not_run_at_once_is_answered_and_told_with_the_reason(root, monkeypatch, caplog):
    """Once: the next call runs at once again. Where a stage fails too its answer says so, and the log need not."""
    session, run = Session(root, backend="reference"), ReferenceBackend.run
    expected, failures = session.predict(["good"], tasks=["mood"]), [RuntimeError("no memory for all at once")]

    def failing(backend, plan, batch):
        if failures:
            raise failures.pop()
        return run(backend, plan, batch)

    monkeypatch.setattr(ReferenceBackend, "run", failing)
    for _ in range(2):
        assert session.predict(["good"], tasks=["mood"])[0].answers == expected[0].answers
    (told,) = caplog.records
    assert told.levelname == "WARNING"
    assert told.getMessage() == "mood: could not run at once, and ran stage by stage: no memory for all at once"
    failures.append(RuntimeError("again"))
    monkeypatch.setattr(ReferenceBackend, "stages", lambda *given: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        session.predict(["good"], tasks=["mood"])
    assert len(caplog.records) == 1
