"""Limits of tasks that are trained together, checked before training."""

from __future__ import annotations

from collections.abc import Sequence

from polyhead.errors import ConfigError
from polyhead.project.recipes import Joint
from polyhead.project.strategies.generating import Generating
from polyhead.tasks.kinds import kind_of
from polyhead.train.data.prepared import Prepared
from polyhead.train.runs import ProcessRank


def check_joint_settings(place: ProcessRank, recipe: Joint, prepared: Sequence[Prepared]) -> None:
    """Raises ConfigError for settings of a recipe that these tasks, or processes, cannot follow."""
    _check_matrices(recipe, prepared)
    _check_passes(place, recipe, prepared)
    _check_sharding(place, recipe, prepared)


def _check_passes(place: ProcessRank, recipe: Joint, prepared: Sequence[Prepared]) -> None:
    """Raises for sharded layers with smoothing and a regression: all processes must run them equally often."""
    plain = [p.task.name for p in prepared if kind_of(p.task).loss == "squared_error"]
    if place.world > 1 and recipe.parallel == "fsdp" and recipe.smoothing is not None and plain:
        raise ConfigError(
            "smoothing is not computed over sharded layers where a regression learns too",
            got=f"parallel 'fsdp', regressions {plain}",
            do="set recipe.parallel = 'ddp', or train without smoothing or without regressions",
        )


def _check_matrices(recipe: Joint, prepared: Sequence[Prepared]) -> None:
    """Raises ConfigError for R4F with a task that writes: its output is the trunk's word vectors."""
    tied = [p.task.name for p in prepared if isinstance(p.strategy, Generating)]
    if recipe.smoothing is not None and recipe.smoothing.spectral and tied:
        raise ConfigError(
            "smoothing.spectral divides the matrix of each head's output, and those who write have none of their own",
            got=f"tasks {tied}",
            do="leave 'spectral' out, or these tasks",
        )


def _check_sharding(place: ProcessRank, recipe: Joint, prepared: Sequence[Prepared]) -> None:
    """Raises for prompts, adapters and decoders with sharding: they use weights outside the pass that gathers them."""
    inside = [p.task.name for p in prepared if p.strategy.reaches_inside]
    if place.world > 1 and recipe.parallel == "fsdp" and inside:
        raise ConfigError(
            "prompts, adapters and decoders do not learn beside sharded layers",
            got=f"parallel 'fsdp', tasks {inside}",
            do="set recipe.parallel = 'ddp'",
        )
