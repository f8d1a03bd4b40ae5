"""Effort 'best': more heads, and branches beside them, within the minutes that were given."""

import json
from types import SimpleNamespace

import msgspec
import pytest

from polyhead.api.fitting import settings_of
from polyhead.bundle.read import Bundle
from polyhead.deep.branch import alternatives
from polyhead.engine.session import Session
from polyhead.errors import ConfigError
from polyhead.project.recipes import Training
from polyhead.project.strategies.branch import private_layers
from polyhead.project.tables import AllocationRule, with_effort
from polyhead.tasks.kinds import kind_of
from polyhead.train.data.prepare import prepare
from polyhead.train.events import Events
from polyhead.train.heads import run as heads
from polyhead.train.heads import selection_rule
from polyhead.train.record.lines import effort_lines
from polyhead.train.record.selection import fingerprints_of
from polyhead.train.run import train_project
from support import tiny_project
from support.tiny_branches import home_in

AUTO = msgspec.structs.replace(tiny_project.STRATEGY, positions="auto")
BEST = msgspec.structs.replace(tiny_project.TRAINING, epochs=1, patience=1, effort="best")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return home_in(tmp_path_factory.mktemp("best"))


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Branches learn for an epoch: what the tests look at does not depend on how good they become."""
    monkeypatch.setattr(alternatives, "BRANCH_TRAINING", Training(epochs=1, patience=1, batch=8, learning_rate=2e-3))
    monkeypatch.setattr(alternatives, "LEAST_ROWS", 1)


def project_of(home, name="mood", *, training=BEST, **changes):
    return tiny_project.project(home, name, strategy=AUTO, training=training, **changes)


def trained(home, root, **changes):
    project, lines = msgspec.structs.replace(project_of(home, **changes), bundle=str(root)), []
    result = train_project(project, folder=home, cache=root.parent / "cache", events=Events(say=lines.append))
    return Bundle.open(root), lines, result


@pytest.fixture
def branches_win(monkeypatch):
    """Whatever they score; the branch of two layers is the best of them."""

    def two_layers(options, c):
        return {options[0].task: next(option for option in options if option.layers == 2)}

    monkeypatch.setattr(alternatives, "by_rule", two_layers)
    better = SimpleNamespace(
        choosing_score=selection_rule.choosing_score,
        selection_score=selection_rule.selection_score,
        best_of=lambda *given, **named: 1,
    )
    monkeypatch.setattr(alternatives, "selection_rule", better)
    grow = alternatives.grow
    every = {"search": "grid"}
    monkeypatch.setattr(
        alternatives,
        "grow",
        lambda p, *given, **named: grow(
            msgspec.structs.replace(p, strategy=msgspec.structs.replace(p.strategy, **every)), *given, **named
        ),
    )


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"validation": 0.3}], ids=["rows", "folds"])
def test_a_branch_that_is_kept_answers_as_it_was_scored_and_is_not_trained_again(home, tmp_path, branches_win, changes):
    bundle, lines, _ = trained(home, tmp_path / "bundle", **changes)
    assert len(private_layers(bundle.tasks["mood"].path)) == 2
    assert any(line.startswith("mood: a branch is kept: ") and "its 2 layers too" in line for line in lines)
    rows = [json.loads(line) for line in (home / "data" / "messages-test.jsonl").read_text().splitlines()]
    answers = Session(tmp_path / "bundle", backend="reference").predict([row["text"] for row in rows])
    right = sum(answer.answers["mood"]["label"] == row["mood"] for answer, row in zip(answers, rows, strict=True))
    notes = bundle.scores("mood")
    assert notes["splits"]["test"]["accuracy"] == pytest.approx(right / len(rows))
    assert {"branch of 1 layer", "attention"} <= notes["tried"].keys()
    assert notes["baselines"].keys() >= {"constant", "linear"}
    again = trained(home, tmp_path / "bundle", **changes)[2]
    assert again.kept == ("mood",) and not again.trained


def test_a_branch_that_is_not_clearly_better_leaves_the_head_as_it_was(home, tmp_path, monkeypatch):
    """Here none can be: a layer would have to gain 1,000 points."""
    by_rule = alternatives.by_rule
    monkeypatch.setattr(alternatives, "by_rule", lambda options, c: by_rule(options, 1000.0))
    bundle, lines, _ = trained(home, tmp_path / "bundle")
    said = next(line for line in lines if "no branch is kept" in line)
    assert "layer" in said and "a layer must gain 1 point, and more than chance" in said
    monkeypatch.setattr(heads, "tries_branches", lambda *given: False)
    alone = trained(home, tmp_path / "alone")[0]
    assert tiny_project.part_bytes(tmp_path / "bundle", "mood") == tiny_project.part_bytes(tmp_path / "alone", "mood")
    assert alone.scores("mood")["tried"].keys() < bundle.scores("mood")["tried"].keys()


def test_another_c_chooses_anew_where_branches_are_weighed_and_nowhere_else(home, tmp_path):
    for training in (BEST, msgspec.structs.replace(BEST, effort="default")):
        root = tmp_path / training.effort
        kept = []
        for c in (1.0, 1.0, 1000.0, 1000.0):
            project = msgspec.structs.replace(project_of(home, training=training), bundle=str(root))
            project = msgspec.structs.replace(project, allocation=AllocationRule(c=c))
            kept.append(bool(train_project(project, folder=home, cache=tmp_path / "cache").kept))
        assert kept == [False, True, training.effort == "default", True]


def test_another_c_changes_nothing_over_a_trunk_without_layers(home):
    """No branch can be weighed there; the tasks were trained again."""
    prepared = prepare(project_of(home), home)
    default, other = AllocationRule(), AllocationRule(c=1000.0)
    assert prepared[0].weighs_branches
    assert fingerprints_of(prepared, other, layers=0) == fingerprints_of(prepared, default, layers=0)
    assert fingerprints_of(prepared, other, layers=3) != fingerprints_of(prepared, default, layers=3)


SILENT = {"names": {"transitions": ((0.0, -99.0, -99.0),) * 4}, "topics": {"threshold": 0.9999}}


@pytest.mark.parametrize("name", SILENT)
def test_a_head_is_compared_as_it_answers(home, tmp_path, monkeypatch, name):
    """Here its own transitions, or its threshold, let it give no label: any branch that gives right ones is better."""
    train_task = heads.train_task

    def silent(*given, **named):
        part = train_task(*given, **named)
        return msgspec.structs.replace(part, task=msgspec.structs.replace(part.task, **SILENT[name]))

    monkeypatch.setattr(heads, "train_task", silent)
    monkeypatch.setattr(alternatives, "BRANCH_TRAINING", Training(epochs=20, patience=20, batch=8, learning_rate=5e-3))
    bundle, lines, _ = trained(home, tmp_path / "bundle", name=name)
    kept = next(line for line in lines if line.startswith(f"{name}: a branch is kept: "))
    assert " beside 0.0000 of the best head" in kept
    task, notes = bundle.tasks[name].task, bundle.scores(name)
    assert not task.transitions and task.threshold < 0.9
    score = notes["splits"]["validation"][kind_of(task).default_metric(task)]
    assert score in [reached for tried, reached in notes["tried"].items() if tried.startswith("branch of")]


def test_too_few_validation_rows_choose_no_branch(home, tmp_path, monkeypatch):
    """However good it is on these: of five rows a branch had all right, and of 500 others fewer than the head."""
    rows = len((home / "data" / "messages-validation.jsonl").read_text().splitlines())
    monkeypatch.setattr(alternatives, "LEAST_ROWS", rows + 1)
    bundle, lines, _ = trained(home, tmp_path / "bundle")
    few = f"{rows} validation rows cannot show that one is better: label more, or give {rows + 1}"
    assert f"mood: branches are not begun: {few}" in lines
    assert not any(name.startswith("branch") for name in bundle.scores("mood")["tried"])


def test_what_the_minutes_do_not_hold_is_not_begun_and_said(home, tmp_path, monkeypatch):
    """The clock stands; estimates alone decide."""
    monkeypatch.setattr(heads, "Clock", lambda: SimpleNamespace(wall=1.0))
    monkeypatch.setattr(alternatives, "rates_of", lambda *given: SimpleNamespace(encode=1.0, learn=1.0))
    training = msgspec.structs.replace(BEST, minutes=1.5 / 60)
    bundle, lines, _ = trained(home, tmp_path / "bundle", training=training)
    tried = bundle.scores("mood")["tried"]
    assert "attention" in tried and "attention, learned mix of layers" not in tried  # two seconds, and 1.5 were given
    assert any(line.startswith("mood: attention, learned mix of layers is not begun: ") for line in lines)
    assert any(line.startswith("mood: branches are not begun: they take ") for line in lines)


def test_fewer_minutes_try_shallower_branches(home, monkeypatch):
    """Of every limit the deepest search that fits, by the same estimate."""
    monkeypatch.setattr(alternatives, "rates_of", lambda *given: SimpleNamespace(encode=1e-3, learn=1e-2))
    (prepared,) = prepare(project_of(home), home)
    extractor = SimpleNamespace(data=beside_data(home))
    depths = []
    for minutes in (None, 1000.0, 2.0, 1.0, 0.5, 1e-6):
        training = msgspec.structs.replace(BEST, minutes=minutes)
        limited = msgspec.structs.replace(prepared, training=training)
        grown = alternatives._within(limited, extractor, Events(), spent=0.0)
        depths.append(0 if grown is None else grown.strategy.layers or grown.strategy.most)
    assert depths == sorted(depths, reverse=True) and depths[0] == depths[1] == 3 and depths[-1] == 0


def beside_data(home):
    from polyhead.project.pretrained import load_trunk

    return load_trunk(str(home / "trunk"))


def test_minutes_are_a_setting_of_training_everywhere(home):
    entry = with_effort(project_of(home, training=Training()), "best", 5.0).tasks[0]
    assert (entry.training.effort, entry.training.minutes) == ("best", 5.0)
    assert with_effort(project_of(home)) == project_of(home)
    given = settings_of("mood", {"effort": "best", "minutes": 5.0, "training": {"batch": 8}})["training"]
    assert (given.effort, given.minutes, given.batch) == ("best", 5.0, 8)
    with pytest.raises(ConfigError, match="minutes"):
        Training(minutes=0.0)


def test_minutes_without_the_effort_that_they_limit_are_told(home):
    training = msgspec.structs.replace(BEST, effort="quick", minutes=5.0)
    (line,) = effort_lines(prepare(project_of(home, training=training), home), "frozen")
    assert line == "minutes change nothing for mood: they limit effort 'best'"


def test_no_minutes_leave_a_fingerprint_as_it_was(home):
    """Bundles of earlier versions are not trained again."""
    (prepared,) = prepare(project_of(home), home)
    assert "minutes" not in prepared.fingerprint()["training"]
    limited = msgspec.structs.replace(prepared, training=msgspec.structs.replace(BEST, minutes=3.0))
    assert limited.fingerprint() != prepared.fingerprint()
