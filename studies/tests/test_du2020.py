"""The rows of Du et al. 2020 against the numbers that the paper prints (papers.md 1.a.6, 1.a.7)."""

import sys
import xml.etree.ElementTree as ElementTree

import pytest

from polyhead.errors import MissingExtra, PlanError
from studies.du2020 import SCHEMES, FlopsRow, break_even, figure4, plot_figure4, scheme_flops, storage_table

UNITS = {"K": 1024, "M": 1024**2}


def at(scheme, tasks, rows):
    return next(row.gflops for row in rows if row.scheme == scheme and row.tasks == tasks)


def test_the_storage_table_has_the_published_bytes():
    cells = [(row.float16, row.uint8, row.sign) for row in storage_table()]
    assert cells == [(2048, 1024, 128), (102_400, 51_200, 6_400), (2_457_600, 1_228_800, 153_600)]


def test_the_storage_table_rounds_to_what_is_printed():
    looked_at = 0
    for row in storage_table():
        for bytes_, printed in zip((row.float16, row.uint8, row.sign), row.printed, strict=True):
            unit = UNITS.get(printed[-1], 1)
            number = printed.rstrip("KM")
            digits = len(number.partition(".")[2])
            assert round(bytes_ / unit, digits) == float(number)
            looked_at += 1
    assert looked_at == 9


def test_figure_4_has_the_published_gflops_for_14_tasks():
    rows = figure4()
    assert len(rows) == 14 * len(SCHEMES) == 70
    printed = {"full": 430, "distilled": 61, "frozen_first": 31, "frozen_attention": 34}
    assert {scheme: float(f"{at(scheme, 14, rows):.2g}") for scheme in printed} == printed


def test_a_frozen_encoder_beats_distilled_ones_from_the_eighth_task():
    rows = figure4()
    for scheme in ("frozen_first", "frozen_attention", "frozen_attention_folded"):
        assert break_even(rows, scheme) == 8
    assert break_even(rows, "frozen_first", against="full") == 2
    assert break_even(rows, "full") is None


def test_break_even_is_where_a_scheme_stays_cheaper():
    ours, theirs = [1, 3, 1, 1], [2, 2, 2, 2]
    rows = [FlopsRow(scheme="full", tasks=i, gflops=v) for i, v in enumerate(ours, 1)]
    rows += [FlopsRow(scheme="distilled", tasks=i, gflops=v) for i, v in enumerate(theirs, 1)]
    assert break_even(rows, "full") == 3
    assert break_even(rows, "distilled", against="full") is None
    with pytest.raises(PlanError):
        break_even(rows, "frozen_first")


def test_every_curve_is_a_straight_line_in_the_number_of_tasks():
    for scheme in SCHEMES:
        one, two, nine = (scheme_flops(scheme, tasks) for tasks in (1, 2, 9))
        assert nine - two == 7 * (two - one)


def test_folding_makes_attention_nearly_as_cheap_as_the_first_position():
    rows = figure4()
    first, folded, plain = (
        at(scheme, 14, rows) for scheme in ("frozen_first", "frozen_attention_folded", "frozen_attention")
    )
    assert first < folded < plain
    assert (plain - first) / (folded - first) > 28


def test_no_tasks_are_refused():
    with pytest.raises(PlanError):
        scheme_flops("full", 0)


def test_the_plot_is_written_and_names_every_scheme(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": "none"}):
        plot_figure4(figure4(), tmp_path / "figure4.svg")
    root = ElementTree.parse(tmp_path / "figure4.svg").getroot()
    text = " ".join(node.text or "" for node in root.iter() if node.tag.endswith("text"))
    for words in ("DistilRoBERTa", "first position", "folded", "from task 8", "GFLOPs a text"):
        assert words in text


def test_a_plot_without_matplotlib_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtra, match=r"polyhead\[plots\]"):
        plot_figure4(figure4([1]), tmp_path / "figure4.svg")
