"""The ways of making a trunk that the studies compare, each a recipe over some of the sets."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import msgspec

from polyhead.project.recipes import Joint, Sampling, Training, Weighting
from polyhead.project.strategies import Pooled
from polyhead.values import Value
from studies.aghajanyan2021.sets import MIX, NESTED

MAX_TOKENS = 128
ROWS, VALIDATION = (1500, 300)  # of a held-out task: training rows, and rows of train set aside for every choice
LEARN_ROWS = 3000  # of a set that a trunk learns from: training rows at most
SMALL_SETS, SMALL_ROWS = 12, 500  # of the comparisons of schemes, losses and samplers

WHOLE = Pooled(layers="last", positions="mean", codec="float32")  # of tasks that fine-tune a trunk of their own
POOLED = Pooled(layers="mean", of=4, positions="attention", codec="float32")  # of tasks that a trunk learns from
# Heads learn over the frozen trunk first: random ones would distort it (Kumar et al. 2022).
JOINT = Joint(micro_batches=4, validation_rows=50, layer_dropout=0.0, head_epochs=1, head_learning_rate=1e-3)
LEARNING = Training(epochs=2, patience=2, batch=8, learning_rate=1e-4, warmup=0.06)


class Mix(Value):
    """One way of making a trunk."""

    name: str
    sets: tuple[str, ...]  # folders
    recipe: Joint = JOINT
    training: Training = LEARNING
    rows: int = LEARN_ROWS  # of each set at most
    natural: bool = False  # `rows` are the mean of the sets, each in proportion to its natural size

    def digest(self) -> str:
        """A short digest of what decides the trunk, besides the seed."""
        content = msgspec.to_builtins([self, MAX_TOKENS, VALIDATION, POOLED])
        if self.recipe.blend == 1:
            del content[0]["recipe"]["blend"]
        return hashlib.sha256(msgspec.json.encode(content, order="sorted")).hexdigest()[:8]

    def rows_of(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Training rows of each set, by the sizes of their train files."""
        if not self.natural:
            return dict.fromkeys(self.sets, self.rows)
        total = sum(sizes[folder] for folder in self.sets)
        return {folder: round(self.rows * len(self.sets) * sizes[folder] / total) for folder in self.sets}


def folders(count: int) -> tuple[str, ...]:
    """The first sets of the nested order."""
    return tuple(dataset.folder for dataset in MIX[:count])


def _changed(**fields: object) -> Joint:
    return msgspec.structs.replace(JOINT, **fields)


# Seven tenths of what was learned: chosen on the first seed's validation scores (docs/project/log.md).
BLENDED = _changed(heads="strip", blend=0.7)
NESTED_MIXES = tuple(Mix(name=f"sets-{count}", sets=folders(count), recipe=BLENDED) for count in NESTED)
WHOLE_MIX = Mix(name=f"sets-{NESTED[-1]}-whole", sets=folders(NESTED[-1]))  # all of what was learned

_SMALL = {
    "heterogeneous": JOINT,
    "batch": _changed(scheme="batch"),
    "dataset": _changed(scheme="dataset"),
    "unscaled": _changed(weighting=Weighting(scaled=False)),
}
SMALL_MIXES = tuple(
    Mix(name=name, sets=folders(SMALL_SETS), recipe=recipe, rows=SMALL_ROWS) for name, recipe in _SMALL.items()
)

_NATURAL = {
    "proportional": JOINT,
    "square-root": _changed(sampling=Sampling(exponent=0.5)),
    "annealed": _changed(sampling=Sampling(kind="annealed")),
}
NATURAL_MIXES = tuple(
    Mix(
        name=name,
        sets=folders(SMALL_SETS),
        recipe=recipe,
        rows=SMALL_ROWS,
        natural=True,
        training=msgspec.structs.replace(LEARNING, epochs=5, patience=5),
    )
    for name, recipe in _NATURAL.items()
)
