"""Leaving out tasks and groups, with made-up sets and a tiny trunk: every block runs, nothing held out is learned."""

import os
from pathlib import Path

import msgspec
import pytest

from polyhead.project.recipes import Training
from polyhead.testing import tiny_trunk
from studies.du2020 import effort, leave_out
from studies.du2020.leave_out import FULL, FULL_LEARNED, POOLERS, STAGE1, LeaveOut, Settings
from studies.du2020.study import ROWS, cells_of, missing, study_table, used
from studies.results import Study
from studies.tests.sets import SETS, learning, texts_of_splits, write_sets

QUICK = Training(epochs=1, patience=1, batch=8, learning_rate=1e-3, precision="float32")
SMALL = Settings(sets=SETS, rows=24, validation=8, test=10, learning=QUICK, heads=QUICK, full=QUICK)
DATA = Path(os.environ.get("POLYHEAD_DATA", Path(__file__).parents[3] / "shared" / "data"))


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """Every run of the small study, its folder and what was said."""
    root = tmp_path_factory.mktemp("study")
    data, said = write_sets(root / "data", leaking=True), []
    runs = LeaveOut(data, root / "runs", Study(root / "r.jsonl"), SMALL, trunk=tiny_trunk(), say=said.append)
    for job in runs.jobs():
        job.run()
    return root, runs, said


def rows_of(runs, **key):
    return [row for row in runs.study.rows if key.items() <= row.items()]


def test_every_block_has_all_its_rows(done):
    _, runs, _ = done
    cells = cells_of(runs.study.rows)
    assert missing(cells) == ()
    assert len(cells) == 3 * sum(len(names) for names in ROWS.values())
    table = study_table(cells)
    assert set(table.tasks) == {"moods", "things", "same"}
    assert all(line.average is not None for line in table.lines)


def test_a_trunk_learns_from_all_tasks_but_those_left_out(done):
    _, runs, _ = done
    learned = {row["name"]: set(row["examples"]) for row in rows_of(runs, stage="trunk")}
    assert learned == {
        "without-moods": {"things", "same"},
        "without-things": {"moods", "same"},
        "without-same": {"moods", "things"},
        "without-moods-things": {"same"},
        "all": {"moods", "things", "same"},
    }
    assert {tuple(one.task for one in several) for several in runs.trunks()} == {
        tuple(name.removeprefix("without-").split("-")) if name != "all" else () for name in learned
    }


def test_no_text_that_another_task_is_evaluated_on_is_trained_on(done, tmp_path):
    """Each set's training rows hold texts on which the others are evaluated, learned from or held out."""
    root, runs, _ = done
    again = LeaveOut(root / "data", tmp_path, Study(tmp_path / "r.jsonl"), SMALL, trunk=tiny_trunk())
    for without in again.trunks():
        with learning() as seen:
            folder, row = again._learned(without)
        assert row["dropped"] > 0
        assert sum(row["examples"].values()) + row["dropped"] == 24 * row["sets"]
        (found,) = rows_of(runs, stage="trunk", name=folder.name)
        assert (found["examples"], found["dropped"]) == (row["examples"], row["dropped"])
        for task in seen[folder.name]:
            others = [again.prepared(one, STAGE1, QUICK) for one in SETS if one.task != task.task.name]
            evaluated = texts_of_splits([split for other in others for split in other.splits[1:]])
            assert evaluated and not texts_of_splits([task.train]) & evaluated


def test_jobs_need_each_other_for_nothing(done, tmp_path):
    """One job alone, in a file of its own, makes the rows that it makes among all."""
    root, runs, _ = done
    alone = LeaveOut(root / "data", tmp_path, Study(tmp_path / "r.jsonl"), SMALL, trunk=tiny_trunk())
    (job,) = [job for job in alone.jobs() if job.name == "without group SA"]
    job.run()
    found = scores(alone.study.rows)
    assert len(found) == 2 and found.items() <= scores(runs.study.rows).items()


def scores(rows):
    return {(r.block, r.name, r.task): (r.validation, r.test) for r in cells_of(rows)}


def test_a_group_of_one_task_is_not_run_twice_and_other_groups_are(done):
    _, runs, _ = done
    (same,) = rows_of(runs, block="d", task="same")
    (left,) = rows_of(runs, block="c", name="AVG/MHA", task="same")
    assert same["same_as"] == "c" and same["test"] == left["test"]
    assert all("same_as" not in row for row in rows_of(runs, block="d", task="moods"))


def test_the_last_block_is_scored_by_the_heads_that_were_learned(done):
    _, runs, _ = done
    (trunk,) = rows_of(runs, stage="trunk", name="all")
    for row in rows_of(runs, block="e"):
        assert row["test"] == trunk["own"][row["task"]]["test"]
    assert all("own" not in row for row in rows_of(runs, stage="trunk") if row["name"] != "all")


def test_features_are_deleted_and_trunks_stay_beside_the_rows(done):
    root, runs, said = done
    assert not list(root.rglob("features/*/*"))
    assert {p.parent.name for p in root.rglob("trunks/*/bundle.json")} == {
        row["name"] for row in rows_of(runs, stage="trunk")
    }
    assert any(line.startswith("trunk  without-moods") for line in said)


def test_what_is_there_is_not_run_again(done, monkeypatch):
    root, runs, _ = done
    again = LeaveOut(root / "data", root / "runs", Study(root / "r.jsonl"), SMALL)
    monkeypatch.setattr(LeaveOut, "plain", property(lambda self: pytest.fail("a trunk was loaded")))
    for job in again.jobs():
        job.run()
    assert len(again.study.rows) == len(runs.study.rows)


def test_other_settings_are_other_rows():
    assert SMALL.digest != msgspec.structs.replace(SMALL, rows=25).digest
    assert Settings().digest == Settings().digest == Settings(seed=2).digest
    assert list(Settings().groups) == ["SA", "NLI", "PP", "DOC", "LA"]
    assert len(Settings().sets) == 8


def test_the_sets_used_are_listed_with_their_rows(done):
    _, runs, _ = done
    raw = [{**row, "task": "rte"} for row in rows_of(runs, block="b", task="same")]
    found = {one.task: one.rows for one in used(raw)}
    assert found["rte"] == {"train": 24, "validation": 8, "test": 10}
    assert found["imdb"] == {} and len(found) == 8


def test_the_effort_counts_every_run(done):
    _, runs, _ = done
    found = {one.what: one for one in effort.effort(runs)}
    assert found["trunks that learn"].runs == len(rows_of(runs, stage="trunk"))
    assert found["full fine-tunings"].runs == len(rows_of(runs, block="a"))
    pooled = [r for r in cells_of(runs.study.rows) if r.block in "bcd"]
    assert found["poolers and heads"].runs == len(pooled)
    assert all(one.minutes > 0 for one in found.values())


def test_rows_are_named_as_in_the_paper():
    from studies.du2020 import published_table4

    known = {(line.block, line.name) for line in published_table4().lines}
    ours = {(block, name) for block, names in ROWS.items() for name in names if block != "a"}
    assert ours == {key for key in known if key[0] != "a"}
    assert ROWS["a"] == (FULL, FULL_LEARNED) and ROWS["c"] == tuple(POOLERS)


@pytest.mark.data
def test_real_sets_run_through_every_block(tmp_path):
    sets = tuple(one for one in leave_out.SETS if one.task in ("sst2", "rte"))
    for one in sets:
        if not (DATA / one.folder).exists():
            pytest.skip(f"no data set in {DATA / one.folder}; set POLYHEAD_DATA to where they are")
    settings = msgspec.structs.replace(SMALL, sets=sets, rows=40, validation=20, test=20, max_tokens=48)
    study = Study(tmp_path / "r.jsonl")
    for job in LeaveOut(DATA, tmp_path, study, settings, trunk=tiny_trunk()).jobs():
        job.run()
    assert missing(cells_of(study.rows)) == ()
