"""How parts start before they learn with the trunk: from heads that were probed first, prompts from tokens or donors.

Linear probing, then fine-tuning: random heads would distort the trunk (Kumar et al. 2022). Prompts and poolers: MTOP.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path as FilePath
from typing import Protocol

import msgspec
import numpy as np
import torch
from torch import nn

from polyhead.plan import Path
from polyhead.project.recipes import ONE_TASK, Joint, Sampling, Training
from polyhead.sharing.make import arrays_of_part
from polyhead.strategies import Strategy
from polyhead.text.question import read_alone
from polyhead.text.tokenize import Tokenizer
from polyhead.train.data.prepare import alone, asked_of_donors
from polyhead.train.data.prepared import Prepared
from polyhead.train.loop.checkpoint import SUFFIX
from polyhead.train.loop.devices import Place
from polyhead.train.loop.events import Events
from polyhead.train.loop.feed import stream
from polyhead.train.loop.smooth import normalise_heads, settle_heads
from polyhead.train.recipes.paths import joint_paths
from polyhead.train.recipes.together import JointModel
from polyhead.trunk.data import TrunkData

FREQUENT = 5000  # tokens of a data set that a prompt may start from


class Learns(Protocol):
    """What a course of training gives when it ends (`course.Learned`)."""

    @property
    def arrays(self) -> dict[str, dict[str, np.ndarray]]:
        """Of each task."""

    @property
    def families(self) -> dict[str, dict[str, np.ndarray]]:
        """By owner."""


class Course(Protocol):
    """What is read of a course of joint training (`course.JointCourse`) to start its parts."""

    prepared: dict[str, Prepared]
    paths: dict[str, Path]
    data: TrunkData
    recipe: Joint
    training: Training
    module: JointModel
    tokenizer: Tokenizer
    place: Place
    events: Events
    frozen: bool

    def over_frozen_trunk(
        self,
        prepared: Sequence[Prepared],
        paths: Mapping[str, Path],
        recipe: Joint,
        *,
        training: Training,
        checkpoint: FilePath | None,
        place: Place,
    ) -> Course:
        """Another course over the same trunk, frozen."""

    def learn(self, label: str = ..., *, fresh: bool = ...) -> Learns:
        """Trains to the end."""


def start_parts(course: Course, *, checkpoint: FilePath | None = None) -> None:
    """Gives parts the start that recipe and strategies ask for; random ones have it already.

    What is trained for it is trained now, over the course's trunk, frozen; where it is interrupted it goes on beside
    `checkpoint`. A course that goes on from a checkpoint needs none of it.
    """
    if checkpoint is not None and checkpoint.exists():
        return
    _start_prompts(course, checkpoint)
    if course.recipe.head_epochs and not course.frozen:
        _probe(course, checkpoint)


def _probe(course: Course, checkpoint: FilePath | None) -> None:
    """All parts learn together for the recipe's `head_epochs`; the best of these epochs is kept.

    A schedule counts the epochs that follow, and its first ones may leave tasks out: here they come by their sizes.
    """
    recipe = msgspec.structs.replace(course.recipe, head_epochs=0, head_rate=1.0)
    if recipe.sampling.kind == "schedule":
        recipe = msgspec.structs.replace(recipe, sampling=Sampling(cap=recipe.sampling.cap))
    epochs, rate = course.recipe.head_epochs, course.recipe.head_learning_rate
    training = msgspec.structs.replace(
        course.training, epochs=epochs, patience=epochs, least_updates=0, learning_rate=rate
    )
    probing = course.over_frozen_trunk(
        list(course.prepared.values()),
        course.paths,
        recipe,
        training=training,
        checkpoint=_beside(checkpoint, "heads"),
        place=course.place,
    )
    for name, part in course.module.model.parts.items():
        _fill(probing.module.model.parts[name], arrays_of_part(part))
    probed = probing.learn("heads over the frozen trunk", fresh=False)
    settle_heads(course.module)  # as those that were probed are
    for name, arrays in probed.arrays.items():
        _fill(course.module.model.parts[name], arrays)
    for owner, arrays in probed.families.items():
        _fill(course.module.model.families[owner], arrays)
    if recipe.smoothing is not None and recipe.smoothing.spectral:
        normalise_heads(course.module)


def _beside(checkpoint: FilePath | None, what: str) -> FilePath | None:
    return checkpoint.with_name(f"{checkpoint.stem}-{what}{SUFFIX}") if checkpoint is not None else None


def _start_prompts(course: Course, checkpoint: FilePath | None) -> None:
    kept = [name for name, prepared in course.prepared.items() if prepared.donor is not None]
    if kept:
        course.events.line(f"{', '.join(kept)}: what starts from donors is taken from the bundle of donors")
    for name, prepared in course.prepared.items():
        strategy, part = prepared.strategy, course.module.model.parts[name]
        if strategy.frequent_rows:
            rows = frequent_tokens(prepared, course.tokenizer, strategy.frequent_rows)
            words = course.data.arrays["embeddings.word.weight"][rows]
            _fill(part, {"prompt.weight": np.asarray(words)})
        if strategy.donor_arrays():
            take(part, strategy, donor(course, prepared, checkpoint))


def frequent_tokens(prepared: Prepared, tokenizer: Tokenizer, rows: int) -> np.ndarray:
    """Ids of `rows` random tokens among the most frequent of the task's training texts, special tokens left out."""
    counts: Counter[int] = Counter()
    special = {one for e in tokenizer.encode([("",)]) for one in e.ids}
    for encoded in tokenizer.encode(read_alone(prepared.train.examples.inputs)):
        counts.update(int(one) for one in encoded.ids if one not in special)
    known = [token for token, _ in sorted(counts.items(), key=lambda one: (-one[1], one[0]))[:FREQUENT]]
    generator = np.random.default_rng(stream(prepared.training.seed, "prompt", prepared.task.name))
    return generator.choice(np.array(known), size=rows, replace=len(known) < rows)


def donor(course: Course, prepared: Prepared, checkpoint: FilePath | None) -> dict[str, np.ndarray]:
    """Prompt, pooler and head of the task alone over the frozen trunk: a run's before this one, or trained now."""
    if prepared.donor is not None:
        return prepared.donor.arrays
    name, own = prepared.task.name, alone(prepared)
    file = _beside(checkpoint, f"donor-{name}")
    trained = course.over_frozen_trunk(
        [own],
        joint_paths([own], course.data, ONE_TASK),
        ONE_TASK,
        training=own.training,
        checkpoint=file if course.place.is_first else None,
        place=Place(device=course.place.device),
    )
    return trained.learn(f"{name} (donor)").arrays[name]


def take(part: nn.Module, strategy: Strategy, arrays: Mapping[str, np.ndarray]) -> None:
    """Gives a part what the strategy asks of its donor's arrays."""
    _fill(part, asked_of_donors(strategy, arrays))


def _fill(part: nn.Module, arrays: Mapping[str, np.ndarray]) -> None:
    own = part.state_dict()
    part.load_state_dict({**own, **{name: torch.tensor(np.asarray(value)) for name, value in arrays.items()}})
