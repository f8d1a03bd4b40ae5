"""The MT-DNN rows, with tiny tasks and a tiny trunk: what learns from what, and rows as the study's others are."""

import msgspec
import numpy as np
import pytest

from polyhead.deep.recipes.sampling import Mixture
from polyhead.project.recipes import Training
from polyhead.testing import tiny_trunk
from studies.results import Study
from studies.wei2021 import missing, runs_of, table2
from studies.wei2021.joint import RECIPE, TogetherRuns
from studies.wei2021.tasks import Size
from support import tiny_project

QUICK = Training(epochs=1, patience=1, batch=8, learning_rate=1e-3, precision="float32")
NAMES = ("mood", "urgency", "same")
METRICS = {"mood": "accuracy", "urgency": "pearson", "same": "accuracy"}


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    tiny_project.write_data(root / "data", train=40)
    made = runs_in(root, root / "r.jsonl")
    made.together([1, 2])
    made.left_out(NAMES, [1])
    return root, made


def runs_in(root, file, **changes):
    tasks = {
        name: msgspec.structs.replace(
            tiny_project.ENTRIES[name],
            metric=METRICS[name],
            train=str(root / tiny_project.ENTRIES[name].train),
            test=str(root / tiny_project.ENTRIES[name].test),
        )
        for name in NAMES
    }
    named = {"size": Size(train=24, validation=8), "training": QUICK, "trunk": tiny_trunk(), "tasks": tasks}
    return TogetherRuns(root, root / "made", Study(file), **{**named, **changes})


def rows_of(runs, **key):
    return [row for row in runs.study.rows if key.items() <= row.items()]


def test_one_training_a_seed_gives_a_row_a_task(done):
    _, made = done
    assert len(rows_of(made, method="trunk")) == 2
    for seed in (1, 2):
        (trunk,) = rows_of(made, method="trunk", seed=seed)
        assert set(trunk["examples"]) == set(NAMES)
        for name in NAMES:
            (row,) = rows_of(made, method="together", task=name, seed=seed)
            assert row["test"] == trunk["own"][name]["test"] and row["metric"] == METRICS[name]


def test_a_task_that_is_left_out_is_read_by_an_output_layer_over_the_others_trunk(done, tmp_path, monkeypatch):
    from studies.wei2021 import joint as together

    root, made = done
    rows = rows_of(made, method="left-out", seed=1)
    assert {row["task"] for row in rows} == set(NAMES)
    assert all(row["trunk_seconds"] >= 0 and row["test_rows"] == 12 for row in rows)
    seen, learn = [], together.learn

    def noted(prepared, *arguments, **named):
        seen.append(({p.task.name for p in prepared}, [p.task.name for p in named["held"]]))
        return learn(prepared, *arguments, **named)

    monkeypatch.setattr(together, "learn", noted)
    alone = runs_in(root, tmp_path / "r.jsonl")
    alone.folder = tmp_path / "made"
    alone.left_out(["mood"], [1])
    assert seen == [({"urgency", "same"}, ["mood"])]
    (again,) = alone.study.rows
    (first,) = [row for row in rows if row["task"] == "mood"]
    assert (again["validation"], again["test"]) == (first["validation"], first["test"])


def test_updates_are_single_batches_of_one_task_each_once_a_pass():
    mixture = Mixture({"a": 40, "b": 16, "c": 8}, RECIPE, batch=8, epochs=2, seed=1)
    assert (mixture.micro_batches, mixture.steps) == (1, 5 + 2 + 1)
    for epoch in (0, 1):
        names = [name for (name,) in mixture.updates(epoch)]
        assert {name: names.count(name) for name in "abc"} == {"a": 5, "b": 2, "c": 1}


def test_rows_fill_the_table_and_are_not_made_twice(done, monkeypatch):
    from studies.wei2021 import joint as together

    root, made = done
    runs = runs_of([row for row in made.study.rows if row.get("seed") == 1])
    assert missing(runs) == ()
    lines = {line.name: line for line in table2(runs).lines}
    assert lines["MT-DNN (full)"].layers == 2
    assert None not in lines["MT-DNN (leave-one-out)"].scores
    assert np.isfinite(lines["MT-DNN (full)"].average)
    monkeypatch.setattr(together, "learn", lambda *_, **__: pytest.fail("trained again"))
    again = runs_in(root, root / "r.jsonl")
    again.together([1, 2])
    again.left_out(NAMES, [1])
    assert len(again.study.rows) == len(made.study.rows)


def test_trunks_and_features_are_deleted_when_their_rows_are_there(done):
    _, made = done
    assert (made.folder / "trunks").is_dir() and (made.folder / "features").is_dir()
    assert not list(made.folder.glob("features/*")) and not list(made.folder.glob("trunks/*/"))


def test_other_settings_are_other_rows(done):
    root, made = done
    other = runs_in(root, root / "r.jsonl", size=Size(train=25, validation=8))
    assert other.settings != made.settings
