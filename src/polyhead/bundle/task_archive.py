"""A task as one tar file for uploads: the files of its live version, and of the families that it reads."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from polyhead.bundle.files import open_inside
from polyhead.bundle.format import (
    CARD,
    CODEC,
    FAMILIES,
    FAMILY,
    LARGEST_CARD,
    LARGEST_JSON,
    LARGEST_TEXT,
    PART,
    PROBES,
    SCORES,
    SEEN,
    TASK,
    TASKS,
    TRUNK,
    TRUNK_RECORD,
)
from polyhead.bundle.manifest import TaskRecord
from polyhead.bundle.owners import place_of, task_names
from polyhead.bundle.read import Bundle
from polyhead.errors import BundleError

CHUNK = 2**20  # bytes that are read at a time
BLOCK = 512  # bytes of a tar's header, and what every member is filled up to
NEEDED = (TASK, PART, SCORES, PROBES, CARD)
LIMITS: Mapping[str, int] = {
    TASK: LARGEST_JSON,
    SCORES: LARGEST_JSON,
    PROBES: LARGEST_JSON,
    CARD: LARGEST_CARD,
    PART: 2**40,  # of arrays the limit of the whole is the smaller one
    CODEC: LARGEST_TEXT,
    SEEN: LARGEST_TEXT,
}
"""The files of a version, and the most bytes that each may have."""
FAMILY_LIMITS: Mapping[str, int] = {FAMILY: LARGEST_JSON, PART: 2**40}


def upload_bytes(bundle: Bundle, name: str) -> Iterator[bytes]:
    """The upload of a task's live version, with the families that it reads: equal bytes for equal files.

    With it goes what the bundle says of its trunk, so that a bundle of another can say in what they differ.

    Raises UnknownTask, and BundleError for a task that can only change together with others.
    """
    record = bundle.record(name)
    check_alone(record)
    files = [TASK, PART, *(file for file in (CODEC, SEEN) if file in record.files), SCORES, PROBES, CARD]
    places: dict[str, tuple[str, ...]] = {TRUNK_RECORD: (TRUNK, TRUNK_RECORD)}
    places |= {file: (TASKS, name, bundle.version(name), file) for file in files}
    for owner in sorted(owner for owner in record.needs if owner in bundle.families):
        folder, version = place_of(owner)[1], bundle.families[owner].version
        places |= {f"{FAMILIES}/{folder}/{file}": (FAMILIES, folder, version, file) for file in (FAMILY, PART)}
    for member, place in places.items():
        with open_inside(bundle.root, *place) as file:
            size = os.fstat(file.fileno()).st_size
            yield tar_header(member, size)
            yield from iter(lambda: file.read(CHUNK), b"")
            yield b"\0" * (-size % BLOCK)
    yield b"\0" * (2 * BLOCK)


def tar_header(name: str, size: int, *, kind: bytes = b"0") -> bytes:
    """A member's header, of a plain file by default, as tar writes it; no owner and no time."""
    fields = [name.encode("ascii").ljust(100, b"\0"), b"0000644\0", b"0000000\0", b"0000000\0"]
    fields += [b"%011o\0" % size, b"%011o\0" % 0, b" " * 8, kind, b"\0" * 100, b"ustar\x0000", b"\0" * 64]
    fields += [b"0000000\0", b"0000000\0"]
    block = b"".join(fields).ljust(BLOCK, b"\0")
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]


def check_alone(record: TaskRecord) -> None:
    """Raises BundleError for a task that can only change together with others."""
    others = task_names(record.needs)
    if others:
        raise BundleError(
            f"task '{record.task.name}' reads the prompts of other tasks, and can only change together with them",
            got=others,
            do="change all of them at once with `polyhead tasks update` on the server's machine",
        )
