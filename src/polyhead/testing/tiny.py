"""A trunk of two layers, tasks over it, and paths of every form, made in code: nothing is downloaded."""

from __future__ import annotations

import itertools
import json
import string
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, get_args

import msgspec
import numpy as np
import tokenizers

from polyhead import codecs
from polyhead.codecs import EXACT, FeatureCodec, TokenCodec
from polyhead.encoder.configs import architecture_of
from polyhead.encoder.data import TextSettings, TrunkData
from polyhead.encoder.families import FAMILIES
from polyhead.encoder.shape import Architecture, Relative, Rotary, trunk_arrays
from polyhead.engine.backends.base import LoadedTask, TokenBatch
from polyhead.plan import (
    PLACE_OF,
    TRUNK,
    Codec,
    Delta,
    Dense,
    Embed,
    Head,
    Layers,
    Path,
    Pool,
    Positions,
    Prompt,
    cost,
    join_layers,
    shared_layers,
)
from polyhead.plan.coding import calibrate
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Task
from polyhead.values import Value

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS = (
    "the", "my", "order", "box", "lamp", "kettle", "phone", "bill", "card", "is", "was", "where", "when", "broken",
    "good", "bad", "happy", "sad", "please", "refund", "today", "monday", "anna", "ben", "you", "not", "and", "late",
)  # fmt: skip
PIECES = (*SPECIAL, *string.ascii_lowercase, *(f"##{c}" for c in string.ascii_lowercase), *"?.,!#0123456789", *WORDS)
PLAIN = Codec(name=EXACT)
DENSE: tuple[Dense, ...] = tuple(name for name in get_args(Dense) if name != "feed_forward.gate")


def _fixed(codec: FeatureCodec) -> Codec:
    """The codec with constants for values of about -5 to 5, or a table for vectors of the tiny trunk's tokens."""
    if codec.has_arrays:
        rng = np.random.default_rng(0)
        values, tokens = rng.standard_normal((512, 16)).astype(np.float32), rng.integers(-1, len(PIECES), 512)
        words = rng.standard_normal((len(PIECES), 16)).astype(np.float32)
        values += words[tokens] * (tokens >= 0)[:, None]  # so that tokens carry information
        if not isinstance(codec, TokenCodec):
            return calibrate(values, name=codec.name)
        return calibrate(values, name=codec.name, tokens=tokens, words=words)
    return Codec(name=codec.name, scale=(0.04,), zero=(128.0,)) if codec.has_constants else Codec(name=codec.name)


_CODECS = {name: _fixed(codec) for name, codec in codecs.CODECS.items()}
CODECS: Mapping[str, Codec] = _CODECS | {
    f"{name}-each": msgspec.structs.replace(codec, before_mean=True)
    for name, codec in _CODECS.items()
    if not codec.format.is_exact
}


class Check(Value, eq=False):
    """A property that must hold for one subject; `run` raises AssertionError if it does not."""

    subject: str
    name: str
    run: Callable[[], None]


def tiny_tokenizer() -> bytes:
    """A WordPiece tokenizer of about a hundred pieces: words of the tiny tasks, letters and digits."""
    vocabulary = {piece: index for index, piece in enumerate(PIECES)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = tokenizers.decoders.WordPiece()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return str(tokenizer.to_str()).encode()


_ROTARY = {"segments": 0, "position_table": False, "gated": True, "rotary": Rotary(base=10_000.0)}
_NO_BIAS = dict.fromkeys(("attention_bias", "output_bias", "inner_bias", "outer_bias", "norm_bias"), False)
FORMS: Mapping[str, Mapping[str, Any]] = {
    "bert": {},
    "roberta": {"first_position": 2, "segments": 1},
    "electra": {"embedding_width": 4},
    "distilbert": {"segments": 0},
    "mpnet": {"first_position": 2, "segments": 0, "relative": Relative(kind="bias", buckets=32, distance=128)},
    "modernbert": {
        **_ROTARY,
        **_NO_BIAS,
        "norm_first": True,
        "first_norm": False,
        "norm_epsilon": 1e-5,
        "local_rotary": Rotary(base=100.0),
        "window": 4,
        "whole_every": 2,
    },
    "deberta-v2": {
        "segments": 0,
        "position_table": False,
        "relative": Relative(kind="disentangled", buckets=16, distance=32, norm=True),
    },
    "bart": {"first_position": 2, "segments": 0, "norm_epsilon": 1e-5},
    "eurobert": {
        **_ROTARY,
        **_NO_BIAS,
        "norm_bias": True,
        "embedding_norm": False,
        "norm": "rms",
        "norm_first": True,
        "norm_epsilon": 1e-5,
        "key_heads": 1,
        "activation": "silu",
    },
    "gte": {**_ROTARY, "segments": 1, "inner_bias": False},
    "nomic_bert": {**_ROTARY, **_NO_BIAS, "norm_bias": True, "segments": 2, "activation": "silu"},
    "static": {"layers": 0, "heads": 1, "segments": 0, "position_table": False, "embedding_norm": False},
}
"""What sets the tiny trunk of a family apart from BERT's; others have what a config.json of these sizes says."""


def tiny_trunk(
    *, layers: int = 2, width: int = 16, max_tokens: int = 48, family: str = "bert", seed: int = 0
) -> TrunkData:
    """A trunk of two layers, 16 wide, with two heads, in the form of a family; its weights are drawn from `seed`."""
    fields = {"layers": layers, "width": width, "heads": 2, "feed_forward": 2 * width, "vocabulary": len(PIECES)}
    shape = Architecture(**{**fields, **FORMS.get(family, {})}, family=family)
    if family not in FORMS:
        known = FAMILIES.named(family)
        config = {"model_type": known.model_types[0], **{known.keys[name]: size for name, size in fields.items()}}
        shape = architecture_of(json.dumps(config).encode(), source=f"the tiny trunk of '{family}'")
    shape = msgspec.structs.replace(shape, positions=max_tokens + shape.first_position)
    rng = np.random.default_rng(seed)
    arrays = {name: _drawn(name, size, rng) for name, size in trunk_arrays(shape)}
    settings = TextSettings(max_tokens=max_tokens)
    return TrunkData(name="tiny", architecture=shape, arrays=arrays, tokenizer=tiny_tokenizer(), settings=settings)


def _drawn(name: str, size: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    centre = 1.0 if name.endswith("norm.weight") or name == "mix.scale" else 0.0
    return np.asarray(centre + 0.3 * rng.standard_normal(size), np.float32)


def tiny_tasks() -> tuple[Task, ...]:
    """One task of each kind that an encoder answers, and pairs read joined and separately."""
    return (
        Task(name="mood", kind="single_label", labels=("bad", "good")),
        Task(name="topics", kind="multi_label", labels=("order", "bill", "person")),
        Task(name="urgency", kind="regression", range=(0.0, 1.0)),
        Task(name="names", kind="tagging", labels=("O", "B-product", "I-product", "B-person", "I-person")),
        Task(name="same", kind="single_label", labels=("no", "yes"), pair="joined"),
        Task(name="alike", kind="regression", range=(0.0, 5.0), pair="separate"),
        Task(name="reply", kind="multiple_choice"),
        Task(name="where", kind="span"),
        Task(name="who", kind="span", null_answers=True),
    )


def tiny_part(path: Path, shape: Architecture, owner: str, *, seed: int = 1) -> dict[str, np.ndarray]:
    """Arrays for the part of `owner` on the path, drawn from `seed`."""
    rng = np.random.default_rng(seed)
    return {name: _drawn(name, size, rng) for name, size in cost.part_arrays(path, shape, owner).items()}


def tiny_owned(paths: Mapping[str, Path], shape: Architecture) -> dict[str, LoadedTask]:
    """Each path with the arrays of every owner on it: an owner's are drawn once, from its name, for all paths."""
    owned: dict[tuple[str, str], np.ndarray] = {}
    loaded: dict[str, LoadedTask] = {}
    for name, path in paths.items():
        read: dict[str, dict[str, np.ndarray]] = {}
        for array in cost.arrays_of_path(path, shape):
            if array.owner == TRUNK:
                continue
            key = array.owner, array.name
            if key not in owned:
                owned[key] = _drawn(array.name, array.shape, np.random.default_rng(zlib.crc32(" ".join(key).encode())))
            read.setdefault(array.owner, {})[array.name] = owned[key]
        loaded[name] = LoadedTask(path=path, arrays=read.pop(path.head.part), others=read)
    return loaded


def tiny_path(task: Task, trunk: TrunkData, *, pool: Pool, hidden: int = 8, stop: int | None = None) -> Path:
    """`Embed, Layers(0, stop), pool, Head`; the pool gets its part, and a tagging task reads words."""
    return _pooled_path(
        task, Embed(trunk=trunk.digest), trunk.architecture.layers if stop is None else stop, pool, hidden
    )


def _pooled_path(task: Task, embed: Embed, depth: int, pool: Pool, hidden: int, window: int = 0) -> Path:
    owner = f"task:{task.name}"
    positions = "tokens" if kind_of(task).per_word else pool.positions
    learned = pool.layers == "learned" or positions == "attention"
    head = Head(
        kind=task.kind,
        width=kind_of(task).width(task),
        part=owner,
        hidden=hidden,
        separate=task.pair == "separate",
        window=window,
    )
    chosen = Pool(
        layers=pool.layers,
        of=pool.of,
        positions=positions,
        heads=2 if positions == "attention" else 0,
        part=owner if learned else None,
        codec=pool.codec,
    )
    return Path(nodes=(embed, *shared_layers(depth), chosen, head))


def tiny_loaded(trunk: TrunkData, *, codec: Codec = PLAIN) -> dict[str, LoadedTask]:
    """Every tiny task with every layer mix and, for tasks over whole texts, every pooler: name -> path and arrays.

    A tagging task also reads each word's neighbours (`...-near`).
    """
    loaded: dict[str, LoadedTask] = {}
    embed, depth = Embed(trunk=trunk.digest), trunk.architecture.layers
    for task in tiny_tasks():
        windows = (0, 1) if kind_of(task).labels_words else (0,)
        for pool, window in itertools.product(_pools(task, codec), windows):
            name = f"{task.name}-{pool.layers}-{pool.positions}" + "-near" * window
            named = msgspec.structs.replace(task, name=name)
            path = _pooled_path(named, embed, depth, pool, hidden=8, window=window)
            arrays = tiny_part(path, trunk.architecture, f"task:{name}", seed=len(loaded))
            loaded[name] = LoadedTask(path=path, arrays=arrays)
    return loaded


def tiny_widths(trunk: TrunkData) -> dict[str, LoadedTask]:
    """Tasks of two, 40 and 70 labels, of whole texts by every pooler and of words: name -> path and arrays."""
    paths = {}
    pools: dict[str, tuple[Positions, ...]] = {"single_label": (*PLACE_OF, "mean", "attention"), "tagging": ("first",)}
    for kind, choices in pools.items():
        for positions, labels in itertools.product(choices, (2, 40, 70)):
            name = f"{kind}-{positions}-{labels}"
            task = Task(name=name, kind=kind, labels=tuple(f"l{i}" for i in range(labels)))
            pool = Pool(positions=positions, part="task:x" if positions == "attention" else None)
            paths[name] = tiny_path(task, trunk, pool=pool)
    return tiny_owned(paths, trunk.architecture)


def _pools(task: Task, codec: Codec) -> Iterator[Pool]:
    every: tuple[Positions, ...] = (*PLACE_OF, "mean", "attention")
    for positions in every[:-1] if task.kind == "multi_label" else ():
        yield Pool(layers="beside", of=2, positions=positions, codec=msgspec.structs.replace(codec, before_mean=True))
    for layers, of in (("last", 1), ("mean", 2), ("learned", 1)):
        for positions in every[:1] if kind_of(task).per_word else every:
            part = "task:x" if layers == "learned" or positions == "attention" else None
            yield Pool(layers=layers, of=of, positions=positions, part=part, codec=codec)  # type: ignore[arg-type]


def tiny_batch(trunk: TrunkData, lengths: tuple[int, ...], *, words: int = 3, seed: int = 0) -> TokenBatch:
    """Token ids of rows of these lengths, padded; each row has `words` words, and those beyond its end are unread."""
    rng = np.random.default_rng(seed)
    tokens = max(lengths, default=1)
    mask = np.arange(tokens) < np.array(lengths, np.int64)[:, None]
    ids = np.where(mask, rng.integers(5, trunk.architecture.vocabulary, mask.shape), 0)
    first = 1 + np.arange(words)[None]
    first_tokens = np.where(first < np.array(lengths, np.int64)[:, None] - 1, first, -1)
    segments = (mask & (np.arange(tokens) > tokens // 2)).astype(np.int64)
    return TokenBatch(ids=ids.astype(np.int64), mask=mask, segments=segments, words=first_tokens.astype(np.int64))


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
    "lora-everywhere": Delta(kind="lora", part="own", size=4, alpha=1.0, targets=DENSE),
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
    return _plain_path(trunk, name, *layers)


def prompted_path(trunk: TrunkData, name: str, prompts: Sequence[Prompt], **settings: bool) -> Path:
    """The trunk with these prompts and settings of `Embed`; the mean of its own rows in the last layer is read."""
    embed = Embed(trunk=trunk.digest, prompts=tuple(prompts), **settings)
    pool = Pool(positions="prompt", part=f"task:{name}")
    return _plain_path(trunk, name, embed=embed, pool=pool)


def on_top_path(trunk: TrunkData, name: str, layers: Layers) -> Path:
    """The trunk with these layers above it, using the task's own weights; read at the first position."""
    above = msgspec.structs.replace(layers, weights=f"task:{name}")
    return _plain_path(trunk, name, Layers(start=0, stop=trunk.architecture.layers), above)


def tiny_conditioned(trunk: TrunkData) -> dict[str, LoadedTask]:
    """A task of each form over a trunk of two layers, 16 wide, with the arrays of every owner; `plain` has none.

    Three joint prompts after a shared one, two with shifted text, isolated prompts, every delta in all layers, one in
    the upper layer, two kinds stacked, layers on top, and a scorer that two tasks share.
    """
    depth, paths = trunk.architecture.layers, {"plain": _plain_path(trunk, "plain")}
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
    tied, low_rank = (tiny_deltas("task:by-depth")[form] for form in ("attention-tied", "low-rank"))
    paths["by-depth"] = delta_path(trunk, "by-depth", low_rank, tied)
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
        paths[name] = _plain_path(trunk, name, hidden_part="family:pooler")
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


def _plain_path(
    trunk: TrunkData,
    name: str,
    *layers: Layers,
    embed: Embed | None = None,
    pool: Pool | None = None,
    hidden_part: str | None = None,
) -> Path:
    whole = Layers(start=0, stop=trunk.architecture.layers)
    head = Head(kind="single_label", width=2, part=f"task:{name}", hidden=8, hidden_part=hidden_part)
    return join_layers(Path(nodes=(embed or Embed(trunk=trunk.digest), *(layers or (whole,)), pool or Pool(), head)))
