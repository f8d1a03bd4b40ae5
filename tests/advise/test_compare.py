"""A comparison: a row for each run, which is never made twice; costs and frontier as counted by hand."""

import msgspec
import pytest

from advise.test_sharing_ways import tasks_in
from polyhead.advise import compare as comparing
from polyhead.advise.compare import Compared, Comparing, Corrections, Settings, trained_scores, with_frontier
from polyhead.advise.measure import Counted, WayCosts
from polyhead.advise.rows import FinishedRun, Kept, TaskScore
from polyhead.advise.tables import comparison_page, notes, table_rows, task_rows
from polyhead.errors import ConfigError
from polyhead.train.events import Events
from support import head_search

ONLY = ("pooled-mean", "branch-1", "student-1", "prompted-isolated", "prompted-group", "on-top", "pooled-joint")
ONLY += ("fine-tune",)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("compared")


@pytest.fixture(scope="module")
def ended(home):
    """A comparison of seven ways on two tasks, and what it said."""
    said = []
    with pytest.MonkeyPatch.context() as patch:
        head_search.hurry(patch)
        first = opened(home, said)
        return first.run(), said, first


def opened(home, said, **settings):
    tasks = tasks_in(home, "mood", "names")
    ways = tuple(name for name in ONLY if name != "student-1")  # a trunk of two layers has no student
    asked = Settings(only=ways, epochs=1, counts=(1, 2, 8), backend="reference", **settings)
    return Comparing(tasks, "polyhead.toml", home / "kept", asked, Events(say=said.append))


def test_every_way_has_a_row_and_its_price_was_said_before(ended):
    comparison, said, _ = ended
    assert {way.name for way in comparison.ways} == set(ONLY) - {"student-1"} and not comparison.lacking
    assert said[0].startswith("price: 7 runs in about")
    assert comparison.tasks.keys() == {"mood", "names"}


def test_layers_are_those_worked_by_hand(ended):
    """Two layers: shared once; one private each; a trunk for each task; six narrow ones on top of each."""
    layers = {way.name: [way.costs.counted_for(n).layers for n in (1, 2, 8)] for way in ended[0].ways}
    assert layers == {
        "pooled-mean": [2, 2, 2],
        "branch-1": [2, 3, 9],
        "prompted-isolated": [2, 2, 2],
        "prompted-group": [2, 2, 2],
        "on-top": [8, 14, 50],
        "pooled-joint": [2, 2, 2],
        "fine-tune": [2, 4, 16],
    }


def test_every_way_is_timed_and_a_task_that_it_cannot_answer_stands_out(ended):
    comparison = ended[0]
    for way in comparison.ways:
        assert way.costs.timed == [1, 2, 8] and way.costs.speed_for(8).ms > 0, way.name
        assert way.costs.backend == "reference, float32"
    marked = {way.name: sorted(way.stood_in) for way in comparison.ways if way.stood_in}
    assert marked == {"prompted-isolated": ["names"]}


def test_what_has_ended_is_not_run_again(ended, home, monkeypatch):
    def never(*arguments, **options):
        raise AssertionError("trained again")

    monkeypatch.setattr(comparing, "train_project", never)
    said = []
    again = opened(home, said).run()
    assert again == ended[0] and said[0].startswith("price: 0 runs in about 0 s, 7 are there")
    assert opened(home, []).known() == again


def test_other_data_is_another_run(ended, home):
    first, other = ended[2], opened(home, [])
    other.digest = "of other files"
    ways = other.ways
    assert not other.known().ways and sum(map(len, other.known().lacking.values())) == len(ways)
    assert first.known().ways


def test_bundles_go_and_project_files_stay(ended, home):
    assert not list((home / "kept" / "bundles").iterdir())
    assert len(list((home / "kept" / "projects").iterdir())) == 7


def test_no_run_is_begun_that_would_end_too_late(home, tmp_path):
    said = []
    tasks = tasks_in(home, "mood")
    asked = Settings(only=("pooled-mean", "branch-1"), minutes=0.0, backend="reference")
    comparison = Comparing(tasks, "p", tmp_path, asked, Events(say=said.append)).run()
    assert not comparison.ways and sorted(comparison.lacking["1"]) == ["branch-1", "pooled-mean"]
    assert sum("not begun" in line for line in said) == 2


def test_a_way_that_cannot_be_trained_stops_no_other(home, tmp_path, monkeypatch):
    """Tasks that weigh their classes differently cannot learn one trunk; heads of their own can."""
    head_search.hurry(monkeypatch)
    tasks = tasks_in(home, "mood", "alike")
    plain = tasks.project.training
    other = msgspec.structs.replace(
        tasks.project.tasks[1], training=msgspec.structs.replace(plain, class_weights=False)
    )
    project = msgspec.structs.replace(tasks.project, tasks=(tasks.project.tasks[0], other))
    asked = Settings(only=("pooled-mean", "pooled-joint"), epochs=1, timed=False)
    tasks = msgspec.structs.replace(tasks, project=project)
    comparison = Comparing(tasks, "p", tmp_path, asked, Events()).run()
    assert [way.name for way in comparison.ways] == ["pooled-mean"]
    assert "one set of training numbers" in comparison.refused["pooled-joint"]
    assert any("pooled-joint cannot be trained" in note for note in notes(comparison))


def test_scores_are_those_of_the_bundle_in_points(home, tmp_path, monkeypatch):
    head_search.hurry(monkeypatch)
    tasks = tasks_in(home, "mood")
    asked = Settings(only=("pooled-mean",), backend="reference", counts=(1,), keep_bundles=True)
    (way,) = Comparing(tasks, "p", tmp_path, asked, Events()).run().ways
    (root,) = (tmp_path / "bundles").iterdir()
    score = trained_scores([root])["mood"]
    assert way.quality == pytest.approx(score.test, abs=1e-3) and 0 <= score.test <= 100
    assert way.validation == pytest.approx(score.validation, abs=1e-3)


def test_a_row_of_another_key_is_none(tmp_path):
    kept = Kept(tmp_path)
    row = FinishedRun(
        way="a", seed=1, key="k", seconds=1.0, estimated=2.0, tasks={"t": TaskScore(metric="m", validation=40.0)}
    )
    kept.keep(row)
    assert kept.row("a", 1, "k") == row and kept.row("a", 1, "other") is None and kept.row("a", 2, "k") is None
    assert row.quality == 40.0


def test_a_file_that_is_no_row_is_named(tmp_path):
    kept = Kept(tmp_path)
    (tmp_path / "rows" / "a-1.json").write_text("{}")
    with pytest.raises(ConfigError, match="a-1.json"):
        kept.rows()


def test_estimates_are_corrected_by_what_runs_took():
    """Twice as long as was said for one way; 40 for 30 altogether, which holds for a way that never ran."""
    corrections = Corrections([("a", 10.0, 20.0), ("b", 20.0, 20.0)])
    assert corrections.corrected("a", 5.0) == pytest.approx(10.0)
    assert corrections.corrected("c", 3.0) == pytest.approx(4.0)
    assert Corrections().corrected("a", 5.0) == 5.0


def way(name, quality, flops, seeds=1):
    counted = {"8": Counted(layers=1, flops=flops, parameters=1)}
    costs = WayCosts(added_parameters=1.0, stored_bytes=1, tokens=8, tasks=2, of_set=counted["8"], counted=counted)
    return Compared(
        name=name, title=name, kind="pooled", quality=quality, spread=0.0, seeds=seeds, validation=quality,
        tasks={"t": quality}, seconds=1.0, retrained="", costs=costs,
    )  # fmt: skip


def test_the_frontier_is_what_no_cheaper_way_equals():
    ways = with_frontier([way("d", 90, 4), way("b", 80, 2), way("c", 80, 3), way("a", 70, 1), way("e", 85, 2)])
    assert [(w.name, w.on_frontier) for w in ways] == [
        ("a", True), ("e", True), ("b", False), ("c", False), ("d", True)
    ]  # fmt: skip


def test_the_page_needs_no_network_and_has_every_way(ended):
    comparison = msgspec.structs.replace(ended[0], project="<script>")
    text = comparison_page(comparison)
    assert "http://" not in text.replace("http://www.w3.org", "").replace("http://purl", "").replace(
        "http://creativecommons.org", ""
    )
    assert "<script" not in text
    for one in comparison.ways:
        assert f"{one.name}</td>" in text
    assert len(table_rows(comparison)) == len(comparison.ways) + 1 == len(task_rows(comparison))
    assert any("names is pooled" in note for note in notes(comparison))
