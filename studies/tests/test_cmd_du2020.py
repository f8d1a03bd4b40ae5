"""`python -m studies du2020 table3` and `table4`: drawn, and what is said of tasks that are not there."""

import pytest

from polyhead.values import to_json
from studies.tests.cells import rows
from studies.tests.commands import run

PAPER = ("du2020",)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "rows.json"
    path.write_bytes(to_json({"rows": rows()}))
    return path


@pytest.mark.parametrize("name", ["table3", "table4"])
def test_tables_are_drawn(name, file, tmp_path):
    """Only figure4 could be."""
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    done = run(*PAPER, name, "--rows", file, "--plot", tmp_path / "f.svg")
    assert done.code == 0, done.err
    assert (tmp_path / "f.svg").read_text().startswith("<?xml") and f"drawn into {tmp_path / 'f.svg'}" in done.out
    run(*PAPER, name, "--plot", tmp_path / "g.svg", cwd=tmp_path).refuses("no runs to draw", code=2)
    run(*PAPER, name, "--rows", file, "--plot", "f.nonsense").refuses(".svg", code=2)


def test_notes_follow_the_rows(file, tmp_path):
    """QNLI and QQP were said to be left out of studies that have them, and tweets of none."""
    assert "left out unless asked for with --more: qnli, qqp, tweets" in run(*PAPER, "table3", "--rows", file).out
    assert "left out unless asked for with --more: qnli, qqp, tweets" in run(*PAPER, "table1", cwd=tmp_path).out
    counts = {f"{split}_rows": 10 for split in ("train", "validation", "test")}
    more = [{**row, **counts, "task": {"imdb": "qnli", "mrpc": "qqp"}.get(row["task"], row["task"])} for row in rows()]
    file.write_bytes(to_json({"rows": more}))
    for name in ("table1", "table3", "table4"):
        out = run(*PAPER, name, "--rows", file).out
        assert "left out unless asked for with --more: tweets" in out, name
        assert "without runs yet: imdb, rte, mrpc, ag_news, dbpedia, cola" in out, name
