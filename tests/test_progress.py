"""Units of work end in time on any machine, and a stop says what is kept."""

import pytest

from polyhead.progress import UNIT_SECONDS, UnitSize, counted, stopped_with


@pytest.mark.parametrize("rate", [0.5, 14, 100, 5_000])
def test_units_take_about_the_same_time_on_slow_and_fast_machines(rate):
    size, seconds = UnitSize(8192), []
    for _ in range(12):
        seconds.append(size.rows / rate)
        size.took(size.rows, seconds[-1])
    assert seconds[-1] == pytest.approx(min(UNIT_SECONDS, 8192 / rate), rel=0.2)
    assert all(later <= 4 * earlier for earlier, later in zip(seconds, seconds[1:], strict=False))


def test_a_unit_is_never_empty_nor_larger_than_the_most():
    size = UnitSize(10)
    assert size.rows == 10
    size.took(10, 1e9)
    assert size.rows == 1
    for _ in range(9):
        size.took(size.rows, 0.0)
    assert size.rows == 10


@pytest.mark.parametrize(
    ("kept", "said"), [(0, "nothing was finished yet"), (1, "rows kept: 1"), (12_000, "rows kept: 12,000")]
)
def test_a_stop_says_what_is_kept(kept, said):
    with pytest.raises(KeyboardInterrupt, match=f"^{said}$"), stopped_with(lambda: kept, "rows"):
        raise KeyboardInterrupt


def test_one_of_a_thing_has_no_plural():
    assert [counted(n, "piece") for n in (0, 1, 2, 1200)] == ["0 pieces", "1 piece", "2 pieces", "1,200 pieces"]
