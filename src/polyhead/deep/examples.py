"""Labelled examples over kept features, for a frozen trunk, and over texts, for a trained one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from polyhead.deep.loop.feed import TrainingBatch
from polyhead.deep.model import TextBatch
from polyhead.deep.nn.heads import WordRows
from polyhead.deep.nn.trunk import States
from polyhead.engine.backends.base import FeatureBatch
from polyhead.tasks.generation import GenerationRules
from polyhead.tasks.task import Task
from polyhead.text.batch import batches
from polyhead.text.hashing import HashedText
from polyhead.text.question import TaskInput, read_alone
from polyhead.text.tokenize import Tokenizer, windows_of
from polyhead.text.words import first_subtokens
from polyhead.train.data.batches import (
    UNLABELLED,
    LengthSorted,
    batch_targets,
    outputs_of,
    outputs_of_each,
    padded_words,
    soft_targets,
)
from polyhead.train.data.kept_examples import KeptExamples, options_in
from polyhead.train.data.windows import WordWindows


class TapBatch(msgspec.Struct, frozen=True, kw_only=True):
    """States at the tap of some texts."""

    hidden: Tensor  # (rows, tokens, width)
    mask: Tensor  # (rows, tokens)
    words: Tensor | None = None  # (rows, words)


class FeatureExamples(LengthSorted[TrainingBatch]):
    """Examples over kept features, for modules."""

    def __init__(
        self,
        kept: KeptExamples,
        *,
        soft: Sequence[np.ndarray] | None = None,
        teacher: Callable[..., Tensor] | None = None,
    ) -> None:
        """`soft` are a teacher's outputs, one array per example; `teacher` answers each batch anew instead."""
        self._kept, self._soft, self._teacher, self.windows = kept, soft, teacher, kept.windows
        super().__init__(kept.lengths)  # of an example with options or windows, its longest
        self.options, self.window_counts = kept.options, kept.window_counts

    def unread(self, member: int) -> np.ndarray | None:
        """As of what is kept."""
        return self._kept.unread(member)

    def goes_on(self, member: int) -> np.ndarray | None:
        """As of what is kept."""
        return self._kept.goes_on(member)

    def batch(self, members: np.ndarray) -> TrainingBatch:
        """The kept values of these examples, decoded, and their targets."""
        batch = self._kept.batch(members)
        arguments: tuple[Any, ...]
        if self._kept.tapped:
            arguments = (_tapped(batch.features, batch.words),)
            if batch.second is not None:
                arguments = (*arguments, _tapped(batch.second, None))
        else:
            second = None if batch.second is None else _tensors(batch.second)
            hashed = None if batch.hashed is None else WordRows.of(_of_rows(batch.hashed, batch.windows))
            read = (second, hashed) if hashed is not None else (second,) if second is not None else ()
            arguments = (*_tensors(batch.features), *read)
        soft = None
        if self._soft is not None:
            soft = torch.from_numpy(soft_targets([self._soft[i] for i in members], self.options))
        training_batch = TrainingBatch(
            arguments=arguments,
            targets=torch.from_numpy(batch.targets),
            members=members,
            soft=soft,
            windows=batch.windows,
        )
        if self._teacher is None:
            return training_batch
        return msgspec.structs.replace(training_batch, soft=training_batch.answered(self._teacher))


def _of_rows(hashed: list[HashedText], windows: tuple[int, ...]) -> list[HashedText]:
    """The words of a whole text for each of its windows."""
    each = zip(hashed, windows or (1,) * len(hashed), strict=True)
    return [text for text, count in each for _ in range(count)]


def _tensors(features: FeatureBatch) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(features.values), torch.from_numpy(features.mask)


def _tapped(features: FeatureBatch, words: np.ndarray | None) -> TapBatch:
    values, mask = _tensors(features)
    return TapBatch(hidden=values[:, :, 0], mask=mask, words=None if words is None else torch.from_numpy(words))


class TextExamples(LengthSorted[TrainingBatch]):
    """Labelled texts, tokenized once; batches like those of `FeatureExamples`, with one row per option."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        inputs: Sequence[TaskInput],
        targets: Sequence[np.ndarray],
        words: Sequence[np.ndarray] | None = None,
        soft: Sequence[np.ndarray] | None = None,
        *,
        windowed: Task | None = None,
        rules: GenerationRules | None = None,
    ) -> None:
        """`soft` are a teacher's outputs, (labels,) or (options,), one array per example.

        `windowed` is the task, if it learns from all windows of a text (`train.data.windows`). With `rules` targets
        are references, of which the first is to be written.
        """
        self._soft, self._rules = soft, rules
        self.kept: Callable[[np.ndarray], States] | None = None  # facts about texts, by their indices
        windows = None if windowed is None else windows_of(tokenizer.max_tokens)
        self._encoded, self._targets = tokenizer.encode(read_alone(inputs), windows=windows), targets
        self._pad_id = tokenizer.pad_id
        lengths, window_counts = np.array([len(e.ids) for e in self._encoded]), None
        if windowed is not None and words is None and len(lengths) > len(inputs):
            window_counts = np.bincount([encoding.row for encoding in self._encoded])
        self.cut_written = 0  # texts to write of which not all tokens are learned
        if rules is not None:
            self._targets, self.cut_written = written_ids([str(target[0]) for target in targets], rules, tokenizer)
            lengths += np.array([len(ids) for ids in self._targets])
        super().__init__(lengths, options=options_in(inputs), window_counts=window_counts)
        if windowed is not None and words is not None:
            self.windows = WordWindows(windowed, self._encoded, words)
            self._targets, self._words = self.windows.targets(targets), self.windows.tokens
        elif words is not None:
            self._words = [first_subtokens(e, w) for e, w in zip(self._encoded, words, strict=True)]

    @property
    def tokens(self) -> int:
        """Total number of tokens of all texts."""
        return sum(len(encoding.ids) for encoding in self._encoded)

    @property
    def cut(self) -> int:
        """The number of texts whose tokens are not all read."""
        return sum(encoding.cut > 0 for encoding in self._encoded)

    def batch(self, members: np.ndarray) -> TrainingBatch:
        """These texts as ids, padded to the longest of them."""
        rows = self.rows_of(members)
        encoded = [self._encoded[i] for i in rows]
        piece = next(batches(encoded, token_budget=1, pad_id=self._pad_id, fixed_rows=len(encoded)))
        order = np.arange(len(rows))
        if self._rows is None:
            members = rows = members[piece.members]
        else:
            order = np.argsort(piece.members)  # an example's options or windows stay together
        words = None if self._words is None else torch.from_numpy(padded_words([self._words[i] for i in members]))
        texts = TextBatch(
            ids=torch.from_numpy(piece.ids[order]),
            mask=torch.from_numpy(piece.mask[order]),
            segments=torch.from_numpy(piece.segments[order]),
            words=words,
            states=None if self.kept is None else self.kept(rows),
        )
        targets = torch.from_numpy(batch_targets(self._targets, members, self.unread, self.options))
        if self._rules is not None:
            texts = msgspec.structs.replace(texts, written=read_before(targets, self._rules))
        soft = None
        if self._soft is not None:
            soft = torch.from_numpy(soft_targets([self._soft[i] for i in members], self.options))
        tokens = int(piece.mask.sum())
        return TrainingBatch(
            arguments=(texts,),
            targets=targets,
            members=members,
            soft=soft,
            tokens=tokens,
            windows=self.windows_of(members),
        )


def written_ids(texts: Sequence[str], rules: GenerationRules, tokenizer: Tokenizer) -> tuple[list[np.ndarray], int]:
    """The tokens of texts to write, int64 (tokens,) each, cut to the rules' most; and how many texts were cut.

    Special tokens around a text are those of an input, without the first where the decoder starts with it.
    """
    special = tokenizer.encode([("",)])[0].ids
    first = int(len(special) > 0 and special[0] == rules.start)
    encoded = tokenizer.limited(rules.tokens + first).encode([(text,) for text in texts])
    return [e.ids[first:].astype(np.int64) for e in encoded], sum(e.cut > 0 for e in encoded)


def read_before(targets: Tensor, rules: GenerationRules) -> Tensor:
    """The decoder's input for these targets (rows, tokens), UNLABELLED after each end: the targets, shifted by one."""
    before = targets.new_full((len(targets), 1), rules.start)
    return torch.cat([before, targets[:, :-1].masked_fill(targets[:, :-1] == UNLABELLED, rules.pad)], dim=1)


@torch.inference_mode()
def module_outputs(
    module: Callable[..., Tensor], examples: LengthSorted[TrainingBatch], *, batch: int = 256
) -> list[np.ndarray]:
    """The module's outputs for every example (`train.data.batches.outputs_of`)."""
    return outputs_of(partial(_answered, module), examples, batch=batch)


@torch.inference_mode()
def module_outputs_of_each(module: Callable[..., Tensor], examples: LengthSorted[TrainingBatch]) -> list[np.ndarray]:
    """Like `module_outputs`, with an output for each window."""
    return outputs_of_each(partial(_answered, module), examples)


def _answered(module: Callable[..., Tensor], piece: TrainingBatch) -> np.ndarray:
    outputs: np.ndarray = piece.answered(module).float().numpy()
    return outputs
