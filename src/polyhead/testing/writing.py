"""A task that writes over the tiny trunk, and checks that a backend's decoder computes as the reference does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import numpy as np

from polyhead.encoder.data import TrunkData
from polyhead.encoder.decoder import Decoder
from polyhead.engine.backends.base import Backend, LoadedTask
from polyhead.engine.backends.reference import ReferenceBackend
from polyhead.plan import Embed, Head, Path, Pool, merge, shared_layers
from polyhead.tasks.generation import GenerationRules
from polyhead.tasks.task import Task, owner_of
from polyhead.testing.tiny import Check, tiny_batch, tiny_loaded, tiny_part

STEPS, BEAMS = 20, 2  # more steps than arrays of kept keys have room for at first
LENGTHS = (5, 9, 2)


def tiny_writing(trunk: TrunkData, name: str = "brief", *, seed: int = 1) -> tuple[Task, LoadedTask]:
    """A task with a decoder of two layers, drawn at random, which starts at [CLS] and ends at [SEP]."""
    rules = GenerationRules(start=2, ends=(3,), pad=0, tokens=8)
    task, shape = Task(name=name, kind="summarization", generation=rules), trunk.architecture
    decoder = Decoder(layers=2, heads=2, feed_forward=12, positions=STEPS + 4, first_position=1)
    head = Head(kind=task.kind, width=shape.vocabulary, part=owner_of(task), decoder=decoder)
    path = Path(nodes=(Embed(trunk=trunk.digest), *shared_layers(shape.layers), Pool(positions="all"), head))
    return task, LoadedTask(path=path, arrays=tiny_part(path, shape, head.part, seed=seed))


def writing_checks(
    subject: str, make: Callable[[TrunkData, Mapping[str, LoadedTask]], Backend], trunk: TrunkData
) -> Iterator[Check]:
    """Checks of a backend over this trunk; none where a decoder cannot share its word vectors."""
    if trunk.architecture.embedding_width in (None, trunk.architecture.width):
        yield Check(
            subject=subject, name="writes by a decoder as the reference", run=partial(_assert_writes, make, trunk)
        )


def _assert_writes(make: Callable[[TrunkData, Mapping[str, LoadedTask]], Backend], trunk: TrunkData) -> None:
    """States come with the outputs of another task; each step's scores are those of the reference."""
    other, loaded = next(iter(tiny_loaded(trunk).items()))
    tasks = {other: loaded, "brief": tiny_writing(trunk)[1]}
    plan, batch = merge({name: task.path for name, task in tasks.items()}), tiny_batch(trunk, LENGTHS)
    backend, reference = make(trunk, tasks), ReferenceBackend(trunk, tasks)
    ours, expected = (each.run(plan, batch)["brief"] for each in (backend, reference))
    assert ours.shape == expected.shape, f"states {ours.shape} in place of {expected.shape}"
    assert np.abs(ours - expected)[batch.mask].max() <= max(backend.tolerance, 1e-6)
    steps = [each.decoder("brief") for each in (backend, reference)]
    caches = [step.begin(expected, batch.mask) for step in steps]
    rng, texts = np.random.default_rng(0), np.arange(len(LENGTHS))
    for number in range(STEPS):
        ids = rng.integers(0, trunk.architecture.vocabulary, (len(texts), BEAMS))
        stepped = [step.step(ids, cache) for step, cache in zip(steps, caches, strict=True)]
        difference = float(np.abs(stepped[0][0] - stepped[1][0]).max())
        assert difference <= max(backend.tolerance, 1e-6), f"scores of step {number} differ by {difference:.1e}"
        kept = np.arange(1 if number == STEPS // 2 else 0, len(texts))  # the first text ends
        rows = (kept[:, None] * BEAMS + rng.integers(0, BEAMS, (len(kept), BEAMS))).reshape(-1)
        caches, texts = [cache.only(kept, rows) for _, cache in stepped], texts[kept]
