"""Writes the golden bundle of format 1 about which something was decided: a version gone back to, a task removed.

    python tests/formats/write_decided.py

It was run once, when format 1 got `pinned` and `removed`. Run it again into another folder only: the committed bundle
is the proof that files of old days are still read.
"""

import sys
from pathlib import Path

import msgspec

from formats.write_v1 import golden_part, golden_record, ramp
from formats.write_v1 import write as write_v1
from polyhead.bundle.read import Bundle

TRAINED = {"fingerprint": "0" * 16, "task": {"name": "gone"}}  # as training notes it


def write(folder: Path) -> Bundle:
    """The golden bundle, written into `folder` by the code of today."""
    bundle = write_v1(folder)
    again = {name: ramp(array.shape, 200 + i) for i, (name, array) in enumerate(golden_part().items())}
    record = golden_record(bundle.digest)
    bundle.add_task(record, again, scores={}, probes=[], card="# mood\n", replace=True)
    bundle.set_version("mood", "v0001")
    task = msgspec.structs.replace(record.task, name="gone")
    nodes = (*record.path.nodes[:-1], msgspec.structs.replace(record.path.head, part="task:gone"))
    path = msgspec.structs.replace(record.path, nodes=nodes)
    made = msgspec.structs.replace(record, task=task, path=path, trained_with=TRAINED)
    bundle.add_task(made, golden_part(), scores={}, probes=[], card="# gone\n")
    bundle.remove_task("gone")
    return Bundle.open(folder)


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "decided")
