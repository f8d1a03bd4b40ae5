"""What must come out better than what for the method to count as reproduced, in the paper's tables and in ours."""

from __future__ import annotations

from collections.abc import Callable

from polyhead.values import Value
from studies.du2020.table import Line, Table

CLEAR = 5.0  # points by which attention beats the mean of positions on plain features
EIGHT, ONE = 0.2, 0.5  # points that 8 bits and 1 bit may cost
_POOLERS = ("LAST/CLS", "LAST/POSAVG", "LAST/MHA", "AVG/MHA", "COMB/MHA")


class Ordering(Value):
    """One of them: a difference of averages in points; `value` and `holds` are None until both rows are whole."""

    text: str
    value: float | None
    holds: bool | None


def orderings(table: Table) -> tuple[Ordering, ...]:
    """All of them, with what this table says."""
    rows = _Rows(table)
    groups = rows.falls("AVG/MHA")
    of_group, others = groups.get("NLI"), [fall for name, fall in groups.items() if name != "NLI"]
    mainly = None if of_group is None or not others else of_group - max(others)
    return (
        _ordering(
            f"plain trunk: attention beats the mean of positions by more than {CLEAR:g}",
            rows.gap(("b", "LAST/MHA"), ("b", "LAST/POSAVG")),
            lambda value: value > CLEAR,
        ),
        _ordering(
            "plain trunk: the mean of positions is no worse than the first",
            rows.gap(("b", "LAST/POSAVG"), ("b", "LAST/CLS")),
            lambda value: value >= 0,
        ),
        *(
            _ordering(
                f"{words}: the mean of layers beats the last layer",
                rows.gap((block, "AVG/MHA"), (block, "LAST/MHA")),
                lambda value: value > 0,
            )
            for block, words in (("b", "plain trunk"), ("c", "leave-one-task-out trunk"))
        ),
        _ordering(
            "the leave-one-task-out trunk beats the plain one with every pooler (least gain)",
            rows.least([(("c", name), ("b", name)) for name in _POOLERS]),
            lambda value: value > 0,
        ),
        _ordering(
            f"8 bits are within {EIGHT:g} of 16",
            rows.gap(("c", "AVG/MHA u8"), ("c", "AVG/MHA")),
            lambda value: abs(value) <= EIGHT + 1e-9,
        ),
        _ordering(
            f"1 bit costs at most {ONE:g}",
            rows.gap(("c", "AVG/MHA 1bit"), ("c", "AVG/MHA")),
            lambda value: value >= -ONE - 1e-9,
        ),
        _ordering(
            "the leave-one-group-out trunk is worse than the leave-one-task-out one",
            rows.gap(("d", "AVG/MHA"), ("c", "AVG/MHA")),
            lambda value: value < 0,
        ),
        _ordering(
            "it is so mainly on inference (its fall minus the largest other group's)", mainly, lambda value: value > 0
        ),
    )


class _Rows:
    """Averages by block and row."""

    def __init__(self, table: Table) -> None:
        self._lines: dict[tuple[str, str], Line] = {(line.block, line.name): line for line in table.lines}
        self._groups = table.groups

    def gap(self, row: tuple[str, str], other: tuple[str, str]) -> float | None:
        """The first row's average minus the second's."""
        first, second = self._average(row), self._average(other)
        return None if first is None or second is None else first - second

    def least(self, pairs: list[tuple[tuple[str, str], tuple[str, str]]]) -> float | None:
        """The smallest of these gaps; None unless all are known."""
        gaps = [self.gap(*pair) for pair in pairs]
        known = [gap for gap in gaps if gap is not None]
        return min(known) if len(known) == len(gaps) else None

    def falls(self, name: str) -> dict[str, float]:
        """By group, how much less the row has in block d than in block c; empty unless all are known."""
        lines = [self._lines.get((block, name)) for block in ("c", "d")]
        if lines[0] is None or lines[1] is None:
            return {}
        pairs = zip(self._groups, lines[0].groups, lines[1].groups, strict=True)
        falls = {group: before - after for group, before, after in pairs if before is not None and after is not None}
        return falls if len(falls) == len(self._groups) else {}

    def _average(self, key: tuple[str, str]) -> float | None:
        line = self._lines.get(key)
        return None if line is None else line.average


def _ordering(text: str, value: float | None, holds: Callable[[float], bool]) -> Ordering:
    return Ordering(text=text, value=value, holds=None if value is None else holds(value))
