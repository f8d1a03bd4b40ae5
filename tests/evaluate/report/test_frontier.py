"""The plot of score against cost: what it names, and what it compares with."""

import sys
import xml.etree.ElementTree as ElementTree

import pytest

from polyhead.errors import MissingExtra
from polyhead.evaluate.report.frontier import Baseline, plot_frontier, separate_models
from polyhead.plan.cost.allocate import LayerPrice, allocation_of, by_rule
from studies.wei2021.published import published_options

LAYERS = LayerPrice(shared=1, private=1, unit="layers")


def drawn(path, *arguments, **more):
    """The words of the plot."""
    matplotlib = pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        plot_frontier(*arguments, path, **more)
    root = ElementTree.parse(path).getroot()
    return [node.text for node in root.iter() if node.tag.endswith("text") and node.text]


def test_the_plot_names_the_rules_prices_and_the_baselines(tmp_path):
    full = separate_models("full fine-tuning", [80.0, 90.0], LAYERS, layers=12)
    assert full == Baseline(name="full fine-tuning", score=85.0, cost=24)
    words = drawn(tmp_path / "f.svg", published_options(), LAYERS, baselines=[full])
    for expected in ("c = 1", "c = 2", "c = 3", "full fine-tuning", "layers run on one text, all tasks"):
        assert expected in words


def test_prices_that_lead_to_one_choice_share_a_mark(tmp_path):
    options = published_options()
    assert by_rule(options, 3.0) == by_rule(options, 3.1)
    words = drawn(tmp_path / "f.svg", options, LAYERS, rates=[3.0, 3.1, 1.0])
    assert "c = 3, 3.1" in words and "c = 1" in words


def test_the_rule_may_choose_among_fewer_options_than_the_frontier(tmp_path):
    """Each rate leads to one choice of all options; offered one a task, every rate leads to the same."""
    options = published_options()
    offered = [one for one in options if one.name == "KD-1"]
    assert allocation_of(by_rule(offered, 1.0), LAYERS).layers == 15
    assert "c = 1, 2, 3" in drawn(tmp_path / "f.svg", options, LAYERS, rates=[1.0, 2.0, 3.0], offered=offered)


@pytest.mark.parametrize(
    ("unit", "label"), [("flops", "GFLOP for one text"), ("bytes", "MB of weights"), ("joules", "joules")]
)
def test_the_axis_names_the_unit(unit, label, tmp_path):
    price = LayerPrice(shared=10**9, private=10**9, unit=unit)
    assert any(label in words for words in drawn(tmp_path / "f.svg", published_options(), price))


def test_a_plot_without_matplotlib_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtra, match=r"polyhead\[plots\]"):
        plot_frontier(published_options(), LAYERS, tmp_path / "f.svg")
