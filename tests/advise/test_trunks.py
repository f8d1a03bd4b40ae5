"""The choice of the encoder: the rule in numbers worked by hand, and a project over the one that wins."""

import pytest

from advise.test_sharing_ways import tasks_in
from polyhead.advise.choice import Budget, TrunkTrial
from polyhead.advise.trunks import advised, chosen_trunk
from polyhead.errors import ConfigError
from polyhead.plan import merge
from polyhead.plan.cost import flops
from polyhead.project.tables import read_project
from polyhead.testing import tiny_trunk
from polyhead.train.events import Events
from support import head_search, tiny_project

FREE = Budget()


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    head_search.hurry(monkeypatch)


def trial(name, flops, *, layers=6, is_affordable=True, **points):
    mean = sum(points.values()) / len(points)
    return TrunkTrial(
        name=name, tasks=points, score=mean, tokens=32, flops=flops, layers=layers, is_affordable=is_affordable
    )


SMALL = trial("small", 100, a=80.0, b=70.0)
CASES = {
    "every task gains": (trial("large", 800, a=81.0, b=70.5), FREE, "large"),
    "one task loses": (trial("large", 800, a=90.0, b=69.9), FREE, "small"),
    "one loses, and the mean pays a point for each of three layers' work": (
        trial("large", 150, a=86.5, b=69.9),
        FREE,
        "large",
    ),
    "one loses, and the mean does not pay": (trial("large", 150, a=85.5, b=69.9), FREE, "small"),
    "too little to bind all tasks": (trial("large", 101, a=80.4, b=70.4), FREE, "small"),
    "within a budget the best mean": (trial("large", 800, a=90.0, b=69.9), Budget(amount=12), "large"),
    "over the budget": (trial("large", 800, a=99.0, b=99.0, is_affordable=False), Budget(amount=6), "small"),
}


@pytest.mark.parametrize("case", CASES)
def test_an_encoder_is_taken_by_points_and_work(case):
    other, budget, name = CASES[case]
    for trials in ((SMALL, other), (other, SMALL)):  # whichever the project names
        chosen, whys = chosen_trunk(trials, budget)
        assert chosen == name and len(whys) == 1 and "large" in whys[0]


def test_the_third_is_compared_with_the_one_taken_so_far():
    trials = (SMALL, trial("middle", 200, a=82.0, b=72.0), trial("large", 800, a=83.0, b=71.0))
    chosen, whys = chosen_trunk(trials, FREE)
    assert chosen == "middle"
    assert whys[1].startswith("large not over middle: +0.00 points, not better at b, at 4.0 times the work")


def test_a_budget_for_no_encoder_is_refused():
    with pytest.raises(ConfigError, match="no encoder is within the budget. Got: 1 layers"):
        chosen_trunk([trial("small", 100, a=1.0, is_affordable=False)], Budget(amount=1))


@pytest.fixture
def tasks(tmp_path):
    tiny_project.write_trunk(tmp_path / "deep", tiny_trunk(layers=4, width=32, seed=3))
    return tasks_in(tmp_path, "mood", "names")


@pytest.mark.slow
def test_each_default_is_tried_over_every_encoder_and_the_project_names_the_one_taken(tasks, tmp_path):
    budget = Budget(amount=4, frozen=True, minutes=1e9)
    ladder, advice = advised(tasks, tmp_path / "tried", budget, Events(), trunks=["deep", "trunk"])
    own, deep = advice.trunks
    assert (own.name, deep.name) == (tasks.project.trunk.name, "deep") and (own.layers, deep.layers) == (2, 4)
    assert own.tasks.keys() == deep.tasks.keys() == {"mood", "names"} and own.is_affordable and deep.is_affordable
    assert 6 < deep.flops / own.flops < 8.1  # twice the layers, twice the width
    chosen, whys = chosen_trunk(advice.trunks, budget)
    assert advice.why_trunk == whys and chosen == ladder.tasks.project.trunk.name
    (tmp_path / "p.toml").write_text(ladder.project_text(advice, "b"))
    assert read_project(tmp_path / "p.toml").trunk.name == str(tmp_path / chosen)
    assert ladder.data.architecture.layers == (4 if chosen == "deep" else 2)
    shallow, few = advised(tasks, tmp_path / "tried", Budget(amount=3, frozen=True), Events(), trunks=["deep"])
    assert shallow.tasks == tasks and few.why_trunk == ("deep: over the budget",)
    assert few.trunks[0].tasks == own.tasks  # kept, not trained again


def test_flops_are_those_of_all_tasks_in_one_pass(tasks, tmp_path):
    from polyhead.bundle.read import Bundle

    ladder, advice = advised(tasks, tmp_path / "tried", Budget(amount=2, frozen=True), Events(), trunks=["deep"])
    bundle = Bundle.open(next((tmp_path / "tried" / "bundles").glob("pooled-heads-????????")))
    plan = merge({name: record.path for name, record in bundle.tasks.items()})
    assert advice.trunks[0].flops == flops(plan, bundle.architecture, advice.trunks[0].tokens, folded=True)
    assert ladder.tasks == tasks


def test_without_other_encoders_nothing_is_compared(tasks, tmp_path):
    ladder, advice = advised(tasks, tmp_path / "tried", Budget(amount=2, frozen=True), Events(), trunks=["trunk"])
    assert advice.trunks == () and advice.why_trunk == () and ladder.folder == tmp_path / "tried"
