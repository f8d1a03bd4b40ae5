"""The study of joint training as tables: held-out tasks before and after, and the sets that trunks learn from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from polyhead.values import Value
from studies.aghajanyan2021.mixes import ROWS
from studies.aghajanyan2021.sets import MIX
from studies.aghajanyan2021.study import BEST, Row, Trunk, gains, mean_by_seed, scores, tasks_of
from studies.shared.data import Set
from studies.shared.rows import BySeed, Split, Spread, over_seeds

_FAMILIES = {"tagging": "tagging", "commonsense": "multiple choice", "similarity": "regression"}  # by group
_SPANS = ("squad_v1",)


class Compared(Value):
    """One held-out task, in points over seeds: heads over the plain trunk, over a mix's, and full fine-tuning."""

    task: str
    metric: str
    plain: Spread | None
    mixed: Spread | None
    gain: Spread | None  # of each seed alone, then over seeds
    full: Spread | None  # of the plain trunk
    full_mixed: Spread | None  # of the mix's trunk


class Family(Value):
    """Sets of one kind that a trunk learns from."""

    name: str
    sets: tuple[str, ...]
    rows: int  # training rows


class Way(Value):
    """One way of mixing, in mean points above the plain trunk: the held-out tasks, by seed and over seeds."""

    mix: str
    seeds: BySeed
    gain: Spread | None


def compared(
    rows: Sequence[Row], mix: str = BEST, *, tasks: Sequence[str] | None = None, split: Split = "test"
) -> tuple[Compared, ...]:
    """These tasks (None: all), in the study's order."""
    plain, mixed = scores(rows, split=split), scores(rows, mix, split=split)
    full, full_mixed = (scores(rows, name, stage="full", split=split) for name in ("plain", mix))
    gain = gains(rows, mix, split=split)
    metrics = {row.task: row.metric for row in rows}
    return tuple(
        Compared(
            task=task,
            metric=metrics[task],
            plain=over_seeds(plain.get(task, {})),
            mixed=over_seeds(mixed.get(task, {})),
            gain=over_seeds(gain.get(task, {})),
            full=over_seeds(full.get(task, {})),
            full_mixed=over_seeds(full_mixed.get(task, {})),
        )
        for task in tasks_of(rows)
        if tasks is None or task in tasks
    )


def ways(rows: Sequence[Row], mixes: Sequence[str], *, split: Split = "test") -> tuple[Way, ...]:
    """How much each of these mixes gains in the mean; one without a whole seed has no gain."""
    gain_by_mix: Mapping[str, BySeed] = {
        mix: mean_by_seed(rows, gains(rows, mix, split=split)) for mix in dict.fromkeys(mixes)
    }
    return tuple(Way(mix=mix, seeds=points, gain=over_seeds(points)) for mix, points in gain_by_mix.items())


def family_of(dataset: Set) -> str:
    """The kind of a set that trunks learn from, in plain words."""
    if dataset.folder in _SPANS:
        return "reading (spans)"
    return _FAMILIES.get(dataset.group, "classification")


def families(trunks: Sequence[Trunk] = (), *, mix: str = BEST) -> tuple[Family, ...]:
    """The sets by kind; rows are those that the mix's trunk learned from, where there is one, else at most so many."""
    trunk = next((learned for learned in trunks if learned.mix == mix), None)
    by_family: dict[str, list[Set]] = {}
    for dataset in MIX:
        if trunk is None or dataset.task in trunk.examples:
            by_family.setdefault(family_of(dataset), []).append(dataset)
    return tuple(
        Family(
            name=name,
            sets=tuple(dataset.task for dataset in datasets),
            rows=sum(ROWS if trunk is None else trunk.examples[dataset.task] for dataset in datasets),
        )
        for name, datasets in by_family.items()
    )
