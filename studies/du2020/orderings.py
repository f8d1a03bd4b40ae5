"""Every ordering that the paper states of its tables 3 and 4, in its rows and in ours, those that fail here too."""

from __future__ import annotations

import msgspec

from polyhead.values import Value
from studies.du2020.leave_out import FULL, FULL_LEARNED
from studies.du2020.table import Line, Table
from studies.evidence import Side, is_on

CLEAR = 5.0  # points by which attention beats the mean of positions on plain features
EIGHT, ONE = 0.2, 0.5  # points that 8 bits and 1 bit may cost
_POOLERS = ("LAST/CLS", "LAST/POSAVG", "LAST/MHA", "AVG/MHA", "COMB/MHA")
_FULL = (FULL, "RoBERTa")  # in our rows, in the paper's
_FULL_LEARNED = (FULL_LEARNED, "RoBERTa from leave-one-out encoder")


class Ordering(Value):
    """One of them: a difference of averages in points, and on which side of what it is to be; None: not known yet."""

    name: str
    text: str
    value: float | None
    target: float = 0.0
    side: Side = "above"
    is_distance: bool = False  # its size counts, to either side

    @property
    def holds(self) -> bool | None:
        """Whether this table has it so; of one seed that shows nothing."""
        if self.value is None:
            return None
        value = abs(self.value) if self.is_distance else self.value
        return is_on(round(value, 9), self.target, self.side)


def orderings(table: Table) -> tuple[Ordering, ...]:
    """All of them, with what this table says."""
    rows = _Rows(table)
    return (*_of_frozen(rows), *_of_others(rows))


def _of_frozen(rows: _Rows) -> tuple[Ordering, ...]:
    """Poolers, and trunks that left one task out."""
    trunks = {"b": "plain trunk", "c": "leave-one-task-out trunk"}
    of_mean = [
        Ordering(
            name=f"layers-{block}",
            text=f"{words}: the mean of layers beats the last layer",
            value=rows.gap((block, "AVG/MHA"), (block, "LAST/MHA")),
        )
        for block, words in trunks.items()
    ]
    return (
        Ordering(
            name="attention",
            text=f"plain trunk: attention beats the mean of positions by more than {CLEAR:g}",
            value=rows.gap(("b", "LAST/MHA"), ("b", "LAST/POSAVG")),
            target=CLEAR,
        ),
        Ordering(
            name="mean",
            text="plain trunk: the mean of positions is no worse than the first",
            value=rows.gap(("b", "LAST/POSAVG"), ("b", "LAST/CLS")),
            side="least",
        ),
        *of_mean,
        Ordering(
            name="learned",
            text="the leave-one-task-out trunk beats the plain one with every pooler (least gain)",
            value=rows.least([(("c", name), ("b", name)) for name in _POOLERS]),
        ),
    )


def _of_others(rows: _Rows) -> tuple[Ordering, ...]:
    """Codecs, trunks that left a group out, and full fine-tuning; with the poolers of block c."""
    groups = rows.falls("AVG/MHA")
    of_group, others = groups.get("NLI"), [fall for name, fall in groups.items() if name != "NLI"]
    mainly = None if of_group is None or not others else of_group - max(others)
    return (
        Ordering(
            name="8-bits",
            text=f"8 bits are within {EIGHT:g} of 16",
            value=rows.gap(("c", "AVG/MHA u8"), ("c", "AVG/MHA")),
            target=EIGHT,
            side="most",
            is_distance=True,
        ),
        Ordering(
            name="1-bit",
            text=f"1 bit costs at most {ONE:g}",
            value=rows.gap(("c", "AVG/MHA 1bit"), ("c", "AVG/MHA")),
            target=-ONE,
            side="least",
        ),
        Ordering(
            name="group",
            text="the leave-one-group-out trunk is worse than the leave-one-task-out one, by so much",
            value=rows.gap(("c", "AVG/MHA"), ("d", "AVG/MHA")),
        ),
        Ordering(
            name="inference",
            text="it is so mainly on inference (its fall minus the largest other group's)",
            value=mainly,
        ),
        Ordering(
            name="learned-full",
            text="fine-tuned, the leave-one-task-out trunk beats the plain one",
            value=rows.gap(("a", rows.first(_FULL_LEARNED)), ("a", rows.first(_FULL))),
        ),
        Ordering(
            name="poolers-c",
            text="leave-one-task-out trunk: attention beats the mean of positions, which beats the first (smaller gap)",
            value=rows.least([(("c", "LAST/MHA"), ("c", "LAST/POSAVG")), (("c", "LAST/POSAVG"), ("c", "LAST/CLS"))]),
        ),
    )


class _Rows(msgspec.Struct, frozen=True):
    """Averages by block and row."""

    table: Table

    def first(self, names: tuple[str, ...]) -> str:
        """The first of these names that a row of block a has."""
        there = {line.name for line in self.table.lines if line.block == "a"}
        return next((name for name in names if name in there), names[0])

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
        lines = [self._line(block, name) for block in ("c", "d")]
        if lines[0] is None or lines[1] is None:
            return {}
        pairs = zip(self.table.groups, lines[0].groups, lines[1].groups, strict=True)
        falls = {group: before - after for group, before, after in pairs if before is not None and after is not None}
        return falls if len(falls) == len(self.table.groups) else {}

    def _line(self, block: str, name: str) -> Line | None:
        return next((line for line in self.table.lines if (line.block, line.name) == (block, name)), None)

    def _average(self, key: tuple[str, str]) -> float | None:
        line = self._line(*key)
        return None if line is None else line.average
