"""Tables 3 and 4 from rows whose means are known by hand, and the orderings that count as reproduced."""

import msgspec
import pytest

from polyhead.errors import DataError
from studies import du2020
from studies.du2020.claims import leave_out_claims
from studies.du2020.leave_out import FULL_LEARNED, MORE, SETS
from studies.du2020.measured import measured
from studies.du2020.orderings import orderings
from studies.du2020.study import ROWS, cells_of, missing, notes_of, read_cells, study_table, whole_seeds
from studies.tests.cells import rows


@pytest.fixture
def cells():
    return cells_of(rows())


def line(table, block, name):
    return next(one for one in table.lines if (one.block, one.name) == (block, name))


def test_groups_and_averages_are_plain_means_of_tasks(cells):
    table = study_table(cells)
    assert table.tasks == ("sst2", "imdb", "mnli", "mrpc") and table.groups == ("SA", "NLI", "PP")
    assert len(table.lines) == sum(map(len, ROWS.values()))
    found = line(table, "c", "AVG/MHA")
    assert found.scores == pytest.approx((104.0, 94.0, 74.0, 84.0))
    assert found.groups == pytest.approx((99.0, 74.0, 84.0)) and found.average == pytest.approx(89.0)
    assert any("Amazon" in note for note in table.notes)


def test_gflops_are_those_of_our_trunk(cells):
    """Six layers 384 wide on 51 tokens, by the rule of papers.md 0.3: fourteen such models are fourteen times one."""
    one = 6 * (24 * 384**2 * 51 + 4 * 51**2 * 384)
    full = line(study_table(cells), "a", ROWS["a"][0]).gflops
    assert full == pytest.approx(4 * one / 1e9, rel=0.001)
    frozen = line(study_table(cells), "b", "LAST/CLS").gflops
    assert frozen == pytest.approx(one / 1e9, rel=0.01)
    assert frozen < line(study_table(cells), "b", "LAST/MHA").gflops < full


def test_all_orderings_hold_in_the_paper():
    found = orderings(du2020.published_table4())
    assert len(found) == 11 and all(one.holds for one in found)


def test_orderings_are_differences_of_averages(cells):
    found = orderings(study_table(cells))
    values = [one.value for one in found]
    assert values == pytest.approx([6.0, 1.0, 2.0, 2.0, 5.0, 0.1, -0.4, 1.75, 3.0, 1.0, 1.0])
    assert all(one.holds for one in found)


@pytest.mark.parametrize(
    ("block", "name", "points", "lost"),
    [
        ("b", "LAST/MHA", -2.0, 0),
        ("b", "LAST/POSAVG", -1.5, 1),
        ("c", "LAST/MHA", 3.0, 3),
        ("c", "COMB/MHA", -6.0, 4),
        ("c", "AVG/MHA u8", -0.5, 5),
        ("c", "AVG/MHA 1bit", -0.2, 6),
        ("d", "AVG/MHA", 3.0, 7),
        ("a", FULL_LEARNED, -2.0, 9),
        ("c", "LAST/POSAVG", -2.0, 10),
    ],
)
def test_an_ordering_that_does_not_hold_is_found(block, name, points, lost):
    raw = rows()
    for row in raw:
        if (row["block"], row["name"]) == (block, name):
            row["test"] += points / 100
    assert orderings(study_table(cells_of(raw)))[lost].holds is False


def test_a_fall_that_is_not_mainly_on_inference_is_found():
    raw = rows()
    for row in raw:
        if row["block"] == "d" and row["task"] == "mrpc":
            row["test"] -= 0.2
    assert {one.name: one.holds for one in orderings(study_table(cells_of(raw)))}["inference"] is False


def test_what_is_missing_is_named_and_makes_orderings_unknown(cells):
    part = [c for c in cells if (c.block, c.task) != ("c", "imdb") and c.name != "LAST/POSAVG"]
    assert missing(cells) == ()
    found = missing(part)
    assert "block b, LAST/POSAVG: sst2, imdb, mnli, mrpc" in found and "block c, AVG/MHA: imdb" in found
    known = [one.holds for one in orderings(study_table(part))]
    assert known == [None, None, True, None, None, None, None, None, None, True, None]


def test_seeds_are_averaged_with_their_spread():
    raw = rows((1, 2))
    for row in raw:
        row["test"] += 0.02 * (row["seed"] == 2)
    found = line(study_table(cells_of(raw)), "b", "LAST/CLS")
    assert found.scores == pytest.approx((91.0, 81.0, 61.0, 71.0))
    assert found.spreads == pytest.approx((2**0.5,) * 4)
    on_validation = study_table(cells_of(raw), split="validation", blocks=("e",))
    assert [one.scores for one in on_validation.lines] == [pytest.approx((50.0,) * 4)]


def test_claims_are_of_seeds_that_have_all_rows():
    raw = rows((1, 2, 3))
    for row in raw:
        row["test"] += 0.02 * row["seed"] * (row["block"] == "c")
    part = [row for row in raw if (row["seed"], row["block"], row["task"]) != (3, "d", "imdb")]
    assert whole_seeds(cells_of(part)) == (1, 2)
    assert leave_out_claims(part) == leave_out_claims([row for row in raw if row["seed"] < 3])
    assert leave_out_claims(part) != leave_out_claims(raw)
    assert leave_out_claims([row for row in raw if row["block"] != "d"]) == []
    assert missing(cells_of(rows()), (1, 2))[0].startswith("block a, ") and missing(cells_of(rows())) == ()


def test_the_settings_that_came_last_count_and_other_files_are_refused(tmp_path):
    old = [{**row, "digest": "old", "test": 0.1} for row in rows()]
    assert {cell.digest for cell in cells_of([*old, *rows()])} == {"x"}
    (tmp_path / "r.json").write_bytes(msgspec.json.encode({"rows": rows()}))
    assert read_cells([tmp_path / "r.json"]) == cells_of(rows())
    with pytest.raises(DataError, match="holds no run"):
        cells_of([{"stage": "trunk"}])
    with pytest.raises(DataError, match="row 1"):
        cells_of([{**rows()[0], "block": "z"}])


def test_bytes_on_disk_are_those_counted_and_a_key_and_offsets_more():
    for counted, found in zip(du2020.storage_table(), measured(), strict=True):
        assert (found.layers, found.positions) == (counted.layers, counted.positions)
        for name in ("float16", "uint8", "sign"):
            assert 16 < getattr(found, name) - getattr(counted, name) < 120


def renamed(old, new):
    """The made-up rows, with one task under another name."""
    return [{**row, "task": new if row["task"] == old else row["task"]} for row in rows()]


def test_notes_name_the_tasks_that_these_rows_have_not(cells):
    """They named two sets as left out, whatever was asked for."""
    (paper, without, further, _) = study_table(cells).notes
    assert paper.startswith("Amazon-5") and without == "without runs yet: rte, ag_news, dbpedia, cola"
    assert further == "left out unless asked for with --more: qnli, qqp, tweets"
    (_, _, further, besides, _) = study_table(cells_of(renamed("imdb", "tweets"))).notes
    assert (further, besides) == ("left out unless asked for with --more: qnli, qqp", "not of the paper: tweets")


def test_notes_of_a_whole_study_leave_nothing_out():
    every = [one.task for one in (*SETS, *MORE)]
    assert len(every) == 11 and not any("left out unless" in note or "without" in note for note in notes_of(every))
    assert len(notes_of([one.task for one in SETS])) == 3
