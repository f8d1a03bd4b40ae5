"""A prompt group, tasks with shared adapters and a plain task over the golden trunk, as drafts with drawn arrays."""

import hashlib

import numpy as np

from formats.write_v1 import SHAPE, golden_trunk
from polyhead.bundle.create import write_bundle
from polyhead.bundle.manifest import TaskRecord
from polyhead.bundle.read import Bundle
from polyhead.bundle.write import Draft, FamilyDraft, add_tasks
from polyhead.plan import Delta, Embed, Head, Layers, Pool, Prompt
from polyhead.plan import Path as TaskPath
from polyhead.plan.cost import part_arrays
from polyhead.tasks.task import Task

GROUP = ("sad", "glad", "calm")
ROWS, ADAPTERS = "family:prompts:moods", "family:adapters"
ADAPTED = ("short", "long")


def embed(trunk, group=GROUP, rows=ROWS):
    """The one input of a group: shared rows first, then those of each task."""
    own = tuple(Prompt(part=f"task:{name}", rows=2) for name in group)
    return Embed(trunk=trunk, prompts=((Prompt(part=rows, rows=3),) if rows else ()) + own)


def head(name):
    return Head(kind="single_label", width=2, part=f"task:{name}", hidden=4)


def prompted(name, trunk, group=GROUP, rows=ROWS):
    pool = Pool(positions="prompt", part=f"task:{name}")
    return TaskPath(nodes=(embed(trunk, group, rows), Layers(start=0, stop=2), pool, head(name)))


def adapted(name, trunk, family=ADAPTERS):
    delta = Delta(kind="projected_attention", part=family, size=4, heads=2, tied=True)
    return TaskPath(nodes=(Embed(trunk=trunk), Layers(start=0, stop=2, delta=delta), Pool(), head(name)))


def plain(name, trunk):
    return TaskPath(nodes=(Embed(trunk=trunk), Layers(start=0, stop=2), Pool(), head(name)))


def drawn(path, owner, seed=0, shape=SHAPE):
    """The owner's arrays on the path, other ones for every owner and seed."""
    first = int.from_bytes(hashlib.sha256(owner.encode()).digest()[:4])
    rng = np.random.default_rng([first, seed])
    return {n: rng.standard_normal(s).astype(np.float32) for n, s in part_arrays(path, shape, owner).items()}


def draft(name, path, seed=0, probes=(), shape=SHAPE):
    task = Task(name=name, kind="single_label", labels=("no", "yes"))
    record = TaskRecord(task=task, path=path, trunk=path.embed.trunk, trained_with={"seed": seed})
    arrays = drawn(path, f"task:{name}", seed, shape)
    return Draft(record=record, arrays=arrays, scores={"splits": {}}, probes=probes, card=f"# {name}\n")


def family(owner, path, seed=0, shape=SHAPE):
    """Drawn by what the family is for, so that it has the same arrays under every name."""
    kind = "family:rows" if "prompts" in owner else "family:adapters"
    shapes = part_arrays(path, shape, owner)
    rng = np.random.default_rng([len(kind), seed])
    arrays = {name: rng.standard_normal(size).astype(np.float32) for name, size in shapes.items()}
    return FamilyDraft(family=owner, arrays=arrays)


def group(trunk, seed=0, names=GROUP, rows=ROWS, probes=(), shape=SHAPE):
    """Drafts of the group's tasks, and their families."""
    paths = {name: prompted(name, trunk, names, rows) for name in names}
    drafts = [draft(name, path, seed, probes, shape) for name, path in paths.items()]
    return drafts, [family(rows, next(iter(paths.values())), seed, shape)] if rows else []


def adapters(trunk, seed=0, names=ADAPTED, called=ADAPTERS, probes=(), shape=SHAPE):
    """Drafts of tasks with one adapter for all, and that family."""
    drafts = [draft(name, adapted(name, trunk, called), seed, probes, shape) for name in names]
    return drafts, [family(called, adapted("x", trunk, called), seed, shape)]


def add(root, made, *, replace=False):
    """Adds drafts and families in one step."""
    drafts, families = made
    return add_tasks(root, drafts, families=families, replace=replace)


def make(root, seed=0, trunk=None, probes=()):
    """A bundle with all of them, over the golden trunk or another."""
    trunk = trunk or golden_trunk()
    shape, digest = trunk.architecture, write_bundle(root, trunk).digest
    add_tasks(root, [draft("alone", plain("alone", digest), seed, probes, shape)])
    add(root, group(digest, seed, probes=probes, shape=shape))
    add(root, adapters(digest, seed, probes=probes, shape=shape))
    return Bundle.open(root)
