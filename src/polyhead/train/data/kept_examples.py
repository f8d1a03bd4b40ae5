"""Labelled examples over kept features of a frozen trunk, as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np

from polyhead.data.read import Examples
from polyhead.engine.backends.base import FeatureBatch
from polyhead.errors import EmptyData
from polyhead.plan import Path
from polyhead.store.features import Features
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.kinds.tagged import inside_of
from polyhead.text.hashing import NO_WORDS, HashedText, hashed_in_context, hashed_input
from polyhead.text.question import Question, TaskInput, read_alone, texts_of
from polyhead.train.data.batches import LengthSorted, batch_targets, is_answers, is_words, padded_words
from polyhead.train.data.prepare import requests_of
from polyhead.train.data.prepared import Prepared, Split
from polyhead.train.data.source import FeatureSource
from polyhead.train.data.windows import TextWindows, WordWindows, windowed
from polyhead.train.events import Events


class KeptBatch(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Kept values of some examples, decoded, and their targets; `second` are those of the other text of pairs."""

    features: FeatureBatch
    second: FeatureBatch | None
    words: np.ndarray | None  # (rows, words) first sub-tokens, -1 for none
    hashed: list[HashedText] | None  # row after row, word after word
    targets: np.ndarray  # in the form of the loss
    members: np.ndarray  # (examples,) int64
    windows: tuple[int, ...] = ()  # how many rows of `features` each example has, whose mean is read; (): one each


class KeptExamples(LengthSorted[KeptBatch]):
    """Targets and kept values of their inputs; `second` holds the other text of pairs read separately."""

    def __init__(
        self,
        features: Features,
        targets: Sequence[np.ndarray],
        *,
        second: Features | None = None,
        words: Sequence[np.ndarray] | None = None,
        options: np.ndarray | None = None,
        windows: TextWindows | None = None,
        tapped: bool = False,
        hashed: Sequence[Sequence[HashedText]] | None = None,
    ) -> None:
        """`words` are each example's `first_subtokens` of its words; None: one token per example.

        `options` (examples,) are each example's number; `features` are then of all options, example after example.
        With `windows` features are those of each window; for labelled words so are all arguments but `targets`.
        `tapped`: values are states at a tap, which a branch reads, and words are found in them. `hashed` are each
        example's hashed text, options or words, of a head that reads them.
        """
        self.features, self.second, self.tapped, self.hashed = features, second, tapped, hashed
        self.targets, window_counts = targets, None
        if isinstance(windows, WordWindows):
            self.windows, self.targets = windows, windows.targets(targets)
        elif windows is not None:
            window_counts = windows.counts
        lengths = features.lengths if second is None else np.maximum(features.lengths, second.lengths)
        super().__init__(lengths, options=options, window_counts=window_counts, words=words)

    def unread(self, member: int) -> np.ndarray | None:
        """For each word of an example, whether no token represents it; None for tasks that do not read words."""
        if self._words is not None or self.tapped:
            return super().unread(member)
        target = self.targets[member]
        if is_answers(target):
            return np.zeros(self.features.lengths[member], bool)
        return np.zeros(len(target), bool) if is_words(target) else None

    def batch(self, members: np.ndarray) -> KeptBatch:
        """The kept values of these examples, decoded, and their targets."""
        rows = self.rows_of(members)
        features, words, hashed = self.features.take(rows), None, None
        if self._words is not None:
            words = padded_words([self._words[i] for i in members])
            if not self.tapped:
                mask = features.mask & (words[:, : features.mask.shape[1]] >= 0)
                features = msgspec.structs.replace(features, mask=mask)
        if self.hashed is not None:
            longest = max(len(self.hashed[i]) for i in members) if self.options is None else 0
            padded = [(*self.hashed[i], *[NO_WORDS] * (longest - len(self.hashed[i]))) for i in members]
            hashed = [text for texts in padded for text in texts]
        return KeptBatch(
            features=features,
            second=None if self.second is None else self.second.take(rows),
            words=words,
            hashed=hashed,
            targets=batch_targets(self.targets, members, self.unread, self.options),
            members=members,
            windows=self.windows_of(members),
        )


def examples_of(prepared: Prepared, split: Split, path: Path, source: FeatureSource) -> KeptExamples:
    """The split's targets over the features kept for the path."""
    task, examples, store, words = prepared.task, split.examples, source.store(path), None
    windows = windowed(task, examples, source.tokenizer)
    features = [store.features(request.keys()) for request in requests_of(task, split, path, windows)]
    if windows is None and examples.words is not None and kind_of(task).per_word:
        words = source.first_subtokens(read_alone(examples.inputs), examples.words)
    hashed = hashed_words(examples, path)
    return KeptExamples(
        features[0],
        examples.taught,
        second=features[1] if len(features) > 1 else None,
        words=words,
        options=options_in(examples.inputs),
        windows=windows,
        hashed=windows.of_words(hashed) if isinstance(windows, WordWindows) and hashed is not None else hashed,
    )


def options_in(inputs: Sequence[TaskInput]) -> np.ndarray | None:
    """The number of options of each input, int64 (inputs,); None for inputs that are not questions with options."""
    counts = [len(question.options) for question in inputs if isinstance(question, Question)]
    return np.array(counts, np.int64) if counts else None


def hashed_words(examples: Examples, path: Path) -> list[list[HashedText]] | None:
    """The hashed text, options or words of each example; None for a path whose head reads no words."""
    columns = path.head.words
    if not columns:
        return None
    if path.pool.positions != "tokens":
        return [_hashed(example_input, columns) for example_input in examples.inputs]
    assert examples.words is not None
    return [
        hashed_in_context([texts_of(example_input)[-1][a:b] for a, b in words.tolist()], columns)
        for example_input, words in zip(examples.inputs, examples.words, strict=True)
    ]


_hashed = lru_cache(maxsize=4096)(hashed_input)  # of few rows, which are read fold by fold


def tell_unread(prepared: Prepared, examples: LengthSorted[Any], max_tokens: int, events: Events) -> None:
    """Reports how many training answers of a span task are not read in full; raises EmptyData if none is.

    For labelled words it reports in how many texts a label changes inside a token, which no answer can represent.
    """
    targets, name = prepared.train.examples.targets, prepared.task.name
    if not is_answers(targets[0]):
        if is_words(targets[0]) and (changing := _changing_inside_tokens(prepared, examples)):
            events.line(
                f"{name}: in {changing:,} of {len(targets):,} training texts a label changes inside a token of the "
                "encoder: no answer can, so it counts as missed; an encoder that knows the script has finer tokens"
            )
        return
    lost, beyond = _lost(targets, examples), f"beyond the {max_tokens} tokens that are read"
    taught, do = "nothing", "set long_texts = 'windows', raise trunk.max_tokens, or give shorter contexts"
    if examples.windows is not None:
        beyond, taught = f"in no window of {max_tokens} tokens whole", "that there is no answer"
        do = "raise trunk.max_tokens, or give shorter answers"
    if lost == len(targets):
        raise EmptyData(
            f"task '{name}': no training answer stands in what is read, so nothing is learned",
            got=f"{lost} answers, all {beyond}",
            allowed="answers within those tokens, beside the question",
            do=do,
        )
    if lost:
        verb, they = ("lies", "it teaches") if lost == 1 else ("lie", "they teach")
        events.line(f"{name}: {lost:,} of {len(targets):,} training answers {verb} {beyond}; {they} {taught}")


def _changing_inside_tokens(prepared: Prepared, examples: LengthSorted[Any]) -> int:
    targets, inside = prepared.train.examples.targets, inside_of(prepared.task.labels)
    each = (examples.goes_on(member) for member in range(len(targets)))
    marks = each if examples.windows is None else examples.windows.goes_on
    return sum(
        goes_on is not None and bool((goes_on[1:] & (target[1:] != inside[target[:-1]])).any())
        for target, goes_on in zip(targets, marks, strict=True)
    )


def _lost(targets: Sequence[np.ndarray], examples: LengthSorted[Any]) -> int:
    """The number of first answers that are not learned: one end is unread, or no window holds all of it."""
    if examples.windows is None:
        unread = (examples.unread(member) for member in range(len(targets)))
        pairs = zip(targets, unread, strict=True)
        return sum(gone is not None and bool(gone[target[0, :2]].any()) for target, gone in pairs)
    taught = [bool(target[0, 1]) for target in examples.windows.targets(targets)]
    held = set(examples.windows.texts[taught].tolist())
    return sum(bool(target[0, 1]) and text not in held for text, target in enumerate(targets))
