"""Writes the golden bundle of format 1 in which tasks share arrays, over the trunk of `write_v1`, of sine ramps.

    python tests/formats/write_families.py

It was run once, when format 1 got families. Run it again into another folder only: the committed bundle is the
proof that files of old days are still read.
"""

import sys
from pathlib import Path

from formats.write_v1 import SHAPE, golden_trunk, ramp
from polyhead.bundle.create import write_bundle
from polyhead.bundle.manifest import TaskRecord
from polyhead.bundle.read import Bundle
from polyhead.bundle.write import Draft, FamilyDraft, add_tasks
from polyhead.plan import Delta, Embed, Head, Layers, Pool, Prompt
from polyhead.plan import Path as TaskPath
from polyhead.plan.cost import part_arrays
from polyhead.tasks.task import Task

ROWS, ADAPTERS, POOLER = "family:prompts:moods", "family:adapters", "family:pooler"


def prompted(name, trunk):
    """A task of a prompt group of two, with shared rows before theirs."""
    prompts = (Prompt(part=ROWS, rows=1), Prompt(part="task:glad", rows=2), Prompt(part="task:sad", rows=2))
    nodes = (
        Embed(trunk=trunk, prompts=prompts, shift=True),
        Layers(start=0, stop=2),
        Pool(positions="prompt", part=f"task:{name}"),
        Head(kind="single_label", width=2, part=f"task:{name}", hidden=4, bias=False),
    )
    return TaskPath(nodes=nodes)


def adapted(name, trunk):
    """A task with adapters between matrices, and a pooler, that all such tasks share."""
    delta = Delta(
        kind="projected_attention", part=f"task:{name}", size=4, heads=2, tied=True, ends=ADAPTERS, gelu="inside"
    )
    nodes = (
        Embed(trunk=trunk),
        Layers(start=0, stop=2, delta=delta),
        Pool(),
        Head(kind="single_label", width=2, part=f"task:{name}", hidden=4, hidden_part=POOLER),
    )
    return TaskPath(nodes=nodes)


PATHS = {"glad": prompted, "sad": prompted, "long": adapted, "short": adapted}


def arrays(path, owner, start):
    """The owner's arrays on the path, ramps from `start` on."""
    return {name: ramp(size, start + i) for i, (name, size) in enumerate(part_arrays(path, SHAPE, owner).items())}


def write(folder: Path) -> Bundle:
    """The golden bundle, written into `folder` by the code of today."""
    trunk = write_bundle(folder, golden_trunk()).digest
    drafts = []
    for place, (name, make) in enumerate(PATHS.items()):
        path = make(name, trunk)
        task = Task(name=name, kind="single_label", labels=("no", "yes"))
        record = TaskRecord(task=task, path=path, trunk=trunk)
        own = arrays(path, f"task:{name}", 100 * place)
        drafts.append(Draft(record=record, arrays=own, scores={}, probes=[], card=f"# {name}\n"))
    families = [
        FamilyDraft(family=ROWS, arrays=arrays(drafts[0].record.path, ROWS, 500)),
        FamilyDraft(family=ADAPTERS, arrays=arrays(drafts[2].record.path, ADAPTERS, 600)),
        FamilyDraft(family=POOLER, arrays=arrays(drafts[2].record.path, POOLER, 700)),
    ]
    add_tasks(folder, drafts, families=families)
    return Bundle.open(folder)


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "families")
