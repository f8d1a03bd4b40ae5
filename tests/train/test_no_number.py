"""A kind of another package whose metric is no number on some rows: its task is trained and kept like the others."""

import math

import msgspec
import pytest

from polyhead.bundle.read import Bundle
from polyhead.engine.session import Session
from polyhead.project.recipes import Joint
from polyhead.project.strategies import Branch
from polyhead.tasks.kinds import KINDS
from polyhead.tasks.kinds.single_label import SingleLabel
from polyhead.testing import tiny_tasks
from polyhead.train.events import Events
from polyhead.train.heads.selection_rule import selection_score
from polyhead.train.record.comparison import VersionComparison, group_is_better
from polyhead.train.run import train_project
from support import tiny_project
from support.cases import cases

pytest.importorskip("torch")
NAMES = ("mood", "urgency", "topics")
WAYS = {
    "head": {},
    "branch": {"strategy": Branch(layers=1)},
    "depths": {"strategy": Branch()},
    "together": {"recipe": Joint()},
}


class Agreeing(SingleLabel):
    """`single_label` with a metric of its own, first, which is a number or none."""

    name, other_names = "agreeing", ()
    without = frozenset()  # metrics that are no number

    def metrics(self, task):
        return ("agreement", *SingleLabel().metrics(plain(task)))

    def evaluate(self, task, outputs, targets, examples):
        scores = SingleLabel().evaluate(plain(task), outputs, targets, examples)
        scores = {"agreement": scores["accuracy"], **scores}
        return {name: math.nan if name in self.without else value for name, value in scores.items()}


def plain(task):
    return msgspec.structs.replace(task, kind="single_label", metric=None)


@pytest.fixture
def agreeing():
    kind = Agreeing()
    KINDS.register(kind)
    yield kind
    del KINDS._items["agreeing"]


def trained(folder, bundle, said, **changes):
    made = tiny_project.project(folder, *NAMES)
    tasks = [msgspec.structs.replace(made.tasks[0], kind="agreeing"), *made.tasks[1:]]
    made = msgspec.structs.replace(made, tasks=tuple(tasks), bundle=bundle, **changes)
    train_project(made, folder=folder, cache=folder / f"{bundle}-cache", events=Events(say=said.append))
    return Bundle.open(folder / bundle), made


@pytest.mark.parametrize("way", [pytest.param(way, marks=[pytest.mark.slow] * (way != "head")) for way in WAYS])
def test_a_metric_that_is_no_number_loses_no_task(agreeing, tmp_path, way):
    """Training ended with an error when the task was to be written, and with several tasks at once all were lost."""
    whole, _ = trained(tmp_path, "whole", [], **WAYS[way])
    for without in ("agreement", "macro_f1"):
        agreeing.without, said = {without}, []
        bundle, made = trained(tmp_path, without, said, **WAYS[way])
        assert set(bundle.tasks) == set(NAMES)
        for split, scores in bundle.split_scores("mood").items():
            assert set(scores) == set(whole.split_scores("mood")[split]) - {without}
        (line,) = [line for line in said if "is no number" in line]
        assert line.startswith("mood: warning: ") and without in line and "validation and test" in line
        assert all(
            math.isfinite(value) for name in NAMES for of in bundle.split_scores(name).values() for value in of.values()
        )
        answers = Session(bundle, backend="reference").predict(["the lamp is good"])[0].answers
        assert set(answers) == set(NAMES)
        if without != "agreement":  # no metric that chooses
            assert bundle.learned_digest("mood") == whole.learned_digest("mood")
        again = []
        trained(tmp_path, without, again, **WAYS[way])
        assert any("unchanged" in line or "already" in line for line in again), again


@cases(
    ("live", "new", "wins"),
    [
        ((math.nan, 0.5), (0.25, 0.5), True),
        ((math.nan, 0.5), (math.nan, 0.75), True),
        ((math.nan, 0.5), (math.nan, 0.5), False),
        ((0.25, 0.5), (math.nan, 0.5), False),
        ((0.25, 0.5), (math.nan, 0.875), True),
        ((0.25, 0.5), (math.inf, 0.5), False),
        ((-math.inf, 0.5), (0.0, 0.5), False),
        ((0.25, 0.5), (0.5, 0.5), True),
    ],
    ids=str,
)
def test_a_unit_wins_by_the_mean_that_chooses_its_epochs(live, new, wins):
    """The mean with a score that is no number was none either, and the unit was never replaced."""
    compared = [
        VersionComparison(metric="accuracy", live=old, new=fresh, rows=9, of=9, changed=1, held_out=True)
        for old, fresh in zip(live, new, strict=True)
    ]
    task = plain(tiny_tasks()[0])
    metric = KINDS["single_label"].default_metric(task)
    before, after = (sum(selection_score(task, {metric: score}) for score in scores) for scores in (live, new))
    assert group_is_better(compared) == (after > before) == wins
