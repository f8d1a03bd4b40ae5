"""Labelled examples over kept features, for a frozen trunk, and over texts, for a trained one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from polyhead.deep.loop.feed import LengthSorted, TrainingBatch
from polyhead.deep.loop.loss import UNLABELLED
from polyhead.deep.model import TextBatch
from polyhead.deep.nn.ends import WordRows
from polyhead.deep.nn.trunk import States
from polyhead.errors import EmptyData
from polyhead.store.features import Features
from polyhead.tasks.kinds.tagged import inside_of, parts_marked
from polyhead.tasks.task import Task
from polyhead.text.batch import batches
from polyhead.text.hashing import NO_WORDS, HashedText
from polyhead.text.question import Question, TaskInput, read_alone
from polyhead.text.tokenize import Tokenizer, windows_of
from polyhead.text.words import first_subtokens
from polyhead.train.data.prepared import Prepared
from polyhead.train.data.windows import WindowedExamples
from polyhead.train.events import Events

# tokens evaluated in one batch, padding included; more exceed a processor's cache and take twice as long
AT_ONCE = 2048


class TapBatch(msgspec.Struct, frozen=True, kw_only=True):
    """States at the tap of some texts."""

    hidden: Tensor  # (rows, tokens, width)
    mask: Tensor  # (rows, tokens)
    words: Tensor | None = None  # (rows, words)


class FeatureExamples(LengthSorted):
    """Targets and kept values of their inputs; `second` holds the other text of pairs read separately."""

    def __init__(
        self,
        features: Features,
        targets: Sequence[np.ndarray],
        *,
        second: Features | None = None,
        words: Sequence[np.ndarray] | None = None,
        soft: Sequence[np.ndarray] | None = None,
        teacher: Callable[..., Tensor] | None = None,
        options: np.ndarray | None = None,
        windows: WindowedExamples | None = None,
        tapped: bool = False,
        hashed: Sequence[Sequence[HashedText]] | None = None,
    ) -> None:
        """`words` are each example's `first_subtokens` of its words; None: one token per example.

        `options` (examples,) are each example's number; `features` are then of all options, example after example.
        With `windows` all arguments but `targets` are those of each window. `soft` are a teacher's outputs, one array
        per example: each batch carries them with the targets; `teacher` answers each batch anew instead. `tapped`:
        values are states at a tap, which a branch reads, and words are found in them. `hashed` are each example's
        hashed text, options or words, of a head that reads them.
        """
        self._hashed = hashed
        self._features, self._second, self.windows, self._tapped = features, second, windows, tapped
        self._targets = targets if windows is None else windows.targets(targets)
        self._soft, self._teacher = soft, teacher
        lengths = features.lengths if second is None else np.maximum(features.lengths, second.lengths)
        super().__init__(lengths, options=options, words=words)

    def unread(self, member: int) -> np.ndarray | None:
        """For each word of an example, whether no token represents it; None for tasks that do not read words."""
        if self._words is not None or self._tapped:
            return super().unread(member)
        target = self._targets[member]
        if _is_answers(target):
            return np.zeros(self._features.lengths[member], bool)
        return np.zeros(len(target), bool) if _is_words(target) else None

    def batch(self, members: np.ndarray) -> TrainingBatch:
        """The kept values of these examples, decoded, and their targets."""
        rows = members if self.options is None else option_rows(members, self.options)
        arguments = self._taken(self._features, rows, members)
        if self._second is not None:
            second = self._taken(self._second, rows, None)
            arguments = (*arguments, *second) if self._tapped else (*arguments, second)
        if self._hashed is not None:
            longest = max(len(self._hashed[i]) for i in members) if self.options is None else 0
            padded = [(*self._hashed[i], *[NO_WORDS] * (longest - len(self._hashed[i]))) for i in members]
            hashed = WordRows.of([text for several in padded for text in several])
            arguments = (*(arguments if self._second is not None else (*arguments, None)), hashed)
        targets = batch_targets(self._targets, members, self.unread, self.options)
        soft = None if self._soft is None else soft_targets([self._soft[i] for i in members], self.options)
        if self._teacher is not None:
            soft = self._teacher(*arguments)
        return TrainingBatch(arguments=arguments, targets=targets, members=members, soft=soft)

    def _taken(self, features: Features, rows: np.ndarray, members: np.ndarray | None) -> tuple[Any, ...]:
        """Values and mask of these rows; at a tap a TapBatch with the words of `members`."""
        taken = features.take(rows)
        values, mask = torch.from_numpy(taken.values), torch.from_numpy(taken.mask)
        if not self._tapped:
            if self._words is not None and members is not None:
                mask = mask & (padded_words([self._words[i] for i in members])[:, : mask.shape[1]] >= 0)
            return values, mask
        words = None if self._words is None or members is None else padded_words([self._words[i] for i in members])
        return (TapBatch(hidden=values[:, :, 0], mask=mask, words=words),)


class TextExamples(LengthSorted):
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
    ) -> None:
        """`soft` are a teacher's outputs, (labels,) or (options,), one array per example.

        `windowed` is the task, if each window of a text is an example (`train.data.windows`); it needs `words`.
        """
        self._soft = soft
        self.kept: Callable[[np.ndarray], States] | None = None  # facts about texts, by their indices
        windows = None if windowed is None else windows_of(tokenizer.max_tokens)
        self._encoded, self._targets = tokenizer.encode(read_alone(inputs), windows=windows), targets
        self._pad_id = tokenizer.pad_id
        lengths = np.array([len(e.ids) for e in self._encoded])
        super().__init__(lengths, options=options_in(inputs))
        if windowed is not None and words is not None:
            self.windows = WindowedExamples(windowed, self._encoded, words)
            self._targets, self._words = self.windows.targets(targets), self.windows.tokens
        elif words is not None:
            self._words = [first_subtokens(e, w) for e, w in zip(self._encoded, words, strict=True)]

    @property
    def tokens(self) -> int:
        """Total number of tokens of all texts."""
        return sum(len(encoding.ids) for encoding in self._encoded)

    def batch(self, members: np.ndarray) -> TrainingBatch:
        """These texts as ids, padded to the longest of them."""
        rows = members if self.options is None else option_rows(members, self.options)
        encoded = [self._encoded[i] for i in rows]
        piece = next(batches(encoded, token_budget=1, pad_id=self._pad_id, fixed_rows=len(encoded)))
        order = np.arange(len(rows))
        if self.options is None:
            members = members[piece.members]
        else:
            order = np.argsort(piece.members)  # an example's options stay together
        words = None if self._words is None else padded_words([self._words[i] for i in members])
        texts = TextBatch(
            ids=torch.from_numpy(piece.ids[order]),
            mask=torch.from_numpy(piece.mask[order]),
            segments=torch.from_numpy(piece.segments[order]),
            words=words,
            states=None if self.kept is None else self.kept(members if self.options is None else rows),
        )
        targets = batch_targets(self._targets, members, self.unread, self.options)
        soft = None if self._soft is None else soft_targets([self._soft[i] for i in members], self.options)
        tokens = int(piece.mask.sum())
        return TrainingBatch(arguments=(texts,), targets=targets, members=members, soft=soft, tokens=tokens)


def padded_words(words: Sequence[np.ndarray]) -> Tensor:
    """(rows, words) first sub-tokens, -1 beyond a row's end; at least one column."""
    out = np.full((len(words), max([1, *(len(w) for w in words)])), -1, np.int64)
    for row, index in enumerate(words):
        out[row, : len(index)] = index
    return torch.from_numpy(out)


def options_in(inputs: Sequence[TaskInput]) -> np.ndarray | None:
    """The number of options of each input, int64 (inputs,); None for inputs that are not questions with options."""
    counts = [len(question.options) for question in inputs if isinstance(question, Question)]
    return np.array(counts, np.int64) if counts else None


def option_rows(members: np.ndarray, options: np.ndarray) -> np.ndarray:
    """The rows of these examples' options, in a list of all examples' options, example after example."""
    stops = np.cumsum(options)
    return np.concatenate([np.arange(stops[i] - options[i], stops[i]) for i in members])


def batch_targets(
    targets: Sequence[np.ndarray],
    members: np.ndarray,
    unread: Callable[[int], np.ndarray | None],
    options: np.ndarray | None,
) -> Tensor:
    """The targets of a batch in the form of their kind's loss."""
    if options is None:
        return stacked([without_unread(targets[i], unread(i)) for i in members])
    marks = [np.arange(options[i]) == targets[i] for i in members]
    which = np.repeat(np.arange(len(members)), options[members])
    return torch.from_numpy(np.stack([which, np.concatenate(marks)], axis=1).astype(np.int64))


def soft_targets(outputs: Sequence[np.ndarray], options: np.ndarray | None) -> Tensor:
    """A teacher's outputs for a batch: (rows, labels), (options of all, 1), or (rows, words, labels).

    Words beyond a row's end are zeros, and so are unread words.
    """
    if options is not None:
        return torch.from_numpy(np.concatenate(outputs)[:, None])
    if outputs[0].ndim == 1:
        return torch.from_numpy(np.stack(outputs))
    longest = max(1, max(len(output) for output in outputs))
    out = np.zeros((len(outputs), longest, outputs[0].shape[-1]), np.float32)
    for row, output in enumerate(outputs):
        out[row, : len(output)] = np.nan_to_num(output)
    return torch.from_numpy(out)


def without_unread(target: np.ndarray, unread: np.ndarray | None) -> np.ndarray:
    """The target with UNLABELLED for words without a token, which nothing can be learned from.

    Of a text's right answers the first is used, as int64 (places, 2): 1 at its beginning and at its end, 0 at other
    places; if one of them is unread, both are 0.
    """
    if unread is None:
        return target
    if not _is_answers(target):
        return np.where(unread, UNLABELLED, target)
    marks = np.where(unread, UNLABELLED, 0).astype(np.int64)[:, None].repeat(2, axis=1)
    first, last = target[0, :2]
    if not unread[first] and not unread[last]:
        marks[first, 0] = marks[last, 1] = 1
    return marks


def tell_unread(prepared: Prepared, examples: LengthSorted, max_tokens: int, events: Events) -> None:
    """Reports how many training answers of a span task are not read in full; raises EmptyData if none is.

    For labelled words it reports in how many texts a label changes inside a token, which no answer can represent.
    """
    targets, name = prepared.train.examples.targets, prepared.task.name
    if not _is_answers(targets[0]):
        if _is_words(targets[0]) and (several := _changing_inside_tokens(prepared, examples)):
            events.line(
                f"{name}: in {several:,} of {len(targets):,} training texts a label changes inside a token of the "
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


def _changing_inside_tokens(prepared: Prepared, examples: LengthSorted) -> int:
    targets, inside = prepared.train.examples.targets, inside_of(prepared.task.labels)
    each = (examples.goes_on(member) for member in range(len(targets)))
    marks = each if examples.windows is None else examples.windows.goes_on
    return sum(
        goes_on is not None and bool((goes_on[1:] & (target[1:] != inside[target[:-1]])).any())
        for target, goes_on in zip(targets, marks, strict=True)
    )


def _lost(targets: Sequence[np.ndarray], examples: LengthSorted) -> int:
    """The number of first answers that are not learned: one end is unread, or no window holds all of it."""
    if examples.windows is None:
        unread = (examples.unread(member) for member in range(len(targets)))
        pairs = zip(targets, unread, strict=True)
        return sum(gone is not None and bool(gone[target[0, :2]].any()) for target, gone in pairs)
    taught = [bool(target[0, 1]) for target in examples.windows.targets(targets)]
    held = set(examples.windows.texts[taught].tolist())
    return sum(bool(target[0, 1]) and text not in held for text, target in enumerate(targets))


def stacked(targets: Sequence[np.ndarray]) -> Tensor:
    """One tensor of targets; rows of words or places are padded with UNLABELLED to the longest."""
    if _is_words(targets[0]) or _is_answers(targets[0]):
        longest = max(1, max(len(words) for words in targets))
        out = np.full((len(targets), longest, *targets[0].shape[1:]), UNLABELLED, np.int64)
        for row, words in enumerate(targets):
            out[row, : len(words)] = words
        return torch.from_numpy(out)
    return torch.from_numpy(np.stack(targets))


def _is_words(target: np.ndarray) -> bool:
    return target.ndim == 1 and target.dtype == np.int64


def _is_answers(target: np.ndarray) -> bool:
    return target.ndim == 2


def module_outputs(module: Callable[..., Tensor], examples: LengthSorted, *, batch: int = 256) -> list[np.ndarray]:
    """The module's outputs for every example, in order; windows of a text are merged by its kind.

    Words are without padding, unread ones NaN; an example's options are (options,).
    """
    outputs = outputs_of_each(module, examples, batch=batch)
    return outputs if examples.windows is None else examples.windows.merged(outputs)


@torch.inference_mode()
def outputs_of_each(module: Callable[..., Tensor], examples: LengthSorted, *, batch: int = 256) -> list[np.ndarray]:
    """Like `module_outputs`, with an output for each window."""
    by_member: list[np.ndarray | None] = [None] * examples.count
    options = examples.options
    for piece in examples.in_order(batch, tokens=AT_ONCE):
        outputs = module(*piece.arguments).float().numpy()
        if options is not None:
            several = np.split(outputs[:, 0], np.cumsum(options[piece.members])[:-1])
            for member, own in zip(piece.members, several, strict=True):
                by_member[member] = own
            continue
        for row, member in enumerate(piece.members):
            unread = examples.unread(member)
            if unread is None:
                by_member[member] = outputs[row]
            else:
                own = np.where(unread[:, None], np.float32(np.nan), outputs[row, : len(unread)])
                goes_on = examples.goes_on(member)
                by_member[member] = own if goes_on is None else parts_marked(own, goes_on)
    return [o for o in by_member if o is not None]
