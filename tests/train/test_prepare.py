"""Rows that are held out by tasks of one file: the same ones wherever what is learned is shared."""

import random

import msgspec
import pytest

from polyhead.project.recipes import Frozen, Joint
from polyhead.project.strategies import InLayer, Pooled, Prompted
from polyhead.project.tables import TaskEntry, TrunkChoice
from polyhead.train.data.leaks import without_leaks
from polyhead.train.data.prepare import prepare
from polyhead.train.data.task_groups import prepare_groups
from polyhead.train.events import Events
from polyhead.train.run import train_project
from support import tiny_project

ROWS, TASKS = 300, 8


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A file with a column of labels for each of many tasks, and the same texts once more in another file."""
    folder, chance = tmp_path_factory.mktemp("home"), random.Random(0)
    rows = [
        {
            "text": f"message number {i} is about {chance.choice(tiny_project.THINGS)} and "
            f"{chance.choice(tiny_project.PEOPLE)}"
        }
        | {f"l{k}": chance.choice("ab") for k in range(TASKS)}
        | {"score": chance.random()}
        for i in range(ROWS)
    ]
    tiny_project.write_jsonl(folder / "all.jsonl", rows)
    tiny_project.write_jsonl(folder / "again.jsonl", [{**row, "text": row["text"].upper()} for row in reversed(rows)])
    tiny_project.write_trunk(folder / "trunk")
    return folder


def entry(number, **changes):
    given = {"kind": "single_label", "labels": ("a", "b"), "label": f"l{number}", "train": "all.jsonl"}
    return TaskEntry(name=f"t{number}", **{**given, **changes})


def project(*entries, **changes):
    training = msgspec.structs.replace(tiny_project.TRAINING, epochs=1)
    made = {
        "recipe": Joint(),
        "strategy": tiny_project.STRATEGY,
        "training": training,
        "trunk": TrunkChoice(name="trunk"),
    }
    return tiny_project.Project(tasks=entries, **{**made, **changes})


def texts_of(split):
    return {given[0].lower() for given in split.examples.inputs}


@pytest.mark.parametrize("count", [2, TASKS])
def test_tasks_of_one_file_hold_out_the_same_texts(home, count):
    """Each held out other rows, and training rows of the others were dropped: half of them with eight tasks."""
    prepared = prepare(project(*map(entry, range(count))), home)
    held = [texts_of(p.validation) for p in prepared]
    assert all(one == held[0] for one in held) and abs(len(held[0]) - ROWS / 10) <= 3
    kept, report = without_leaks(prepared)
    assert kept == prepared and not report.leaks
    assert {len(p.train.examples.inputs) for p in kept} == {ROWS - len(held[0])}


def test_the_same_texts_in_another_file_are_held_out_too(home):
    number = entry(2, kind="regression", labels=(), range=(0.0, 1.0), label="score", train="again.jsonl")
    one, other, third = prepare(project(entry(0), entry(1, train="again.jsonl"), number), home)
    assert texts_of(one.validation) == texts_of(other.validation) == texts_of(third.validation)
    assert without_leaks([one, other, third])[1].dropped == ()


@pytest.mark.parametrize(
    ("strategy", "is_shared"),
    [
        (Pooled(), False),
        (InLayer(hidden=6), False),
        (InLayer(hidden=6, pooler="shared"), True),
        (Prompted(hidden=6), True),
        (Prompted(hidden=6, isolated=True), False),
    ],
    ids=["pooled", "private", "shared pooler", "prompts", "isolated"],
)
def test_tasks_that_share_what_they_learn_hold_out_the_same_texts(home, strategy, is_shared):
    made = project(entry(0), entry(1), recipe=Frozen(), strategy=strategy)
    one, other = prepare(made, home)
    assert (texts_of(one.validation) == texts_of(other.validation)) == is_shared
    alone = prepare(project(entry(0), recipe=Frozen(), strategy=strategy), home)[0]
    assert (one.validation.digest == alone.validation.digest) != is_shared
    kept = prepare_groups([one, other], Events())
    assert [p.train.digest for p in kept] == [one.train.digest, other.train.digest]


def test_a_task_without_a_text_of_another_holds_out_what_it_does_alone(home, tmp_path):
    rows = [{"text": f"nowhere else {i}", "l9": "ab"[i % 2]} for i in range(40)]
    file = str(tiny_project.write_jsonl(tmp_path / "own.jsonl", rows))
    both = prepare(project(entry(0), entry(9, train=file)), home)
    for one in both:
        given = entry(0) if one.task.name == "t0" else entry(9, train=file)
        (alone,) = prepare(project(given), home)
        assert one.fingerprint() == alone.fingerprint()


def test_rows_that_other_splits_cost_are_told_with_their_task(home, tmp_path):
    """Two shares of one file: what the one holds out beyond the other is lost to that one, and said."""
    said = []
    made = project(entry(0), entry(1, validation=0.3), bundle=str(tmp_path / "bundle"))
    one, other = prepare(made, home)
    lost = len(texts_of(one.train) & texts_of(other.validation))
    back = len(texts_of(other.train) & texts_of(one.validation))
    assert lost > 0
    train_project(made, folder=home, events=Events(say=said.append))
    kept = f"t0: {lost} of {len(one.train.examples.inputs)} training rows dropped, with texts of t1 validation ({lost})"
    assert kept in said
    assert any(line.startswith(f"t1: {back} of") for line in said) == (back > 0)


@pytest.mark.slow
def test_a_unit_whose_data_is_as_before_is_not_trained_again(home, tmp_path):
    made = project(entry(0), entry(1), recipe=Frozen(), strategy=Prompted(hidden=6), bundle=str(tmp_path / "bundle"))
    train_project(made, folder=home)
    assert train_project(made, folder=home).kept == ("t0", "t1")
    other = msgspec.structs.replace(made, tasks=(entry(0, validation=0.2), entry(1, validation=0.2)))
    assert train_project(other, folder=home).kept == ()


def test_the_metric_fits_the_labels_of_all_rows_to_learn_from(tmp_path):
    """One row of each of two labels was scored by `matthews`: the metric was chosen without the row held out."""
    tiny_project.write_jsonl(tmp_path / "two.jsonl", [{"text": "good", "l0": "a"}, {"text": "bad", "l0": "b"}])
    (prepared,) = prepare(project(entry(0, train="two.jsonl"), recipe=Frozen(), strategy=Pooled()), tmp_path)
    assert len(prepared.train.examples.targets) == 1 and prepared.task.metric is None
