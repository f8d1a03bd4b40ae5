"""What travels to the card: a trunk in bfloat16, and sets whose texts are token ids. Needs numpy alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

WEIGHTS, SETS, FACTS = "weights.npz", "sets.npz", "pack.json"
FORMAT = 2
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
    """A trunk's arrays in float32, its shape, the tasks by name, and a digest of what decides them.

    `mix` are sets that a trunk learns from before it is fine-tuned, in their nested order; they have a split alone.
    """

    shape: TrunkShape
    weights: Mapping[str, np.ndarray]
    sets: Mapping[str, PackedSet]
    digest: str
    mix: Mapping[str, PackedSet] = field(default_factory=dict)


def write_pack(folder: Path, pack: Pack) -> int:
    """Writes the three files; returns their bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    halves = {name: to_bfloat16(array) for name, array in pack.weights.items()}
    planes = {name: np.stack([half >> 8, half & 255]).astype(np.uint8) for name, half in halves.items()}
    np.savez_compressed(folder / WEIGHTS, allow_pickle=False, **planes)  # exponents alone take half of their bytes
    arrays: dict[str, np.ndarray] = {}
    for which, several in (("sets", pack.sets), ("mix", pack.mix)):
        for one in several.values():
            for split, rows in one.splits.items():
                arrays |= {f"{which}.{one.name}.{split}.{name}": array for name, array in _arrays(rows).items()}
    np.savez_compressed(folder / SETS, allow_pickle=False, **arrays)
    facts = {
        "format": FORMAT,
        "digest": pack.digest,
        "shape": asdict(pack.shape),
        "sets": list(map(_facts, pack.sets.values())),
        "mix": list(map(_facts, pack.mix.values())),
    }
    (folder / FACTS).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    return sum((folder / file).stat().st_size for file in (WEIGHTS, SETS, FACTS))


def read_pack(folder: Path) -> Pack:
    """The pack in a folder; FileNotFoundError where there is none, ValueError for another format."""
    facts = json.loads((folder / FACTS).read_text(encoding="utf-8"))
    if facts["format"] != FORMAT:
        raise ValueError(f"{folder} has format {facts['format']}, not {FORMAT}: make it again with `make gpu-pack`")
    with np.load(folder / WEIGHTS) as file:
        planes = {name: file[name].astype(np.uint16) for name in file.files}
    with np.load(folder / SETS) as file:
        sets, mix = ({one["name"]: _set(file, which, **one) for one in facts[which]} for which in ("sets", "mix"))
    return Pack(
        shape=TrunkShape(**facts["shape"]),
        weights={name: from_bfloat16((high << 8) | low) for name, (high, low) in planes.items()},
        sets=sets,
        mix=mix,
        digest=facts["digest"],
    )


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


def _facts(one: PackedSet) -> dict[str, object]:
    return {"name": one.name, "metric": one.metric, "labels": one.labels, "splits": list(one.splits)}


def _arrays(rows: PackedRows) -> dict[str, np.ndarray]:
    is_token = np.arange(rows.ids.shape[1]) < rows.lengths[:, None]
    return {
        "ids": rows.ids[is_token].astype(np.uint16),
        "lengths": rows.lengths.astype(np.uint16),
        "seconds": rows.seconds.astype(np.uint16),
        "targets": rows.targets.astype(np.float32 if rows.targets.dtype.kind == "f" else np.int16),
    }


def _set(
    file: Mapping[str, np.ndarray], which: str, *, name: str, metric: str, labels: int, splits: list[str]
) -> PackedSet:
    own = {split: _rows(file, f"{which}.{name}.{split}", bool(labels)) for split in splits}
    return PackedSet(name=name, metric=metric, labels=labels, splits=own)


def _rows(file: Mapping[str, np.ndarray], name: str, are_labels: bool) -> PackedRows:
    lengths = file[f"{name}.lengths"].astype(np.int64)
    return PackedRows(
        ids=padded(file[f"{name}.ids"], lengths),
        lengths=lengths,
        seconds=file[f"{name}.seconds"].astype(np.int64),
        targets=file[f"{name}.targets"].astype(np.int64 if are_labels else np.float32),
    )
