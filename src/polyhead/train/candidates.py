"""Paths of candidate heads over kept features, and the best constant answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import msgspec

from polyhead.bundle.read import Bundle
from polyhead.codecs import IN_A_BYTE
from polyhead.data.read import Examples
from polyhead.engine.backends import TRAINING_BACKEND, is_installed
from polyhead.errors import MissingExtra
from polyhead.plan import Codec, Path
from polyhead.project.strategies.base import HeadCandidate
from polyhead.project.strategies.pooled import baseline_of
from polyhead.tasks.kinds import kind_of
from polyhead.text.tokenize import Input
from polyhead.train.data.prepare import single_inputs
from polyhead.train.data.prepared import Prepared
from polyhead.train.data.source import FeatureSource, Per, value_key
from polyhead.train.data.stored import StoredFeatures

COLUMNS, COLUMNS_A_ROW = (2**12, 2**16), 64
WORDS_A_ROW = 4  # words with features of their own that need as many columns as a text
MOST_WEIGHTS = 2**21  # 8 MiB of float32
LEAST_ROWS = 64  # labelled rows from which heads that read words are tried: in fewer hardly a word recurs
# Labelled rows from which heads are trained in steps, unless effort or epochs ask for it: with fewer, none was kept in
# 90 runs of results/right_defaults.json and results/heads_defaults.json, and they took most of the time.
STEPS_FROM = 100


def candidates(prepared: Prepared, source: FeatureSource) -> tuple[HeadCandidate, ...]:
    """The heads to try for a task: those with available features."""
    depth, strategy = source.facts.architecture.layers, prepared.strategy
    heads = _available(prepared, source, _with_torch(_of_words(prepared, _of_effort(prepared, depth))))
    if not source.encodes and all(candidate.solver != "linear" for candidate in heads):
        of_tokens = _of_words(prepared, strategy.heads_of_tokens(prepared.task))
        heads = _available(prepared, source, of_tokens) + heads
    return _of_rows(prepared, heads)


def _available(prepared: Prepared, source: FeatureSource, heads: Sequence[HeadCandidate]) -> tuple[HeadCandidate, ...]:
    codec, is_named = prepared.strategy.feature_codec()[0], prepared.strategy.names_codec
    return tuple(
        candidate
        for candidate in heads
        if (not candidate.words or source.has_words(prepared.task))
        and source.keeps(candidate_path(candidate, prepared, source, codec), is_named=is_named)
    )


def every_candidate(prepared: Prepared, source: FeatureSource) -> tuple[HeadCandidate, ...]:
    """All heads of the task's strategy for so many rows, whatever features are available."""
    return _with_torch(of_effort(prepared, source.facts.architecture.layers))


def of_effort(prepared: Prepared, depth: int) -> tuple[HeadCandidate, ...]:
    """The same over an encoder of `depth` layers, with heads that need torch where it is missing."""
    return _of_rows(prepared, _of_words(prepared, _of_effort(prepared, depth)))


def _of_effort(prepared: Prepared, depth: int) -> tuple[HeadCandidate, ...]:
    return prepared.strategy.candidates(prepared.task, depth, prepared.training.effort)


def _of_words(prepared: Prepared, heads: Sequence[HeadCandidate]) -> tuple[HeadCandidate, ...]:
    """The heads, without those that read words if rows are too few for them."""
    return tuple(head for head in heads if not head.words or _labelled(prepared) >= LEAST_ROWS)


def _of_rows(prepared: Prepared, heads: tuple[HeadCandidate, ...]) -> tuple[HeadCandidate, ...]:
    """The linear heads alone if there are some, rows are few, and neither effort nor epochs ask for more."""
    training = prepared.training
    if training.effort != "default" or training.epochs is not None or _labelled(prepared) >= STEPS_FROM:
        return heads
    return _linear(heads) or heads


def _with_torch(heads: tuple[HeadCandidate, ...]) -> tuple[HeadCandidate, ...]:
    """The linear heads alone if there are some and torch is missing."""
    return heads if has_torch() else _linear(heads) or heads


def _linear(heads: Sequence[HeadCandidate]) -> tuple[HeadCandidate, ...]:
    return tuple(head for head in heads if head.solver == "linear")


def tries_branches(prepared: Prepared, source: FeatureSource) -> bool:
    """Whether effort 'best' tries branches beside the heads: over texts that can be encoded, with torch."""
    return prepared.weighs_branches and source.facts.architecture.layers > 0 and source.encodes and has_torch()


def has_torch() -> bool:
    """Whether heads can be trained in steps here."""
    return is_installed(TRAINING_BACKEND)


def _labelled(prepared: Prepared) -> int:
    return len((prepared.whole or prepared.train.examples).targets)


def candidate_path(candidate: HeadCandidate, prepared: Prepared, source: FeatureSource, codec: Codec) -> Path:
    """The path of one candidate."""
    shape, trunk = source.facts.architecture, source.facts.digest
    path = candidate.strategy.path(prepared.task, trunk=trunk, shape=shape, codec=codec)
    if not candidate.words:
        return path
    rows = _labelled(prepared)
    if kind_of(prepared.task).per_word:
        rows = sum(map(len, (prepared.whole or prepared.train.examples).targets)) // WORDS_A_ROW
    head = msgspec.structs.replace(path.head, words=word_columns(rows, path.head.width))
    return Path(nodes=(*path.nodes[:-1], head))


def word_columns(rows: int, outputs: int) -> int:
    """Columns of hashed words: COLUMNS_A_ROW for each labelled row, within limits, and MOST_WEIGHTS of all outputs."""
    fewest, most = COLUMNS
    wanted = min(max(COLUMNS_A_ROW * rows, fewest), most, max(MOST_WEIGHTS // outputs, fewest))
    return 1 << (wanted.bit_length() - 1)


def codec_of(candidate: HeadCandidate, prepared: Prepared, source: FeatureSource) -> tuple[Codec, Per]:
    """The codec of a candidate's kept features, without constants, and the scope of one set of constants.

    Many states of tokens, if none is named, have a byte a number, each dimension with its own scale.
    """
    codec, per = prepared.strategy.feature_codec()
    reads_tokens = candidate_path(candidate, prepared, source, codec).pool.positions in ("attention", "tokens")
    if reads_tokens and source.encodes and prepared.has_many_tokens:
        return Codec(name=IN_A_BYTE), "dimension"
    return codec, per


def candidate_paths(prepared: Prepared, source: FeatureSource, codec: Codec) -> list[Path]:
    """A path for each candidate to try."""
    return [candidate_path(candidate, prepared, source, codec) for candidate in candidates(prepared, source)]


def with_columns(prepared: Prepared, source: StoredFeatures) -> Prepared:
    """The task with the columns of a store that its heads read; raises StoreError if it has none of them.

    Raises MissingExtra if it has those of heads that need torch alone, which is missing.
    """
    bare, is_named = prepared.strategy.feature_codec()[0], prepared.strategy.names_codec
    paths = candidate_paths(prepared, source, bare)
    if not paths:
        for head in needing_torch(prepared, source):
            purpose = f"task '{prepared.task.name}': a head '{head.name}', which alone reads what the store keeps,"
            keep = "keep what linear heads read: `polyhead features extract` with --tasks"
            raise MissingExtra("torch", "train", purpose, instead=keep)
        last = candidate_path(every_candidate(prepared, source)[-1], prepared, source, bare)
        raise source.lacks(last, task=prepared.task.name, is_named=is_named)
    return msgspec.structs.replace(prepared, columns=source.columns(paths, is_named=is_named))


def needing_torch(prepared: Prepared, source: FeatureSource) -> list[HeadCandidate]:
    """The heads that could be tried with torch, which is missing."""
    codec, is_named = prepared.strategy.feature_codec()[0], prepared.strategy.names_codec
    heads = [] if has_torch() else of_effort(prepared, source.facts.architecture.layers)
    return [
        head
        for head in heads
        if head.solver != "linear" and source.keeps(candidate_path(head, prepared, source, codec), is_named=is_named)
    ]


def left_out(prepared: Prepared, source: FeatureSource) -> list[str]:
    """The names of heads that are not tried, since their features are not available."""
    tried = {candidate.name for candidate in candidates(prepared, source)}
    return [candidate.name for candidate in every_candidate(prepared, source) if candidate.name not in tried]


def feature_paths(
    todo: Sequence[Prepared], prepared: Sequence[Prepared], source: FeatureSource, bundle: Bundle
) -> dict[str, list[Path]]:
    """Each task's candidate paths; a codec's constants are shared by all tasks that store the same value.

    A bundle's own constants are preferred, so that a task added later reads existing features. Others are computed from
    the texts of all tasks, including finished ones, so that a resumed run computes the same ones.
    """
    source.remember([record.path for record in bundle.tasks.values()])
    paths: dict[str, list[Path]] = {}
    for p in todo:
        paths[p.task.name] = [
            source.coded(
                path,
                is_named=p.strategy.names_codec,
                per=per,
                inputs=partial(_texts_like, value_key(path, per), prepared, source),
            )
            for path, per in _bare_paths(p, source)
        ]
    return paths


def _texts_like(key: bytes, prepared: Sequence[Prepared], source: FeatureSource) -> list[Input]:
    """Training inputs of every task that stores the same value, task after task."""
    lists: list[list[Input]] = []
    for p in prepared:
        if any(value_key(path, per) == key for path, per in _bare_paths(p, source)):
            lists += single_inputs(p.train.examples.inputs, p.task)
    return [text for inputs in lists for text in inputs]


def _bare_paths(prepared: Prepared, source: FeatureSource) -> Iterator[tuple[Path, Per]]:
    """Each candidate's path, its codec without constants, and the scope of one set of constants."""
    for candidate in candidates(prepared, source):
        codec, per = codec_of(candidate, prepared, source)
        yield candidate_path(candidate, prepared, source, codec), per


def constant_scores(prepared: Prepared, held: Examples) -> dict[str, dict[str, float]]:
    """The scores of the best constant answer, judged by the training rows."""
    task, targets = prepared.task, prepared.train.examples.targets
    splits = {"validation": held} | ({"test": prepared.test.examples} if prepared.test else {})
    scores = {}
    for name, examples in splits.items():
        outputs = kind_of(task).constant(task, targets, examples.each())
        if outputs is not None:
            scores[name] = examples.scores(task, outputs)
    return scores


def baseline_path(prepared: Prepared, path: Path, source: FeatureSource) -> Path | None:
    """The path of the linear baseline for the head on `path`; None if the head is not larger or has no baseline.

    For a task over words it reads the same words; for pairs, the mean vectors of the last layer, else of the last two.
    """
    task, is_kept = prepared.task, prepared.strategy.reads_kept_features
    kind = kind_of(task)
    has_linear = is_kept and any(head.solver == "linear" for head in candidates(prepared, source))
    if kind.loss == "span_cross_entropy" or kind.generates or has_linear:
        return None
    if kind.per_word and is_kept:
        plain = {"hidden": 0, "activation": "tanh", "hidden_part": None, "norm_epsilon": msgspec.UNSET}
        head = msgspec.structs.replace(path.head, **plain)
        return Path(nodes=(*path.nodes[:-1], head))
    shape, codec = source.facts.architecture, Codec()
    linear = baseline_of(task).path(task, trunk=source.facts.digest, shape=shape, codec=codec)
    if not source.keeps(linear, is_named=False):
        return None
    return source.coded(linear, is_named=False, per="tensor", inputs=list)
