"""Stored values of paths, from the states of the trunk's own layers: what `Backend.features` gives."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from polyhead.engine.backends.base import FeatureBatch
from polyhead.errors import BackendError, PlanError
from polyhead.plan import PLACE_OF, TRUNK, Path, Pool
from polyhead.text.encodings import starts_of

POSITIONS = ("all", *PLACE_OF, "mean")  # of stored values that follow from a text alone


def stored_paths(paths: Sequence[Path]) -> list[Path]:
    """The stored form of each path; raises BackendError if it depends on more than a text and the trunk."""
    stored = [path.stored() for path in paths]
    for path in stored:
        _check_trunk(path)
        if path.pool.positions not in POSITIONS:
            raise BackendError(
                "features of words depend on which words are read",
                got=f"positions '{path.pool.positions}'",
                allowed=POSITIONS,
                do="take positions 'all', and each word's first token of these",
            )
        if path.pool.layers == "mean" and path.pool.of > depth_of(path):
            raise PlanError("a pool reads more layers than its path runs", got=path.pool.of, allowed=depth_of(path))
    return stored


def with_every_token(path: Path) -> Path:
    """The stored path; one of words with every token in their place, since words are picked of these."""
    pool = path.pool
    if pool.positions == "tokens":
        pool = msgspec.structs.replace(pool, positions="all")
    return Path(nodes=(*path.nodes[:-1], pool))


def check_feature_batch(task: str, path: Path, features: FeatureBatch, width: int) -> None:
    """Raises BackendError where these are not the features that the task's pooler reads."""
    _check_trunk(path)
    kept, needed = features.values.shape[2:], (stored_layers(path), width)
    if kept != needed:
        raise BackendError(
            f"task '{task}' reads other features",
            got=f"{kept[0]} layers of width {kept[1]}",
            allowed=f"{needed[0]} layers of width {needed[1]}",
            do="give the stored value of the task's own path",
        )


def _check_trunk(path: Path) -> None:
    if path.embed.prompts or any(node.weights != TRUNK or node.delta is not None for node in path.layers):
        raise BackendError(
            "features are kept of the trunk's own layers, and this path has prompts, layers or functions of a part",
            got=path.nodes,
            do="keep the features below them, or answer the task from texts",
        )


def depth_of(path: Path) -> int:
    """The number of layers that the path runs."""
    return path.depth


def layers_read(path: Path) -> list[int]:
    """The layers whose outputs a stored value holds or averages, from 1; 0 is the embedding."""
    depth, pool = depth_of(path), path.pool
    first = {"last": depth, "mean": depth - pool.of + 1, "all": 1}[pool.layers]
    return list(range(first, depth + 1))


def is_averaged(pool: Pool) -> bool:
    """Whether its layers are averaged before the codec, so that one is kept."""
    return pool.layers == "mean" and not pool.codec.before_mean


def stored_layers(path: Path) -> int:
    """The number of layers per token that are stored for a path."""
    pool = path.stored().pool
    return 1 if is_averaged(pool) else len(layers_read(path.stored()))


def pooled_value(pool: Pool, states: Sequence[np.ndarray], lengths: np.ndarray) -> np.ndarray:
    """A stored pool's value before its codec, float32 (positions of all texts, layers, width).

    `states` are the layers that it reads, or their average: each float32 (tokens, width), text after text; `lengths`
    (texts,) are the tokens of each text. Positions are every token, or one a text.
    """
    layers = [_positions(pool, state, lengths) for state in states]
    if is_averaged(pool) and len(layers) > 1:
        layers = [sum(layers[1:], layers[0]) / np.float32(len(layers))]
    return layers[0][:, None] if len(layers) == 1 else np.stack(layers, axis=1)


def _positions(pool: Pool, state: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    starts = starts_of(lengths)[:-1]
    if pool.positions in PLACE_OF:
        return np.ascontiguousarray(state[starts + np.minimum(PLACE_OF[pool.positions], lengths - 1)])
    if pool.positions == "mean":
        weighted = state / np.repeat(lengths, lengths)[:, None].astype(np.float32)
        return np.add.reduceat(weighted, starts, axis=0) if len(starts) else weighted
    return state
