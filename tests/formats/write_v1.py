"""Writes the golden bundle of format 1: a trunk of 2 layers, 16 wide, and a pooled task, of sine ramps.

    python tests/formats/write_v1.py

It was run once, when format 1 was made. Run it again into another folder only: the committed bundle is the
proof that files of old days are still read.
"""

import sys
from pathlib import Path

import numpy as np

from polyhead.bundle.create import write_bundle
from polyhead.bundle.manifest import TaskRecord
from polyhead.bundle.read import Bundle
from polyhead.encoder.data import TextSettings, TrunkData
from polyhead.encoder.shape import Architecture, trunk_arrays
from polyhead.plan import Codec, Embed, Head, Layers, Pool
from polyhead.plan import Path as TaskPath
from polyhead.tasks.task import Task

SHAPE = Architecture(layers=2, width=16, heads=2, feed_forward=16, vocabulary=24, positions=8)
TOKENIZER = b'{"version": "1.0", "model": {"type": "WordLevel", "vocab": {"[UNK]": 0}, "unk_token": "[UNK]"}}\n'


def ramp(shape, start):
    """The array whose i-th number is sin(start + i / 8), in float32."""
    return np.sin(start + np.arange(np.prod(shape)) / 8).astype(np.float32).reshape(shape)


def golden_trunk():
    """The trunk of the golden bundle."""
    arrays = {name: ramp(shape, i) for i, (name, shape) in enumerate(trunk_arrays(SHAPE))}
    return TrunkData(
        name="golden", architecture=SHAPE, arrays=arrays, tokenizer=TOKENIZER, settings=TextSettings(max_tokens=8)
    )


def golden_record(trunk):
    """The task of the golden bundle: two labels, mean of both layers, mean over positions, 8 bits."""
    task = Task(name="mood", kind="single_label", labels=("down", "up"))
    nodes = (
        Embed(trunk=trunk),
        Layers(start=0, stop=2),
        Pool(layers="mean", of=2, positions="mean", codec=Codec(name="uint8", scale=(0.0625,), zero=(128.0,))),
        Head(kind="single_label", width=2, part="task:mood", hidden=16),
    )
    return TaskRecord(task=task, path=TaskPath(nodes=nodes), trunk=trunk, trained_with={"seed": 0, "epochs": 3})


def golden_part():
    """The arrays of the golden task."""
    shapes = {
        "head.hidden.weight": (16, 16),
        "head.hidden.bias": (16,),
        "head.output.weight": (2, 16),
        "head.output.bias": (2,),
    }
    return {name: ramp(shape, 100 + i) for i, (name, shape) in enumerate(shapes.items())}


def write(folder: Path) -> Bundle:
    """The golden bundle, written into `folder` by the code of today."""
    bundle = write_bundle(folder, golden_trunk())
    bundle.add_task(
        golden_record(bundle.digest),
        golden_part(),
        scores={"splits": {"validation": {"accuracy": 0.75}, "test": {"accuracy": 0.5}}},
        probes=[{"input": ["so glad"], "answer": {"label": "up"}}],
        card="# mood\n\nA task of the tests.\n",
    )
    return Bundle.open(folder)


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "v1")
