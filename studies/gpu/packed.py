"""What travels to the card: a trunk in bfloat16, and sets whose texts are token ids. Needs numpy alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

WEIGHTS, SETS, FACTS = "weights.npz", "sets.npz", "pack.json"
FORMAT = 1
SPLITS = ("train", "validation", "test")


@dataclass(frozen=True, kw_only=True)
class TrunkShape:
    """A trunk of BERT's form."""

    layers: int
    width: int
    heads: int
    inner: int  # width of the feed-forward half
    epsilon: float  # of norms


@dataclass(frozen=True, kw_only=True, eq=False)
class PackedRows:
    """A split: texts as padded token ids, and what is to be answered."""

    ids: np.ndarray  # int32 (rows, tokens), 0 behind a text
    lengths: np.ndarray  # int64 (rows,)
    seconds: np.ndarray  # int64 (rows,): where the second text begins; the length where there is none
    targets: np.ndarray  # int64 (rows,) labels, or float32 (rows,) of a regression, 0 to 1

    def __len__(self) -> int:
        return len(self.lengths)

    def first(self, count: int) -> PackedRows:
        """The first rows alone."""
        return PackedRows(**{name: getattr(self, name)[:count] for name in ("ids", "lengths", "seconds", "targets")})


@dataclass(frozen=True, kw_only=True, eq=False)
class PackedSet:
    """A task and its splits."""

    name: str
    metric: str
    labels: int  # 0: a regression
    splits: Mapping[str, PackedRows]

    @property
    def outputs(self) -> int:
        """How many numbers a model answers with."""
        return self.labels or 1


@dataclass(frozen=True, kw_only=True, eq=False)
class Pack:
    """A trunk's arrays in float32, its shape, the sets by name, and a digest of what decides them."""

    shape: TrunkShape
    weights: Mapping[str, np.ndarray]
    sets: Mapping[str, PackedSet]
    digest: str


def write_pack(folder: Path, pack: Pack) -> int:
    """Writes the three files; returns their bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / WEIGHTS, allow_pickle=False, **{name: to_bfloat16(array) for name, array in pack.weights.items()})
    arrays = {}
    for name, one in pack.sets.items():
        for split, rows in one.splits.items():
            is_token = np.arange(rows.ids.shape[1]) < rows.lengths[:, None]
            arrays[f"{name}.{split}.ids"] = rows.ids[is_token].astype(np.uint16)
            arrays[f"{name}.{split}.lengths"] = rows.lengths.astype(np.uint16)
            arrays[f"{name}.{split}.seconds"] = rows.seconds.astype(np.uint16)
            arrays[f"{name}.{split}.targets"] = rows.targets.astype(np.int16 if one.labels else np.float32)
    np.savez_compressed(folder / SETS, allow_pickle=False, **arrays)
    facts = {
        "format": FORMAT,
        "digest": pack.digest,
        "shape": asdict(pack.shape),
        "sets": {name: {"metric": one.metric, "labels": one.labels} for name, one in pack.sets.items()},
    }
    (folder / FACTS).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    return sum((folder / file).stat().st_size for file in (WEIGHTS, SETS, FACTS))


def read_pack(folder: Path) -> Pack:
    """The pack in a folder; FileNotFoundError where there is none, ValueError for another format."""
    facts = json.loads((folder / FACTS).read_text(encoding="utf-8"))
    if facts["format"] != FORMAT:
        raise ValueError(f"{folder} has format {facts['format']}, not {FORMAT}: make it again with `make gpu-pack`")
    with np.load(folder / WEIGHTS) as file:
        weights = {name: from_bfloat16(file[name]) for name in file.files}
    with np.load(folder / SETS) as file:
        sets = {
            name: PackedSet(
                name=name,
                metric=one["metric"],
                labels=one["labels"],
                splits={split: _rows(file, f"{name}.{split}", bool(one["labels"])) for split in SPLITS},
            )
            for name, one in facts["sets"].items()
        }
    return Pack(shape=TrunkShape(**facts["shape"]), weights=weights, sets=sets, digest=facts["digest"])


def padded(flat: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Values of all rows, one after another, as (rows, longest), 0 behind each."""
    rows = np.zeros((len(lengths), int(lengths.max(initial=1))), np.int32)
    rows[np.arange(rows.shape[1]) < lengths[:, None]] = flat
    return rows


def to_bfloat16(array: np.ndarray) -> np.ndarray:
    """The upper halves of float32 numbers, rounded to the nearest, ties to even: uint16 of the same shape."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    rounded = bits + 0x7FFF + ((bits >> 16) & 1)
    return (rounded >> 16).astype(np.uint16).reshape(array.shape)


def from_bfloat16(halves: np.ndarray) -> np.ndarray:
    """Float32 numbers from their upper halves."""
    return (halves.astype(np.uint32) << 16).view(np.float32)


def _rows(file: Mapping[str, np.ndarray], name: str, are_labels: bool) -> PackedRows:
    lengths = file[f"{name}.lengths"].astype(np.int64)
    return PackedRows(
        ids=padded(file[f"{name}.ids"], lengths),
        lengths=lengths,
        seconds=file[f"{name}.seconds"].astype(np.int64),
        targets=file[f"{name}.targets"].astype(np.int64 if are_labels else np.float32),
    )
