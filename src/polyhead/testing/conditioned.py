"""Tiny paths with prompts before the text, functions inside the layers and layers on top: each form that there is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import msgspec

from polyhead.engine.backends.base import LoadedTask
from polyhead.plan import Delta, Dense, Embed, Head, Layers, Path, Pool, Prompt, joined
from polyhead.testing.tiny import tiny_owned
from polyhead.trunk.data import TrunkData

_DELTAS = {
    "attention": Delta(kind="projected_attention", part="own", size=6, heads=2),
    "attention-tied": Delta(kind="projected_attention", part="own", size=6, heads=3, tied=True, gelu="after"),
    "attention-ends": Delta(kind="projected_attention", part="own", size=4, heads=2, tied=True, ends="family:ends"),
    "attention-ends-by-layer": Delta(
        kind="projected_attention", part="own", size=4, heads=2, ends="family:ends-by-layer"
    ),
    "attention-all": Delta(kind="projected_attention", part="family:adapters", size=4, tied=True),
    "attention-serial": Delta(kind="projected_attention", part="own", size=4, tied=True, serial=True),
    "attention-scaled": Delta(kind="projected_attention", part="own", size=4, tied=True, gelu="after", scaled=True),
    "low-rank": Delta(kind="low_rank", part="own", size=3),
    "low-rank-gelu": Delta(kind="low_rank", part="own", size=3, gelu="inside"),
    "low-rank-serial": Delta(kind="low_rank", part="own", size=3, serial=True, gelu="after"),
    "feed-forward": Delta(kind="feed_forward", part="own", size=4, tied=True),
    "feed-forward-gelu": Delta(kind="feed_forward", part="own", size=4, gelu="inside"),
    "scale": Delta(kind="scale", part="own"),
    "bottleneck": Delta(kind="bottleneck", part="own", size=5),
    "prefix": Delta(kind="prefix", part="own", size=3),
    "lora": Delta(kind="lora", part="own", size=2, alpha=3.0, targets=("attention.query", "attention.value")),
    "lora-everywhere": Delta(kind="lora", part="own", size=4, alpha=1.0, targets=get_args(Dense)),
}


SIBLINGS = (
    "attention-ends", "attention-ends-by-layer", "attention-scaled", "low-rank-serial", "scale", "bottleneck", "prefix",
    "lora-everywhere",
)  # fmt: skip


def tiny_deltas(owner: str) -> dict[str, Delta]:
    """A delta of each kind with each of its settings; arrays that tasks do not share belong to `owner`."""
    return {
        name: msgspec.structs.replace(delta, part=owner) if delta.part == "own" else delta
        for name, delta in _DELTAS.items()
    }


def delta_path(trunk: TrunkData, name: str, *deltas: Delta | None) -> Path:
    """The trunk with one delta, or None, in each of its layers; read at the first position."""
    layers = (Layers(start=i, stop=i + 1, delta=delta) for i, delta in enumerate(deltas))
    return _path(trunk, name, *layers)


def prompted_path(trunk: TrunkData, name: str, prompts: Sequence[Prompt], **settings: bool) -> Path:
    """The trunk under these prompts, with settings of `Embed`; the mean of the own rows in the last layer is read."""
    embed = Embed(trunk=trunk.digest, prompts=tuple(prompts), **settings)
    pool = Pool(positions="prompt", part=f"task:{name}")
    return _path(trunk, name, embed=embed, pool=pool)


def on_top_path(trunk: TrunkData, name: str, layers: Layers) -> Path:
    """The trunk, and these layers above it with the task's own weights; read at the first position."""
    own = msgspec.structs.replace(layers, weights=f"task:{name}")
    return _path(trunk, name, Layers(start=0, stop=trunk.architecture.layers), own)


def tiny_conditioned(trunk: TrunkData) -> dict[str, LoadedTask]:
    """A task of each form over a trunk of two layers, 16 wide, with the arrays of every owner; `plain` has none.

    Three joint prompts behind a shared one, two whose text is shifted, isolated prompts, every delta in all layers, one
    in the upper layer, two kinds one above the other, layers on top, and a scorer that two tasks share.
    """
    depth, paths = trunk.architecture.layers, {"plain": _path(trunk, "plain")}
    group = {"joint-a": 2, "joint-b": 1, "joint-c": 3}
    prompts = [Prompt(part="family:prompts:joint", rows=2)]
    prompts += [Prompt(part=f"task:{name}", rows=rows) for name, rows in group.items()]
    paths |= {name: prompted_path(trunk, name, prompts) for name in group}
    moved = [Prompt(part=f"task:{name}", rows=2) for name in ("moved-a", "moved-b")]
    paths |= {name: prompted_path(trunk, name, moved, shift=True) for name in ("moved-a", "moved-b")}
    for name, rows in (("apart-a", 2), ("apart-b", 1), ("apart-c", 2)):
        paths[name] = prompted_path(trunk, name, [Prompt(part=f"task:{name}", rows=rows)], isolated=True)
    for form in _DELTAS:
        delta = tiny_deltas(f"task:in-{form}")[form]
        paths[f"in-{form}"] = delta_path(trunk, f"in-{form}", *[delta] * depth)
    upper = tiny_deltas("task:upper")["attention-tied"]
    paths["upper"] = delta_path(trunk, "upper", None, upper)
    one, other = (tiny_deltas("task:by-depth")[form] for form in ("attention-tied", "low-rank"))
    paths["by-depth"] = delta_path(trunk, "by-depth", other, one)
    narrow = Layers(start=depth, stop=depth + 3, width=8, enter=True, leave=True)
    for name, layers in (
        ("top-attention", msgspec.structs.replace(narrow, feed_forward=0, heads=4)),
        ("top-feed-forward", msgspec.structs.replace(narrow, feed_forward=12, attention=False)),
        ("top-two-hidden-layers", msgspec.structs.replace(narrow, feed_forward=10, attention=False, hidden_layers=2)),
        ("top-halves-alone", msgspec.structs.replace(narrow, feed_forward=12, residual=False)),
        ("top-layer", Layers(start=depth, stop=depth + 1)),
    ):
        paths[name] = on_top_path(trunk, name, layers)
    for name in ("scorer-a", "scorer-b"):
        paths[name] = _path(trunk, name, hidden_part="family:pooler")
    return tiny_owned(paths, trunk.architecture)


def tiny_siblings(trunk: TrunkData, *, of: int = 2) -> dict[str, LoadedTask]:
    """Several tasks of each of several forms, which differ only in their arrays: backends may run them at once."""
    depth, paths = trunk.architecture.layers, dict[str, Path]()
    for number in range(of):
        for form in SIBLINGS:
            name = f"{form}-{number}"
            paths[name] = delta_path(trunk, name, *[tiny_deltas(f"task:{name}")[form]] * depth)
        paths[f"upper-{number}"] = delta_path(
            trunk, f"upper-{number}", None, tiny_deltas(f"task:upper-{number}")["feed-forward"]
        )
        paths[f"top-{number}"] = on_top_path(trunk, f"top-{number}", Layers(start=depth, stop=depth + 1))
        prompt = Prompt(part=f"task:apart-{number}", rows=1 + number)
        paths[f"apart-{number}"] = prompted_path(trunk, f"apart-{number}", [prompt], isolated=True)
    return tiny_owned(paths, trunk.architecture)


def _path(
    trunk: TrunkData,
    name: str,
    *layers: Layers,
    embed: Embed | None = None,
    pool: Pool | None = None,
    hidden_part: str | None = None,
) -> Path:
    whole = Layers(start=0, stop=trunk.architecture.layers)
    head = Head(kind="single_label", width=2, part=f"task:{name}", hidden=8, hidden_part=hidden_part)
    return joined(Path(nodes=(embed or Embed(trunk=trunk.digest), *(layers or (whole,)), pool or Pool(), head)))
