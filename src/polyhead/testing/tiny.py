"""A trunk of two layers and tasks over it, made in code: nothing is downloaded."""

from __future__ import annotations

import itertools
import string
import zlib
from collections.abc import Iterator, Mapping

import msgspec
import numpy as np
import tokenizers

from polyhead import cost
from polyhead.engine.backends.base import LoadedTask, TokenBatch
from polyhead.plan import TRUNK, Codec, Embed, Head, Layers, Path, Pool, Positions
from polyhead.store import codecs
from polyhead.store.codecs import EXACT
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Task
from polyhead.trunk.data import TextSettings, TrunkData
from polyhead.trunk.shape import Architecture, Family, trunk_arrays

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS = (
    "the",
    "my",
    "order",
    "box",
    "lamp",
    "kettle",
    "phone",
    "bill",
    "card",
    "is",
    "was",
    "where",
    "when",
    "broken",
    "good",
    "bad",
    "happy",
    "sad",
    "please",
    "refund",
    "today",
    "monday",
    "anna",
    "ben",
    "you",
    "not",
    "and",
    "late",
)
PIECES = (*SPECIAL, *string.ascii_lowercase, *(f"##{c}" for c in string.ascii_lowercase), *"?.,!#0123456789", *WORDS)
PLAIN = Codec(name=EXACT)
_CODECS = {
    name: Codec(name=name, scale=(0.04,), zero=(128.0,)) if codec.has_constants else Codec(name=name)
    for name, codec in codecs.CODECS.items()
}
CODECS: Mapping[str, Codec] = _CODECS | {
    f"{name}-each": msgspec.structs.replace(codec, before_mean=True)
    for name, codec in _CODECS.items()
    if not codec.format.is_exact
}


def tiny_tokenizer() -> bytes:
    """A WordPiece tokenizer of about a hundred pieces, built here: words of the tiny tasks, letters and digits."""
    vocabulary = {piece: index for index, piece in enumerate(PIECES)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = tokenizers.decoders.WordPiece()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return str(tokenizer.to_str()).encode()


def tiny_trunk(
    *, layers: int = 2, width: int = 16, max_tokens: int = 48, family: Family = "bert", seed: int = 0
) -> TrunkData:
    """A trunk of two layers, 16 wide, with two heads; its weights are drawn from `seed`."""
    shape = Architecture(
        layers=layers,
        width=width,
        heads=2,
        feed_forward=2 * width,
        vocabulary=len(PIECES),
        family=family,
        positions=max_tokens + (2 if family == "roberta" else 0),
        first_position=2 if family == "roberta" else 0,
        segments=0 if family == "distilbert" else 1 if family == "roberta" else 2,
    )
    rng = np.random.default_rng(seed)
    arrays = {name: _drawn(name, size, rng) for name, size in trunk_arrays(shape)}
    settings = TextSettings(max_tokens=max_tokens)
    return TrunkData(name="tiny", architecture=shape, arrays=arrays, tokenizer=tiny_tokenizer(), settings=settings)


def _drawn(name: str, size: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    centre = 1.0 if name.endswith("norm.weight") or name == "mix.scale" else 0.0
    return np.asarray(centre + 0.3 * rng.standard_normal(size), np.float32)


def tiny_tasks() -> tuple[Task, ...]:
    """One task of each kind that an encoder answers, and pairs read jointly and separately."""
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
    """Arrays for what `owner` owns on the path, drawn from `seed`."""
    rng = np.random.default_rng(seed)
    return {name: _drawn(name, size, rng) for name, size in cost.part_arrays(path, shape, owner).items()}


def tiny_owned(paths: Mapping[str, Path], shape: Architecture) -> dict[str, LoadedTask]:
    """Each path with the arrays of every owner on it: an owner's are drawn once, from its name, for all paths."""
    owned: dict[str, dict[str, np.ndarray]] = {}
    for path in paths.values():
        for array in cost.arrays_of_path(path, shape):
            rng = np.random.default_rng(zlib.crc32(f"{array.owner} {array.name}".encode()))
            owned.setdefault(array.owner, {}).setdefault(array.name, _drawn(array.name, array.shape, rng))
    loaded: dict[str, LoadedTask] = {}
    for name, path in paths.items():
        read: dict[str, dict[str, np.ndarray]] = {}
        for array in cost.arrays_of_path(path, shape):
            read.setdefault(array.owner, {})[array.name] = owned[array.owner][array.name]
        read.pop(TRUNK)
        loaded[name] = LoadedTask(path=path, arrays=read.pop(path.head.part), others=read)
    return loaded


def tiny_path(task: Task, trunk: TrunkData, *, pool: Pool, hidden: int = 8, stop: int | None = None) -> Path:
    """`Embed, Layers(0, stop), pool, Head`; the pool gets its part, and a tagging task reads words."""
    owner = f"task:{task.name}"
    positions = "tokens" if kind_of(task).per_word else pool.positions
    learned = pool.layers == "learned" or positions == "attention"
    head = Head(
        kind=task.kind, width=kind_of(task).width(task), part=owner, hidden=hidden, separate=task.pair == "separate"
    )
    chosen = Pool(
        layers=pool.layers,
        of=pool.of,
        positions=positions,
        heads=2 if positions == "attention" else 0,
        part=owner if learned else None,
        codec=pool.codec,
    )
    depth = trunk.architecture.layers if stop is None else stop
    return Path(nodes=(Embed(trunk=trunk.digest), Layers(start=0, stop=depth), chosen, head))


def tiny_loaded(trunk: TrunkData, *, codec: Codec = PLAIN) -> dict[str, LoadedTask]:
    """Every tiny task with every layer mix and, for tasks over whole texts, every pooler: name -> path and arrays."""
    loaded: dict[str, LoadedTask] = {}
    for task in tiny_tasks():
        for pool in _pools(task, codec):
            name = f"{task.name}-{pool.layers}-{pool.positions}"
            named = msgspec.structs.replace(task, name=name)
            path = tiny_path(named, trunk, pool=pool)
            arrays = tiny_part(path, trunk.architecture, f"task:{name}", seed=len(loaded))
            loaded[name] = LoadedTask(path=path, arrays=arrays)
    return loaded


def tiny_widths(trunk: TrunkData) -> dict[str, LoadedTask]:
    """Tasks of two, 40 and 70 labels, of whole texts by every pooler and of words: name -> path and arrays."""
    paths = {}
    pools: dict[str, tuple[Positions, ...]] = {"single_label": ("first", "mean", "attention"), "tagging": ("first",)}
    for kind, choices in pools.items():
        for positions, labels in itertools.product(choices, (2, 40, 70)):
            name = f"{kind}-{positions}-{labels}"
            task = Task(name=name, kind=kind, labels=tuple(f"l{i}" for i in range(labels)))
            pool = Pool(positions=positions, part="task:x" if positions == "attention" else None)
            paths[name] = tiny_path(task, trunk, pool=pool)
    return tiny_owned(paths, trunk.architecture)


def _pools(task: Task, codec: Codec) -> Iterator[Pool]:
    mixes = [("last", 1), ("mean", 2), ("learned", 1)]
    for layers, of in mixes:
        for positions in ["first"] if kind_of(task).per_word else ["first", "mean", "attention"]:
            part = "task:x" if layers == "learned" or positions == "attention" else None
            yield Pool(layers=layers, of=of, positions=positions, part=part, codec=codec)  # type: ignore[arg-type]


def tiny_batch(trunk: TrunkData, lengths: tuple[int, ...], *, words: int = 3, seed: int = 0) -> TokenBatch:
    """Token ids of rows of these lengths, padded; each row has `words` words, those beyond its end unread."""
    rng = np.random.default_rng(seed)
    tokens = max(lengths, default=1)
    mask = np.arange(tokens) < np.array(lengths, np.int64)[:, None]
    ids = np.where(mask, rng.integers(5, trunk.architecture.vocabulary, mask.shape), 0)
    first = 1 + np.arange(words)[None]
    first_tokens = np.where(first < np.array(lengths, np.int64)[:, None] - 1, first, -1)
    segments = (mask & (np.arange(tokens) > tokens // 2)).astype(np.int64)
    return TokenBatch(ids=ids.astype(np.int64), mask=mask, segments=segments, words=first_tokens.astype(np.int64))
