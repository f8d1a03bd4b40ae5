"""The plot of quality against cost."""

import pytest

from polyhead.advise.compare import Compared, WayComparison
from polyhead.advise.measure import Counted, WayCosts
from polyhead.advise.plot import few_ticks, name_points, plot_svg

pytest.importorskip("matplotlib")


def point(gflop, quality, number):
    """A way of this cost."""
    whole = Counted(layers=1, flops=int(1e9 * gflop), parameters=1)
    return Compared(
        name=f"way-{number}",
        title="",
        kind="a",
        quality=quality,
        spread=0.2,
        seeds=1,
        validation=quality,
        tasks={},
        seconds=1.0,
        retrained="",
        costs=WayCosts(added_parameters=0.0, stored_bytes=0, tokens=8, tasks=1, of_set=whole),
        on_frontier=number == 0,
    )


@pytest.mark.parametrize("apart", [0.0, 0.1, 3.0])
def test_names_of_near_points_cover_no_other_name(apart):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5.4), layout="constrained")
    axes = figure.subplots()
    axes.set(xscale="log", xlim=(0.4, 6.0), ylim=(40.0, 65.0))
    figure.draw_without_rendering()
    points = [point(1.0, 50.0 + apart * number, number) for number in range(5)]
    boxes = name_points(figure, axes, points)
    assert len(boxes) == len(points)
    for number, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[number + 1 :])
        assert axes.bbox.x0 < box.x0 and box.x1 < axes.bbox.x1


@pytest.mark.parametrize("costs", [(0.0835, 0.1009), (0.08, 0.1, 0.31), (0.08, 40.0), (0.001, 900.0), (1.0, 1.01)])
def test_costs_below_the_axis_are_plain_numbers_that_stand_apart(costs):
    """0.08, 0.09 and 0.1 were written into each other."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5.4), layout="constrained")
    axes = figure.subplots()
    axes.plot(costs, [50.0] * len(costs))
    axes.set_xscale("log")
    axes.margins(x=0.12)
    few_ticks(axes)
    figure.draw_without_rendering()
    low, high = axes.get_xlim()
    shown = [tick for tick in axes.xaxis.get_major_ticks() if low <= tick.get_loc() <= high]
    boxes = sorted((tick.label1.get_window_extent() for tick in shown), key=lambda box: box.x0)
    assert 2 <= len(shown) <= 20 and not axes.xaxis.get_minorticklocs().size
    assert all(box.x1 < after.x0 for box, after in zip(boxes, boxes[1:], strict=False))
    assert all(float(tick.label1.get_text()) == pytest.approx(tick.get_loc()) for tick in shown)


def test_a_comparison_without_a_row_is_drawn_without_a_warning():
    """Where no way could be trained, matplotlib warned that a legend would be empty."""
    empty = WayComparison(project="p", trunk="t", tasks={}, left=(), ways=(), lacking={}, refused={}, seconds=0.0)
    assert plot_svg(empty).rstrip().endswith("</svg>")
