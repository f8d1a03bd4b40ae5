"""The storage table and figure 4, counted from plans and shapes alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path as FilePath
from typing import Literal

import msgspec

from polyhead.encoder.shape import Architecture
from polyhead.errors import MissingExtra, PlanError
from polyhead.plan import Codec, Embed, Head, Layers, Path, Pool, merge
from polyhead.plan.cost import flops, stored_bytes
from polyhead.values import Value

ROBERTA_LARGE = Architecture(
    family="roberta",
    layers=24,
    width=1024,
    heads=16,
    feed_forward=4096,
    vocabulary=50265,
    positions=514,
    segments=1,
    first_position=2,
    norm_epsilon=1e-5,
)
DISTILROBERTA = msgspec.structs.replace(ROBERTA_LARGE, layers=6, width=768, heads=12, feed_forward=3072)
MINILM = Architecture(layers=6, width=384, heads=12, feed_forward=1536, vocabulary=30522)  # of our studies
AVERAGED = 16  # layers in the mean; the paper's best setting most of the time
TOKENS, TOKENS_WITH_START = 50, 51  # the storage table counts 50, the FLOPs the start token too (1.a.7)
TASKS = 14
CODECS: tuple[str, ...] = ("float16", "uint8", "sign")

Scheme = Literal[
    "full",
    "distilled",
    "frozen_first",
    "frozen_attention",
    "frozen_attention_folded",
    "frozen_learned",  # attention over a learned mix of layers; not in the figure
]
SCHEMES: tuple[Scheme, ...] = ("full", "distilled", "frozen_first", "frozen_attention", "frozen_attention_folded")
_LABELS: dict[Scheme, str] = {
    "full": "one fine-tuned RoBERTa-large a task",
    "distilled": "one DistilRoBERTa a task",
    "frozen_first": "frozen encoder, first position",
    "frozen_attention": "frozen encoder, attention poolers",
    "frozen_attention_folded": "frozen encoder, folded attention poolers (ours)",
}


class StorageRow(Value):
    """Bytes kept for one text under three codecs, and what the paper prints for them."""

    layers: str
    positions: str
    float16: int
    uint8: int
    sign: int
    printed: tuple[str, str, str]


class FlopsRow(Value):
    """GFLOPs of one text for `tasks` tasks under one scheme."""

    scheme: Scheme
    tasks: int
    gflops: float


def storage_table(shape: Architecture = ROBERTA_LARGE, tokens: int = TOKENS) -> tuple[StorageRow, ...]:
    """Table 2: bytes for one text (`tokens` tokens) under each pooler and codec; `K` is 1024 bytes.

    The codec stands behind the layer mean; before it, the mean of 16 layers keeps 16 times as much.
    """
    part = "task:any"
    rows: list[tuple[str, str, Callable[[Codec], Pool], tuple[str, str, str]]] = [
        ("fixed", "first or mean", lambda c: _mean(c, positions="mean"), ("2K", "1K", "128")),
        ("fixed", "attention", lambda c: _mean(c, positions="attention", part=part), ("100K", "50K", "6K")),
        (
            "learned",
            "attention",
            lambda c: Pool(layers="learned", positions="attention", heads=16, part=part, codec=c),
            ("2.34M", "1.17M", "150K"),
        ),
    ]
    return tuple(_storage_row(shape, tokens, *row) for row in rows)


def _storage_row(
    shape: Architecture,
    tokens: int,
    layers: str,
    positions: str,
    pool: Callable[[Codec], Pool],
    printed: tuple[str, str, str],
) -> StorageRow:
    float16, uint8, sign = (stored_bytes(pool(Codec(name=name)), shape, tokens) for name in CODECS)
    return StorageRow(layers=layers, positions=positions, float16=float16, uint8=uint8, sign=sign, printed=printed)


def figure4(tasks: Iterable[int] = range(1, TASKS + 1), tokens: int = TOKENS_WITH_START) -> tuple[FlopsRow, ...]:
    """Figure 4: GFLOPs of one text by number of tasks, for the paper's four schemes and the folded pooler."""
    counts = tuple(tasks)
    return tuple(
        FlopsRow(scheme=scheme, tasks=count, gflops=scheme_flops(scheme, count, tokens) / 1e9)
        for scheme in SCHEMES
        for count in counts
    )


def scheme_flops(
    scheme: Scheme, tasks: int, tokens: int = TOKENS_WITH_START, *, shape: Architecture = ROBERTA_LARGE
) -> int:
    """FLOPs of one text of `tokens` tokens for `tasks` tasks, by the rule of `polyhead.plan.cost.flops`.

    `shape` is that of every encoder but the distilled one's.
    """
    if tasks < 1:
        raise PlanError("a scheme serves at least one task", got=tasks)
    shape = DISTILROBERTA if scheme == "distilled" else shape
    names = [f"t{index}" for index in range(tasks)]
    plan = merge({name: _path(scheme, name, shape) for name in names})
    return flops(plan, shape, tokens, folded=scheme == "frozen_attention_folded")


def break_even(rows: Sequence[FlopsRow], scheme: Scheme, *, against: Scheme = "distilled") -> int | None:
    """The first number of tasks from which `scheme` stays cheaper, over the rows' range; None when never."""
    ours = {row.tasks: row.gflops for row in rows if row.scheme == scheme}
    theirs = {row.tasks: row.gflops for row in rows if row.scheme == against}
    if not ours or not theirs:
        raise PlanError("these rows do not hold both schemes", got=f"{scheme} and {against}")
    first = None
    for tasks in sorted(ours.keys() & theirs.keys(), reverse=True):
        if ours[tasks] >= theirs[tasks]:
            return first
        first = tasks
    return first


def plot_figure4(rows: Sequence[FlopsRow], path: FilePath | str) -> None:
    """Writes figure 4 to `path` (.svg, .png or .pdf); raises MissingExtra without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("matplotlib", "plots", "drawing figure 4") from None
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for scheme in dict.fromkeys(row.scheme for row in rows):
        curve = [row for row in rows if row.scheme == scheme]
        style = "x--" if scheme == "frozen_attention_folded" else "o-"  # it hides the curve below it
        axes.plot([r.tasks for r in curve], [r.gflops for r in curve], style, label=_LABELS[scheme])
    first = break_even(rows, "frozen_attention")
    if first is not None:
        axes.axvline(first, linestyle=":", color="grey", label=f"frozen beats distilled from task {first}")
    axes.set(xlabel="tasks", ylabel="GFLOPs a text", yscale="log")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(path)


def _path(scheme: Scheme, task: str, shape: Architecture) -> Path:
    own, part = scheme in ("full", "distilled"), f"task:{task}"
    # A fine-tuned encoder is a trunk of its own: nothing of it is shared.
    embed = Embed(trunk=f"fine-tuned on {task}" if own else "frozen")
    pool = Pool()
    if scheme in ("frozen_attention", "frozen_attention_folded"):
        pool = _mean(Codec(name="float32"), positions="attention", part=part, of=min(AVERAGED, shape.layers))
    elif scheme == "frozen_learned":
        pool = Pool(layers="learned", positions="attention", heads=16, part=part)
    head = Head(kind="single_label", width=2, part=part, hidden=shape.width)
    return Path(nodes=(embed, Layers(start=0, stop=shape.layers), pool, head))


def _mean(
    codec: Codec, *, positions: Literal["mean", "attention"], part: str | None = None, of: int = AVERAGED
) -> Pool:
    heads = 16 if positions == "attention" else 0  # width 1024 / 64; the paper does not say
    return Pool(layers="mean", of=of, positions=positions, heads=heads, part=part, codec=codec)
