"""Checks for splits that do not look like train: other labels, lengths, spelling or words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from polyhead.check.split_rows import WORD, Finding, SplitRows, counted
from polyhead.codecs.base import evenly_spaced

FEW = 50  # rows: with fewer, shares are not compared, and a score means little
LABELS_APART, BY_CHANCE = 0.2, 3.0  # half the sum of differences of shares, and the factor above chance
LENGTHS_APART = 0.35  # the largest distance of two distributions (Kolmogorov and Smirnov)
WRITING_APART = 0.5  # difference of the shares of texts with a feature
UNSEEN = 0.2  # share of words unknown to train, above that of train's own second half
SAMPLE = 2000


def small(split: SplitRows) -> Iterator[Finding]:
    """An evaluation split with too few rows."""
    if not split.is_train and 0 < len(split) < FEW:
        error = 50 / np.sqrt(len(split))
        message = f"{split.name} has {counted(len(split), 'row')}: a score on it is known to about {error:.0f} points"
        yield split.found("small_split", "hint", message, do="hold more rows out")


def groups(train: SplitRows, split: SplitRows) -> Iterator[Finding]:
    """Groups, such as persons, with rows in train and in this split."""
    known = {*train.groups} - {None}
    rows = [index for index, group in enumerate(split.groups) if group in known]
    if rows:
        column, shared = split.source.group, {split.groups[index] for index in rows}
        message = f"{counted(len(shared), 'group')} of column '{column}' with rows in {split.name} are in train too"
        do = "draw the split by groups, so that a score says how new groups are answered"
        yield split.found("group_leak", "fault", message, do=do, indices=rows)


def labels(train: SplitRows, split: SplitRows) -> Iterator[Finding]:
    """Classes, or numbers, whose frequency differs much from that in train."""
    if min(len(train), len(split)) < FEW:
        return
    do = "draw the split at random from the same rows, or check that later texts will look like it"
    if train.has_classes:
        in_train, in_split = train.counts / max(1, train.counts.sum()), split.counts / max(1, split.counts.sum())
        apart = float(np.abs(in_train - in_split).sum() / 2)
        mixed = (train.counts + split.counts) / max(1, (train.counts + split.counts).sum())
        spread = np.sqrt(mixed * (1 - mixed) * (1 / len(train) + 1 / len(split)))
        chance = float(np.sqrt(2 / np.pi) * spread.sum() / 2)
        if apart >= LABELS_APART and apart >= BY_CHANCE * chance:
            most = int(np.abs(in_train - in_split).argmax())
            label = train.task.labels[most]
            message = f"the labels of {split.name} are spread otherwise than those of train ({apart:.0%} would have to "
            message += f"change): '{label}' has {in_split[most]:.0%} there, and {in_train[most]:.0%} in train"
            yield split.found("label_shift", "hint", message, do=do)
    if train.has_numbers:
        numbers = [np.array(each.answers, np.float64) for each in (train, split)]
        apart = _distance(*numbers)
        if apart >= LENGTHS_APART:
            message = f"the numbers of {split.name} are spread otherwise: median {np.median(numbers[1]):g}, "
            message += f"in train {np.median(numbers[0]):g}"
            yield split.found("label_shift", "hint", message, do=do)


def texts(train: SplitRows, split: SplitRows) -> Iterator[Finding]:
    """Lengths, capital letters, full stops, other alphabets and unknown words whose frequency differs from train."""
    if min(len(train), len(split)) < FEW:
        return
    reasons = []
    if _distance(train.lengths, split.lengths) >= LENGTHS_APART:
        lengths = [np.median(each.lengths) for each in (split, train)]
        reasons.append(f"texts have {lengths[0]:,.0f} characters in the middle, in train {lengths[1]:,.0f}")
    samples = [[each.texts[index] for index in evenly_spaced(len(each), SAMPLE)] for each in (train, split)]
    for name, trait in _TRAITS.items():
        expected, observed = (sum(map(trait, texts)) / len(texts) for texts in samples)
        if abs(expected - observed) >= WRITING_APART:
            reasons.append(f"{observed:.0%} of texts {name}, in train {expected:.0%}")
    expected, observed = _unseen(samples[0], samples[1])
    if observed - expected >= UNSEEN:
        reasons.append(f"{observed:.0%} of words are never in train, where {expected:.0%} would be usual")
    if reasons:
        message = f"the texts of {split.name} look other than those of train: {'; '.join(reasons)}"
        do = "check that both come from one source and were prepared alike"
        yield split.found("text_shift", "hint", message, do=do)


_TRAITS = {
    "have a capital letter": lambda text: any(map(str.isupper, text)),
    "end with a mark": lambda text: text.rstrip()[-1:] in tuple(".!?"),
    "have letters beyond ASCII": lambda text: not text.isascii() and any(c.isalpha() and c > "\x7f" for c in text),
}


def _unseen(train: Sequence[str], other: Sequence[str]) -> tuple[float, float]:
    """Shares of words that one half of train lacks: in its other half, and in the other texts."""
    known = {word for text in train[::2] for word in WORD.findall(text.casefold())}
    shares = []
    for texts in (train[1::2], other):
        words = [word for text in texts for word in WORD.findall(text.casefold())]
        shares.append(sum(word not in known for word in words) / max(1, len(words)))
    return shares[0], shares[1]


def _distance(first: np.ndarray, second: np.ndarray) -> float:
    """The largest difference of two empirical distributions."""
    values = np.unique(np.concatenate([first, second]))
    cumulative = [np.searchsorted(np.sort(each), values, side="right") / len(each) for each in (first, second)]
    return float(np.abs(cumulative[0] - cumulative[1]).max())
