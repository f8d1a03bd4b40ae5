"""What was decided stays decided: versions that people went back to, tasks that they removed, what is better."""

import json
import shutil

import msgspec
import numpy as np
import pytest

from polyhead.bundle.journal import FILE, Attempt, keep_attempts, read_attempts
from polyhead.bundle.manifest import Live
from polyhead.bundle.read import Bundle
from polyhead.bundle.remove import remove_tasks
from polyhead.engine.session import Session
from polyhead.errors import BundleError, ConfigError, CorruptFile, UnknownTask
from polyhead.evaluate.held_out import held_out_file, read_held_out
from polyhead.project.recipes import FineTune, Joint, SearchGrid
from polyhead.project.tables import DataFile
from polyhead.tasks.task import Task
from polyhead.train.data import prepared as prepared_rows
from polyhead.train.data.prepare import prepare
from polyhead.train.events import Events
from polyhead.train.heads import run as running
from polyhead.train.record import comparison as comparison_module
from polyhead.train.record.selection import TrainOptions, VersionDecisions, select_tasks, skipped_line
from polyhead.train.run import train_project
from support import tiny_project
from support.cases import cases
from support.split_scores import split_scores

GOOD = msgspec.structs.replace(tiny_project.TRAINING, epochs=20, patience=20, learning_rate=2e-2)
POOR = msgspec.structs.replace(tiny_project.TRAINING, epochs=1, learning_rate=1e-5)
OTHER = msgspec.structs.replace(POOR, seed=5)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with trunk and data; every test has a bundle of its own and the kept features of all."""
    folder = tmp_path_factory.mktemp("decided")
    tiny_project.project(folder)
    return folder


@pytest.fixture
def train(home, tmp_path):
    """Trains tiny tasks into the test's bundle: the outcome, and what was said."""

    def run(
        *names,
        training=POOR,
        validation=None,
        test=None,
        strategy=tiny_project.STRATEGY,
        labels=None,
        tested=True,
        train=None,
        **asked,
    ):
        project = tiny_project.project(home, *(names or ("mood",)), training=training, strategy=strategy)
        changes = {"validation": validation, "test": test, "labels": labels, "train": train}
        changes = {key: value for key, value in changes.items() if value is not None}
        changes |= {} if tested else {"test": None}
        tasks = tuple(msgspec.structs.replace(entry, **changes) for entry in project.tasks)
        project = msgspec.structs.replace(project, tasks=tasks, bundle=str(tmp_path / "bundle"))
        lines = []
        cache = home / "cache" if strategy is tiny_project.STRATEGY else tmp_path / "cache"
        outcome = train_project(project, folder=home, cache=cache, events=Events(say=lines.append), **asked)
        return outcome, "\n".join(lines)

    run.root, run.home = tmp_path / "bundle", home
    return run


def content(root):
    """Every file of a bundle but its locks and certificates."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name != ".lock" and "certificates" not in path.parts
    }


def test_a_version_that_a_person_went_back_to_stays_live_until_its_task_is_named(train):
    """The next run trained it again and undid the rollback."""
    train()
    train(training=OTHER)
    bundle = Bundle.open(train.root)
    assert bundle.versions("mood") == ["v0001", "v0002"] and not bundle.lines["mood"].pinned
    bundle.set_version("mood", "v0001")
    before = content(train.root)
    for training in (OTHER, GOOD):
        outcome, said = train(training=training)
        assert "mood: its live version v0001 is pinned" in said and "--retrain mood" in said
        assert not outcome.trained and not outcome.kept and set(outcome.left) == {"mood"}
        assert content(train.root) == before
    outcome, said = train()  # the declaration that made the live version: there is nothing to say
    assert outcome.kept == ("mood",) and "pinned" not in said
    outcome, _ = train(training=OTHER, retrain=("mood",))
    bundle = Bundle.open(train.root)
    assert set(outcome.trained) == {"mood"} and bundle.version("mood") == "v0003"
    assert not bundle.lines["mood"].pinned
    assert train(training=OTHER)[0].kept == ("mood",)


def test_going_forward_to_the_newest_version_is_no_decision_against_newer_ones(train):
    train()
    train(training=OTHER)
    before = content(train.root)
    Bundle.open(train.root).set_version("mood", "v0001")
    Bundle.open(train.root).set_version("mood", "v0002")
    assert content(train.root) == before
    assert set(train()[0].trained) == {"mood"}


def test_a_removed_task_stays_away_until_it_is_named_and_others_go_on(train):
    """Its table was still in the project file, so the next run trained it again."""
    train("mood", "urgency")
    remove_tasks(train.root, ["mood"])
    for training in (POOR, OTHER):
        outcome, said = train("mood", "urgency", training=training)
        assert "mood: it was removed from the bundle, and its table is still in the project file" in said
        assert set(outcome.left) == {"mood"} and tuple(Bundle.open(train.root).tasks) == ("urgency",)
    assert outcome.trained.keys() == {"urgency"} and Bundle.open(train.root).removed == ("mood",)
    outcome, _ = train("mood", "urgency", training=OTHER, retrain=("mood",))
    bundle = Bundle.open(train.root)
    assert outcome.kept == ("urgency",) and set(bundle.tasks) == {"mood", "urgency"} and not bundle.removed


def test_a_task_that_is_named_is_trained_though_it_was_trained_so_already(train):
    train()
    first = tiny_project.part_bytes(train.root, "mood")
    outcome, said = train(retrain=("mood",))
    assert set(outcome.trained) == {"mood"} and Bundle.open(train.root).version("mood") == "v0002"
    assert tiny_project.part_bytes(train.root, "mood") == first  # same seed, same bytes
    assert "0 answers changed" in said


def test_names_to_train_again_must_be_the_projects_and_the_runs(train):
    with pytest.raises(UnknownTask, match="declares no such task"):
        train(retrain=("moods",))
    with pytest.raises(ConfigError, match="leaves out"):
        train("mood", "urgency", only=("mood",), retrain=("urgency",))
    assert not train.root.exists()


def answers(root, home, task):
    """What the live version answers on the validation file, and its metrics there."""
    project = tiny_project.project(home, task)
    session = Session(root, backend="reference")
    (score,) = split_scores(session, project, folder=home, split="validation")
    texts = [json.loads(x)["text"] for x in (home / "data/messages-validation.jsonl").read_text().splitlines()]
    found = [result.answers[task] for result in session.predict(texts, tasks=[task])]
    return found, score.scores


WHAT = {"mood": ("label", "accuracy"), "topics": ("labels", "micro_f1"), "names": ("spans", "span_f1")}


@pytest.mark.slow
@pytest.mark.parametrize("task", WHAT)
def test_the_old_and_the_new_score_and_the_answers_that_changed_are_said(train, home, task):
    """By another backend: scores of both versions, and how many rows have another answer."""
    what, metric = WHAT[task]
    train(task)
    before, old = answers(train.root, home, task)
    outcome, said = train(task, training=GOOD)
    after, new = answers(train.root, home, task)

    def said_by(answer):
        value = answer[what]
        return [{k: v for k, v in one.items() if k != "score"} for one in value] if what == "spans" else value

    changed = sum(said_by(one) != said_by(other) for one, other in zip(before, after, strict=True))
    found = outcome.compared[task]
    assert (found.rows, found.of, found.changed, found.held_out) == (12, 12, changed, True)
    assert (found.live, found.new) == pytest.approx((old[metric], new[metric]), abs=1e-6)
    answer = "1 answer" if changed == 1 else f"{changed} answers"
    line = f"{task}: {metric} {old[metric]:.4f} -> {new[metric]:.4f} on 12 validation rows, {answer} changed"
    assert line in said.splitlines()


def test_numbers_count_as_changed_from_a_hundredth_of_their_range(train, home):
    train("urgency")
    before, _ = answers(train.root, home, "urgency")
    outcome, said = train("urgency", training=GOOD)
    after, _ = answers(train.root, home, "urgency")
    moved = np.abs([a["value"] - b["value"] for a, b in zip(before, after, strict=True)])
    assert outcome.compared["urgency"].changed == int((moved > 0.01).sum()) > 0
    assert "answers changed by more than 0.01" in said


def test_only_a_better_version_replaces_the_live_one_where_that_is_asked(train):
    train(training=GOOD)
    before = content(train.root)
    outcome, said = train(if_better=True)
    comparison = outcome.compared["mood"]
    assert comparison.new <= comparison.live and set(outcome.left) == {"mood"} and not outcome.trained
    assert "not better, so v0001 stays live" in said
    after = content(train.root)
    assert after.pop(FILE) and after == before
    Session(train.root).predict(["the lamp is good"])  # the bundle is whole


def test_what_lost_once_is_not_tried_again_until_something_changes(train, monkeypatch):
    train(training=GOOD)
    train(if_better=True)
    with monkeypatch.context() as patched:
        patched.setattr(running, "train_task", lambda *_, **__: pytest.fail("it was tried before"))
        for asked in ({"if_better": True}, {}):
            outcome, said = train(**asked)
            assert set(outcome.left) == {"mood"}
            assert "trained this way it lost to its live version v0001 (accuracy" in said
    assert "mood" in train(training=OTHER, if_better=True)[0].compared  # another way of training is tried
    assert train(retrain=("mood",))[0].trained  # and the first by its name, whatever it scores
    assert Bundle.open(train.root).version("mood") == "v0002" and not read_attempts(train.root)


def test_a_better_version_goes_live_and_a_tie_does_not(train):
    train()
    outcome, _ = train(training=GOOD, if_better=True)
    assert set(outcome.trained) == {"mood"} and outcome.compared["mood"].is_better
    assert Bundle.open(train.root).version("mood") == "v0002"
    outcome, _ = train(training=GOOD, if_better=True, retrain=("mood",))
    assert outcome.compared["mood"].live == outcome.compared["mood"].new and set(outcome.left) == {"mood"}


def earlier_answers(train):
    """What the live version answered rows held out, by their text."""
    record = Bundle.open(train.root).record("mood")
    kept, whole = read_held_out(held_out_file(train.home / "cache", "mood", record.arrays)), whole_rows(train)
    return {whole.inputs[whole.rows.index(row)]: output for row, output in zip(kept.rows, kept.outputs, strict=True)}


def whole_rows(train, **changes):
    return prepare(tiny_project.project(train.home, "mood", validation=0.3, **changes), train.home)[0].whole


def test_where_other_rows_are_held_out_both_count_by_their_answers_from_before(train):
    train(validation=0.3, tested=False)
    outcome, said = train(validation=0.3, training=OTHER, tested=False)  # another seed holds other rows out
    assert outcome.compared["mood"].held_out and "may have been trained" not in said
    outcome, said = train(validation=0.3, training=msgspec.structs.replace(OTHER, epochs=2), tested=False)
    assert "answers changed" in said or "1 answer changed" in said
    assert outcome.compared["mood"].held_out and "may have been trained" not in said


def test_where_nobody_knows_what_the_old_version_learned_from_it_wins_by_no_score(train):
    """It was asked for rows that it had learned from, and won nearly always."""
    few = DataFile(path="data/messages-train.jsonl", limit=20)
    train(validation=0.3, tested=False, train=few, training=GOOD)
    forget(train)
    before = content(train.root)
    for _ in range(2):  # it is no loss: the same way of training is tried again
        outcome, said = train(validation=0.3, tested=False, if_better=True)
        assert "mood: no fair comparison: of the 32 validation rows" in said and "so v0001 stays live" in said
        assert "give such rows as a test or validation file" in said and "not better" not in said and "->" not in said
        assert not outcome.trained and content(train.root) == before
    outcome, said = train(validation=0.3, tested=False)
    assert "no fair comparison" in said and set(outcome.trained) == {"mood"}
    forget(train)
    outcome, _ = train(validation=0.3, training=OTHER, train=few, if_better=True)  # with a test file
    assert outcome.compared["mood"].split == "test" and outcome.compared["mood"].rows == 12


def test_where_nobody_knows_it_a_new_version_that_is_better_even_so_wins(train):
    """The old one may have learned from the rows, which is no help to the new one."""
    train(validation=0.3, tested=False, train=DataFile(path="data/messages-train.jsonl", limit=20))
    forget(train)
    outcome, said = train(validation=0.3, tested=False, training=GOOD, if_better=True)
    assert outcome.compared["mood"].is_better and set(outcome.trained) == {"mood"}
    assert "so it may have been trained on some of these" in said


def forget(train):
    """As if the cache were of another machine."""
    shutil.rmtree(train.home / "cache" / "held" / "mood")


def test_rows_that_the_old_version_learned_from_are_left_out(train, monkeypatch):
    """Without folds: what it held out or never saw counts, if these rows are 30, or all."""
    monkeypatch.setattr(prepared_rows, "FOLDED_BELOW", 0)
    few = DataFile(path="data/messages-train.jsonl", limit=20)
    train(validation=0.3, tested=False, train=few)
    old, rows = earlier_answers(train), whole_rows(train)
    learned = set(rows.inputs[:20]) - set(old)
    now = prepare(tiny_project.project(train.home, "mood", validation=0.3), train.home)[0].validation.examples
    fair = [row for row, text in enumerate(now.inputs) if text not in learned]
    assert 0 < len(fair) < len(now.inputs)
    outcome, said = train(validation=0.3, tested=False, training=GOOD, if_better=True)
    assert "no fair comparison" in said and not outcome.trained
    monkeypatch.setattr(comparison_module, "LEAST_ROWS", 1)
    live = Session(train.root)
    task, taken = live.records["mood"].task, now.take(fair)
    outputs = [old[text] if text in old else live.outputs("mood", [text])[0] for text in taken.inputs]
    outcome, said = train(validation=0.3, tested=False, training=GOOD)
    comparison = outcome.compared["mood"]
    assert (comparison.rows, comparison.of, comparison.held_out) == (len(fair), len(now.inputs), True)
    assert comparison.live == pytest.approx(taken.scores(task, outputs)["accuracy"])
    assert f"on {len(fair)} of {len(now.inputs)} validation rows" in said


def test_versions_that_learned_from_their_validation_rows_are_compared_on_test_rows(train):
    """Where a share of few rows is held out, the kept part learns from all of them in the end."""
    train(validation=0.3)
    first = Bundle.open(train.root).scores("mood")
    outcome, said = train(validation=0.3, training=OTHER)
    second = Bundle.open(train.root).scores("mood")
    assert first["refitted"] and second["refitted"]
    comparison = outcome.compared["mood"]
    assert comparison.split == "test" and "test rows" in said and "may have been trained" not in said
    assert comparison.live == pytest.approx(first["splits"]["test"]["accuracy"])
    assert comparison.new == pytest.approx(second["splits"]["test"]["accuracy"])


def test_test_rows_that_the_old_version_may_have_learned_from_are_said(train, home):
    """Rows of train were moved to a test file afterwards, and nothing is kept of what the old version answered them."""
    train(validation=0.3, tested=False)
    forget(train)
    moved = DataFile(path="data/messages-train.jsonl", limit=12)
    outcome, said = train(validation=0.3, training=OTHER, test=moved)
    comparison = outcome.compared["mood"]
    assert comparison.split == "test" and not comparison.held_out
    assert "the old version was scored on other test rows, so it may have been trained on some of these" in said


def test_test_rows_that_are_training_rows_too_count_alike_for_both_versions(train):
    """The old version counted by its answers out of fold, and the new one by what it had learned."""
    moved = DataFile(path="data/messages-train.jsonl", limit=12)
    train(validation=0.3, tested=False, training=GOOD)
    old = earlier_answers(train)
    comparison = train(validation=0.3, training=msgspec.structs.replace(GOOD, seed=5), test=moved)[0].compared["mood"]
    new, rows = earlier_answers(train), whole_rows(train).take(range(12))
    task = Bundle.open(train.root).tasks["mood"].task
    assert (comparison.split, comparison.rows, comparison.held_out) == ("test", 12, True)
    for score, answers in ((comparison.live, old), (comparison.new, new)):
        assert score == pytest.approx(rows.scores(task, [answers[text] for text in rows.inputs])["accuracy"])
    learned = rows.scores(task, Session(train.root).outputs("mood", rows.inputs))["accuracy"]
    assert comparison.new != pytest.approx(learned), "else the test shows nothing"


def test_test_rows_that_the_new_version_learned_from_are_left_out_too(train, monkeypatch):
    """Without folds nothing tells how it would answer them, as for the old version."""
    monkeypatch.setattr(prepared_rows, "FOLDED_BELOW", 0)
    monkeypatch.setattr(comparison_module, "LEAST_ROWS", 1)
    train(validation=0.3, tested=False, train=DataFile(path="data/messages-train.jsonl", limit=8))
    old = earlier_answers(train)
    moved = DataFile(path="data/messages-train.jsonl", limit=24)
    comparison = train(validation=0.3, training=GOOD, test=moved)[0].compared["mood"]
    new, rows = earlier_answers(train), whole_rows(train).inputs
    fair = [text for text in rows[:24] if text in new and (text in old or text not in rows[:8])]
    assert (comparison.split, comparison.rows, comparison.of) == ("test", len(fair), 24) and 0 < len(fair) < 24


def test_without_test_rows_grown_data_are_compared_on_the_same_rows(train):
    """The old version by its answers out of fold, and to rows that are new: it was asked for what it had learned."""
    few = DataFile(path="data/messages-train.jsonl", limit=20)
    train(validation=0.3, tested=False, training=GOOD, train=few)
    live, old, rows = Session(train.root), earlier_answers(train), whole_rows(train)
    outcome, said = train(validation=0.3, tested=False)
    comparison, notes = outcome.compared["mood"], Bundle.open(train.root).scores("mood")
    assert notes["folds"] and comparison.rows == comparison.of == 32 and comparison.held_out
    outputs = [old[text] if text in old else live.outputs("mood", [text])[0] for text in rows.inputs]
    task = Bundle.open(train.root).tasks["mood"].task
    assert len(old) == 20 and comparison.live == pytest.approx(rows.scores(task, outputs)["accuracy"])
    assert comparison.live < rows.scores(task, live.outputs("mood", rows.inputs))["accuracy"]
    assert comparison.new == pytest.approx(notes["splits"]["validation"]["accuracy"])
    assert "on 32 validation rows" in said and "may have been trained" not in said


def test_without_test_rows_the_scores_of_training_on_the_same_rows_are_compared(train):
    train(validation=0.3, tested=False)
    first = Bundle.open(train.root).scores("mood")["splits"]["validation"]["accuracy"]
    longer = msgspec.structs.replace(POOR, epochs=2)
    outcome, _ = train(validation=0.3, training=longer, tested=False)
    second = Bundle.open(train.root).scores("mood")["splits"]["validation"]["accuracy"]
    comparison = outcome.compared["mood"]
    assert (comparison.live, comparison.new, comparison.held_out) == (first, second, True)


def test_versions_that_answer_different_questions_are_not_compared(train):
    train()
    outcome, said = train(labels=("bad", "good", "other"), if_better=True)
    assert "its live version answers something else (another labels)" in said and set(outcome.left) == {"mood"}
    outcome, said = train(labels=("bad", "good", "other"))
    assert "mood: not compared with v0001" in said and not outcome.compared and set(outcome.trained) == {"mood"}


def test_other_test_rows_alone_train_and_publish_nothing(train, home):
    train()
    before = content(train.root)
    fewer = DataFile(path="data/messages-test.jsonl", limit=5)
    outcome, said = train(test=fewer)
    assert outcome.kept == ("mood",) and outcome.extraction.passes == 0 and content(train.root) == before
    assert "mood: its test rows are others than those of its scores" in said and "polyhead evaluate" in said
    assert "test rows" not in train()[1]
    project = msgspec.structs.replace(tiny_project.project(home, "mood"), bundle=str(train.root))
    (entry,) = project.tasks
    project = msgspec.structs.replace(project, tasks=(msgspec.structs.replace(entry, test=fewer),))
    assert split_scores(Session(train.root), project, folder=home)[0].rows == 5


def test_learned_trunks_know_nothing_of_test_rows_either(home, tmp_path):
    recipes = {
        "joint": Joint(),
        "fine_tune": FineTune(search=SearchGrid(learning_rates=(1e-4,), epsilons=(1e-8,), dropouts=(0.0,))),
    }
    fewer = DataFile(path="data/messages-test.jsonl", limit=5)
    for name, recipe in recipes.items():
        made = tiny_project.project(home, "mood", training=msgspec.structs.replace(tiny_project.SEARCHED, epochs=1))
        made = msgspec.structs.replace(made, recipe=recipe, bundle=str(tmp_path / name))
        train_project(made, folder=home)
        before = content(tmp_path / name)
        tasks = (msgspec.structs.replace(made.tasks[0], test=fewer),)
        known = train_project(msgspec.structs.replace(made, tasks=tasks), folder=home)
        assert (known.bundles.get("mood") or known).kept == ("mood",)
        assert content(tmp_path / name) == before


# What a run trains, by hand: tasks a, b, c with v0001 live unless said otherwise; u and v are one unit.

LIVE = Live(version="v0001", record="0" * 64)
PINNED = Live(version="v0001", record="0" * 64, pinned=True)
LOST = Attempt(fingerprint="tag", record="0" * 64, metric="accuracy", live=0.9, tried=0.8)
ONE, TWO = (Task(name="t", kind="single_label", labels=labels) for labels in (("a", "b"), ("a", "c")))
CASES = {
    "nothing": ({}, {}, [], {}, {"a", "b"}, set()),
    "pinned": ({"a": PINNED}, {}, [], {}, {"b"}, {"a"}),
    "removed": ({}, {}, ["a"], {}, {"b"}, {"a"}),
    "lost": ({"a": LIVE}, {"a": LOST}, [], {}, {"b"}, {"a"}),
    "lost another way": ({"a": LIVE}, {"a": msgspec.structs.replace(LOST, fingerprint="x")}, [], {}, {"a", "b"}, set()),
    "pinned and named": ({"a": PINNED}, {}, [], {"retrain": ("a",)}, {"a", "b"}, set()),
    "removed and named": ({}, {}, ["a"], {"retrain": ("a",)}, {"a", "b"}, set()),
    "lost and named": ({"a": LIVE}, {"a": LOST}, [], {"retrain": ("a",)}, {"a", "b"}, set()),
    "all pinned": ({"a": PINNED, "b": PINNED, "u": PINNED}, {}, [], {}, set(), {"a", "b"}),
    "done and named": ({}, {}, [], {"retrain": ("c",)}, {"a", "b", "c"}, set()),
    "another is named": ({"a": PINNED}, {}, [], {"retrain": ("b",)}, {"b"}, {"a"}),
    "other labels": ({"a": LIVE}, {}, [], {"if_better": True}, {"b"}, {"a"}),
    "other labels and named": ({"a": LIVE}, {}, [], {"if_better": True, "retrain": ("a",)}, {"a", "b"}, set()),
}


@cases("case", CASES)
def test_what_a_run_trains_and_what_it_leaves(case):
    lines, attempts, removed, wish, todo, left = CASES[case]
    decisions = VersionDecisions(lines=lines, removed=removed, attempts=attempts)
    found = select_tasks(
        {"a", "b"},
        (),
        dict.fromkeys("abcu", "tag"),
        decisions,
        TrainOptions(**wish),
        {"a": (ONE, TWO), "b": (ONE, ONE)},
    )
    assert (found.todo, set(found.left)) == (todo, left)
    assert all(f"--retrain {name}" in skipped_line(name, reason) for name, reason in found.left.items())


@cases("new", [set(), {"u"}, {"v"}, {"u", "v"}], ids=["none", "first", "second", "both"])
@cases("held", ["", "u", "v", "uv"])
@cases("named", ["", "u", "v", "uv"])
def test_a_unit_is_trained_whole_or_not_at_all(new, held, named):
    decisions = VersionDecisions(lines=dict.fromkeys(held, PINNED), removed=(), attempts={})
    tags = dict.fromkeys("auv", "tag")
    found = select_tasks({"a", *new}, [("u", "v")], tags, decisions, TrainOptions(retrain=tuple(named)), {})
    asked, stays = bool(new) or bool(named), bool(set(held) - set(named))
    assert found.todo == {"a", *("uv" if asked and not stays else "")}
    assert set(found.left) == ({*new, *named} if asked and stays else set())


def test_attempts_count_while_the_version_that_they_lost_to_is_live(train):
    train("mood", "urgency")
    lines = Bundle.open(train.root).lines
    lost = {name: msgspec.structs.replace(LOST, record=line.record) for name, line in lines.items()}
    keep_attempts(train.root, {**lost, "nobody": LOST})
    assert read_attempts(train.root) == lost
    train("mood", "urgency", training=OTHER, only=("mood",))
    assert set(read_attempts(train.root)) == {"urgency"}


def test_an_attempt_without_a_score_is_not_recorded(train):
    """JSON has no such number: the list could not be read again, and nothing be trained."""
    train("mood", "urgency")
    lost = {
        name: msgspec.structs.replace(LOST, record=line.record) for name, line in Bundle.open(train.root).lines.items()
    }
    keep_attempts(train.root, {**lost, "mood": msgspec.structs.replace(lost["mood"], tried=float("nan"))})
    assert read_attempts(train.root) == {"urgency": lost["urgency"]}


@pytest.mark.parametrize(
    "raw",
    [b"", b"[]", b"{", b'{"attempts": []}', b'{"attempts": {"mood": 1}}', b'{"attempts": {"mood": {}}}', b'{"x": 1}'],
)
def test_a_damaged_list_of_attempts_is_named(train, raw):
    train()
    (train.root / FILE).write_bytes(raw)
    with pytest.raises(CorruptFile, match=FILE) as caught:
        train(training=OTHER)
    assert "delete it" in caught.value.do


def rows_of(labels, count=24):
    """Rows of a task `mood`, of these labels in turn."""
    return [
        {"text": f"the {labels[i % len(labels)]} text number {i}", "mood": labels[i % len(labels)]}
        for i in range(count)
    ]


@pytest.fixture
def classes(home, tmp_path):
    """Trains a task on rows of some labels, of which the project declares its own: the bundle after it."""

    def run(taught, declared=None, *, kind="single_label", label=lambda name: name, **asked):
        rows = [{"text": row["text"], "mood": label(row["mood"])} for row in rows_of(taught)]
        (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (entry,) = tiny_project.project(home, "mood", training=POOR).tasks
        labels = tuple(declared or taught)
        fields = {"kind": kind, "label": "mood", "labels": labels, "train": str(tmp_path / "rows.jsonl")}
        entry = msgspec.structs.replace(entry, **fields, validation=0.25, test=None, positive=None, metric=None)
        project = msgspec.structs.replace(
            tiny_project.project(home, "mood"), tasks=(entry,), bundle=str(tmp_path / "bundle")
        )
        train_project(project, folder=home, cache=tmp_path / "cache", events=Events(), **asked)
        return Bundle.open(tmp_path / "bundle")

    run.root = tmp_path / "bundle"
    return run


@pytest.mark.parametrize("declared", [None, ("a", "b", "c", "x", "y")], ids=["undeclared", "declared"])
def test_a_version_that_loses_labels_goes_live_only_where_that_is_said(classes, declared):
    """Rows of new classes alone replaced a task that knew three by one that answered everything with two."""
    classes(("a", "b", "c"))
    before = content(classes.root)
    with pytest.raises(BundleError, match="3 of the 3 labels of its live version v0001 have no row") as raised:
        classes(("x", "y"), declared)
    assert raised.value.lost == ("a", "b", "c") and "--allow-lost-labels" in str(raised.value)
    assert content(classes.root) == before
    bundle = classes(("x", "y"), declared, allow_lost_labels=True)
    assert bundle.version("mood") == "v0002" and bundle.versions("mood") == ["v0001", "v0002"]
    unseen = bundle.tasks["mood"].trained_with.get("no_rows", [])
    assert unseen == ([] if declared is None else ["a", "b", "c"])


def test_labels_that_no_row_ever_had_are_not_lost(classes):
    """What a person let go once is not asked for again."""
    classes(("a", "b"), ("a", "b", "never"))
    bundle = classes(("b", "a", "x"), ("a", "b", "never", "x"))
    assert bundle.version("mood") == "v0002"
    with pytest.raises(BundleError, match="1 of the 3 labels .* has no row"):
        classes(("a", "b"), ("a", "b", "x"))
    classes(("a", "b"), ("a", "b", "x"), allow_lost_labels=True)
    assert classes(("b", "a", "b"), ("a", "b", "x")).version("mood") == "v0004"


def test_several_labels_a_row_are_lost_one_by_one(classes):
    classes(("a", "b", "c"), kind="multi_label", label=lambda name: [name, "c"])
    with pytest.raises(BundleError, match="1 of the 3 labels") as raised:
        classes(("a", "c"), ("a", "b", "c"), kind="multi_label", label=lambda name: [name])
    assert raised.value.lost == ("b",)
