"""Results files and studies: written whole, read back, and gone on with where they stopped."""

import msgspec
import pytest

from polyhead.errors import DataError
from studies.results import Claim, Study, broken, hardware, in_order, read_results, results, tally, write_results


def claim(name, *, holds: bool | None = True):
    return Claim(id=name, text="it is so", target=0.5, value=0.7, unit="seconds", holds=holds)


def test_a_results_file_is_read_back_as_it_was_written(tmp_path):
    found = results("quality", command="run it", rows=[{"seed": 1, "score": 0.5}], claims=[claim("a.b")])
    path = write_results(tmp_path / "results", found)
    assert path.name == "quality.json" and read_results(tmp_path / "results") == [found]
    assert [p.name for p in path.parent.iterdir()] == ["quality.json"]
    assert found.hardware and "python" in found.versions and "numpy" in found.versions


def test_claims_that_do_not_hold_come_first():
    one = results("one", command="", rows=[], claims=[claim("b"), claim("a")])
    two = results("two", command="", rows=[], claims=[claim("z", holds=False), claim("c", holds=False)])
    assert [(file, c.id) for file, c in in_order([one, two])] == [
        ("two", "c"),
        ("two", "z"),
        ("one", "a"),
        ("one", "b"),
    ]


def test_a_claim_about_quality_without_seeds_is_not_shown():
    """By its unit, or by its words where the unit may be of speed too; whoever made it."""
    facts = {"target": 0.5, "value": 0.7, "holds": True}
    made = [
        Claim(id="a", text="gain", unit="points", **facts),
        Claim(id="b", text="accuracy over that of full fine-tuning", unit="ratio", **facts),
        Claim(id="c", text="texts a second over those of before", unit="ratio", **facts),
        Claim(id="d", text="gain", unit="points", seeds=3, interval=(0.6, 0.8), **facts),
    ]
    written = results("x", command="", rows=[], claims=made).claims
    assert [claim.outcome for claim in written] == ["not shown", "not shown", "yes", "yes"]
    assert written[0].note.startswith("not shown: ") and written[2:] == made[2:]


def test_claims_that_break_a_rule_are_named():
    good = Claim(
        id="a", text="gain", target=0.0, value=1.0, unit="points", holds=True, seeds=3, interval=(0.5, 1.5), loser=""
    )
    change = msgspec.structs.replace
    assert broken(good) == broken(change(good, loser="converged")) == broken(change(good, holds=None, seeds=1)) == ""
    assert "2 seeds" in broken(change(good, seeds=2)) and "no seeds" in broken(change(good, seeds=None))
    assert "holds the target" in broken(change(good, interval=(-0.5, 1.5))) == broken(change(good, interval=None))
    assert "not converged" in broken(change(good, loser="not converged"))


def test_outcomes_are_counted_in_words():
    claims = [claim("a"), claim("b", holds=False), claim("c", holds=None), claim("d", holds=None)]
    assert tally(claims) == "4 claims: 1 holds, 1 does not, 2 are not shown"
    assert tally(claims[:1]) == "1 claim: 1 holds" and tally([]) == "0 claims: 0 hold"


def test_a_file_that_is_no_results_file_is_named(tmp_path):
    (tmp_path / "other.json").write_text('{"name": 3}')
    with pytest.raises(DataError, match="other.json"):
        read_results(tmp_path)


def test_a_folder_without_results_is_an_error(tmp_path):
    with pytest.raises(DataError, match="no results files"):
        read_results(tmp_path)


class Runs:
    """Counts what was run."""

    def __init__(self):
        self.keys = []

    def row(self, study, **key):
        def run():
            self.keys.append(key)
            return {"score": len(self.keys)}

        return study.row(run, **key)


def test_a_study_goes_on_where_it_stopped(tmp_path):
    runs, file = Runs(), tmp_path / "folder" / "study.jsonl"
    first = Study(file)
    row = runs.row(first, seed=1, pool="mean")
    assert row == {"seed": 1, "pool": "mean", "score": 1, "hardware": hardware(), "date": row["date"]}
    runs.row(first, seed=2, pool="mean")
    again = Study(file)
    assert runs.row(again, seed=1, pool="mean")["score"] == 1
    assert runs.row(again, seed=3, pool="mean")["score"] == 3
    assert [key["seed"] for key in runs.keys] == [1, 2, 3]
    assert Study(file).rows == again.rows


@pytest.mark.parametrize("kept", [0, 7, -2], ids=["nothing", "a piece", "all but the last brace"])
def test_a_line_cut_short_is_run_again_and_costs_no_other_row(tmp_path, kept):
    runs, file = Runs(), tmp_path / "study.jsonl"
    for seed in (1, 2):
        runs.row(Study(file), seed=seed)
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(lines[0] + lines[1][:kept])
    runs.row(Study(file), seed=2)
    runs.row(Study(file), seed=3)
    assert [key["seed"] for key in runs.keys] == [1, 2, 2, 3]
    last = Study(file)
    assert [row["seed"] for row in last.rows] == [1, 2, 3]
    for seed in (1, 2, 3):
        runs.row(last, seed=seed)
    assert len(runs.keys) == 4


def test_a_line_that_lacks_its_end_alone_is_kept(tmp_path):
    runs, file = Runs(), tmp_path / "study.jsonl"
    runs.row(Study(file), seed=1)
    file.write_bytes(file.read_bytes().rstrip(b"\n"))
    study = Study(file)
    runs.row(study, seed=1)
    runs.row(study, seed=2)
    assert [key["seed"] for key in runs.keys] == [1, 2]
    assert [row["seed"] for row in Study(file).rows] == [1, 2]


def test_a_row_that_fails_is_not_kept(tmp_path):
    study = Study(tmp_path / "s.jsonl")
    with pytest.raises(ZeroDivisionError):
        study.row(lambda: {"score": 1 / 0}, seed=1)
    assert study.rows == [] and Study(tmp_path / "s.jsonl").rows == []


def test_a_study_row_is_one_line_of_json(tmp_path):
    Study(tmp_path / "s.jsonl").row(lambda: {"text": "two\nlines"}, seed=1)
    lines = (tmp_path / "s.jsonl").read_bytes().splitlines()
    (row,) = map(msgspec.json.decode, lines)
    assert (row["seed"], row["text"]) == (1, "two\nlines")


def test_a_file_names_the_machines_of_its_rows():
    """The machine that writes it is named only where no row names any."""

    def named(rows):
        return results("quality", command="run it", rows=rows, claims=[]).hardware

    assert named([{"seed": 1}]) == hardware()
    assert named([{"seed": 1, "hardware": "A"}, {"seed": 2, "hardware": "A"}]) == "A"
    assert named([{"hardware": "A"}, {"hardware": "B"}, {"hardware": "A"}]) == "A: 2 rows; B: 1 rows"
    assert named([{"hardware": "A"}, {}]) == "A: 1 rows; not noted: 1 rows"
