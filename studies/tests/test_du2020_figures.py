"""Tables 3 and 4 drawn, from rows whose means are known by hand."""

import pytest

from polyhead.errors import DataError
from studies.du2020 import figures
from studies.du2020.study import cells_of, study_table
from studies.tests.cells import rows

pytest.importorskip("matplotlib", reason="matplotlib is not installed")


@pytest.fixture
def drawn(monkeypatch, tmp_path):
    """Draws, and gives the axes."""
    sheets, sheet = [], figures.sheet

    def kept(*size):
        sheets.append(sheet(*size))
        return sheets[-1]

    def draw(plot, raw, **options):
        plot(study_table(cells_of(raw)), tmp_path / "f.svg", **options)
        assert (tmp_path / "f.svg").read_text().startswith("<?xml")
        return sheets[-1][1]

    monkeypatch.setattr(figures, "sheet", kept)
    return draw


def heights(axes):
    """Of the bars of each colour."""
    return [[bar.get_height() for bar in bars] for bars in axes.containers if hasattr(bars, "patches")]


def halved(seeds=(1,)):
    """Points below 100, as accuracies are."""
    return [{**row, "test": row["test"] / 2} for row in rows(seeds)]


def test_a_task_has_three_bars_and_so_has_the_average(drawn):
    axes = drawn(figures.plot_tasks, halved())
    assert [label.get_text() for label in axes.get_xticklabels()] == ["sst2", "imdb", "mnli", "mrpc", "average"]
    plain, one, group = heights(axes)
    assert plain == pytest.approx([49.5, 44.5, 34.5, 39.5, 42.0])
    assert one == pytest.approx([52.0, 47.0, 37.0, 42.0, 44.5])
    assert group == pytest.approx([51.5, 46.5, 35.0, 41.5, 43.625])
    assert axes.get_ylabel() == "test accuracy in %"
    assert len(axes.texts) == 15 and {"49.5", "43.6"} < {text.get_text() for text in axes.texts}


def test_groups_are_drawn_as_tasks_are(drawn):
    axes = drawn(figures.plot_groups, halved(), split="validation")
    assert [label.get_text() for label in axes.get_xticklabels()] == ["SA", "NLI", "PP", "average"]
    assert heights(axes)[0] == pytest.approx([47.0, 34.5, 39.5, 42.0])
    assert axes.get_ylabel() == "validation accuracy in %"


def test_deviations_over_seeds_are_drawn(drawn):
    raw = halved((1, 2))
    for row in raw:
        row["test"] += 0.02 * (row["seed"] == 2)
    axes = drawn(figures.plot_tasks, raw)
    assert len(axes.containers) == 3 + 3 * 4  # the average has none


def test_what_is_missing_has_no_bar(drawn):
    raw = [row for row in halved() if (row["block"], row["task"]) != ("d", "mnli")]
    assert list(map(len, heights(drawn(figures.plot_tasks, raw)))) == [5, 5, 3]
    assert list(map(len, heights(drawn(figures.plot_groups, [r for r in raw if r["block"] != "c"])))) == [4, 0, 2]


def test_a_study_without_such_rows_is_said(tmp_path):
    few = study_table(cells_of([row for row in rows() if row["block"] == "a"]))
    for plot in (figures.plot_tasks, figures.plot_groups):
        with pytest.raises(DataError, match="no row AVG/MHA"):
            plot(few, tmp_path / "f.svg")
    assert not list(tmp_path.iterdir())
