"""Labels of words, and the comparison of answered and gold spans by their characters.

Gold spans come from the file. If one begins or ends inside a word, the example's words are cut there, so that training
can learn both sides; answers consist of whole words, so such a span can never be answered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

import numpy as np

from polyhead.errors import DataError
from polyhead.tasks import metrics
from polyhead.tasks.gold import TaggedSpan, widened
from polyhead.tasks.task import Arrays, Example, Task
from polyhead.text.question import texts_of
from polyhead.text.words import words_in
from polyhead.values import Value

ROUNDING = 1e-9  # of sums of log-probabilities
CHECKED_AT_ONCE = 256  # texts that are checked together for paths that need no search
AT_ONCE = 64  # texts whose best paths are found together
UNREAD = -1  # the label index of a word that was not read
Characters = tuple[int, int, str]
"""Where a span begins and ends, and its label."""


class TaggedRow(Value, eq=False):
    """One row's answer with its gold, over whole words."""

    outputs: np.ndarray  # (words, labels)
    answer: np.ndarray  # int64 (words,): UNREAD if a word was not read
    target: np.ndarray  # int64 (words,): for a word that gold cuts, the label of its first part
    gold: frozenset[Characters]  # the spans of the file; empty for plain labels
    spans: frozenset[Characters]  # the answered spans
    near: frozenset[Characters]  # gold spans widened to whole words


def whole_words(values: np.ndarray, example: Example) -> tuple[np.ndarray, np.ndarray]:
    """The rows of `values`, one per word, and the words (words, 2), without the cuts at gold spans.

    The first part of a word is read at the word's own token, so its row is what the whole word gets.
    """
    places = example.places
    if example.gold is None or len(values) != len(places):
        return values, places
    words = words_in(texts_of(example.input))
    return values[np.searchsorted(places[:, 0], words[:, 0])], words


def tagged_rows(task: Task, outputs: Arrays, targets: Arrays, examples: Sequence[Example]) -> list[TaggedRow]:
    """Every row's answer by the task's decoder, with its gold; without gold spans, words are compared by number.

    Raises DataError for a row with different numbers of outputs and labels.
    """
    rows: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    for place, (row, target) in enumerate(zip(outputs, targets, strict=True)):
        scores, wanted = np.asarray(row).reshape(-1, len(task.labels)), np.asarray(target, np.int64)
        if len(scores) != len(wanted):
            problem, got = f"task '{task.name}': one output a word", f"{len(scores)} in row {place}"
            raise DataError(problem, got=got, allowed=len(wanted))
        if examples and examples[place].gold is not None:
            (scores, words), (wanted, _) = (whole_words(values, examples[place]) for values in (scores, wanted))
        else:
            words = np.arange(len(scores))[:, None] + np.array([0, 1])
        rows.append((scores, words, wanted))
    if not rows:
        return []
    starts = np.cumsum([0, *(len(scores) for scores, _, _ in rows)])
    answers = np.split(chosen(task, np.concatenate([scores for scores, _, _ in rows]), starts), starts[1:-1])
    return [
        _compared(task, *row, answer, examples[place].gold if examples else None)
        for place, (row, answer) in enumerate(zip(rows, answers, strict=True))
    ]


def _compared(
    task: Task,
    outputs: np.ndarray,
    words: np.ndarray,
    target: np.ndarray,
    answer: np.ndarray,
    gold: Sequence[TaggedSpan] | None,
) -> TaggedRow:
    """The row's spans by their characters: those of its file, or, without any, those of its labels."""
    spans = _characters(task, answer, words)
    if gold is None:
        true = near = _characters(task, target, words)
    else:
        true, near = frozenset(map(_plain, gold)), frozenset(_plain(widened(span, words)) for span in gold)
    return TaggedRow(outputs=outputs, answer=answer, target=target, gold=true, spans=spans, near=near)


def _plain(span: TaggedSpan) -> Characters:
    return span.start, span.end, span.label


def _characters(task: Task, labels: np.ndarray, words: np.ndarray) -> frozenset[Characters]:
    if not is_bio(task):
        return frozenset()
    names = ["O" if index == UNREAD else task.labels[index] for index in labels.tolist()]
    return frozenset(
        (int(words[span.start, 0]), int(words[span.stop - 1, 1]), span.label) for span in metrics.spans_of(names)
    )


def is_bio(task: Task) -> bool:
    """Whether the labels are BIO: at least one begins with `B-` or `I-`."""
    return any(label.startswith(("B-", "I-")) for label in task.labels)


def parts_marked(outputs: np.ndarray, goes_on: np.ndarray) -> np.ndarray:
    """The outputs (words, labels), with a mark on words that share the token, and so the label, of the word before.

    A marked row is 0 and otherwise NaN; rows of unread words are all NaN. `outputs` is changed in place.
    """
    outputs[goes_on] = np.nan
    outputs[goes_on, 0] = 0.0
    return outputs


def parts_of(outputs: np.ndarray) -> np.ndarray:
    """Which words continue the label of the word before, bool (words,); the first does not."""
    is_nan = np.isnan(outputs)
    if not is_nan.any():
        return np.zeros(len(outputs), bool)
    is_part = np.asarray(~is_nan[:, 0] & is_nan.any(axis=-1))
    is_part[:1] = False
    return is_part


def chosen(task: Task, outputs: np.ndarray, starts: np.ndarray | None = None) -> np.ndarray:
    """The label index of each word by the task's decoder, int64 (words,); UNREAD for NaN rows.

    A word that shares the token of the word before continues its label: inside the span that begins there. The words
    are one text's, or those of several, which begin at `starts`, int64 (texts + 1,), the last being the number of all.
    """
    starts = np.array([0, len(outputs)]) if starts is None else starts
    is_part = parts_of(outputs)
    is_part[starts[:-1][starts[:-1] < len(outputs)]] = False
    is_whole = not is_part.any()
    word_outputs = outputs if is_whole else outputs[~is_part]
    labels = best(word_outputs)
    if task.decoder == "constrained":
        kept = starts if is_whole else np.concatenate([[0], np.cumsum(~is_part)])[starts]
        paths = best_paths(np.split(word_outputs, kept[1:-1]), task.labels, task.transitions)
        labels = np.where(labels == UNREAD, UNREAD, np.concatenate(paths))
    if is_whole:
        return labels
    repeated: np.ndarray = labels[np.cumsum(~is_part) - 1]
    return np.where(is_part & (repeated != UNREAD), inside_of(task.labels)[repeated], repeated)


def inside_of(labels: Sequence[str]) -> np.ndarray:
    """For each label, the label of the continuation of its word: `I-x` for `B-x`, else itself; int64 (labels,)."""
    place = {label: index for index, label in enumerate(labels)}
    names = (f"I{label[1:]}" if label.startswith("B-") else label for label in labels)
    return np.array([place.get(name, index) for index, name in enumerate(names)], np.int64)


def begun(labels: Sequence[str], indices: np.ndarray) -> np.ndarray:
    """The same spans with `B-x` for an `I-x` that begins one, as after `O` (IOB1); int64 (words,)."""
    first, follows = allowed_transitions(tuple(labels))
    begins = np.zeros(len(indices), bool)
    begins[:1], begins[1:] = ~first[indices[:1]], ~follows[indices[:-1], indices[1:]]
    place = {label: index for index, label in enumerate(labels)}
    beginning = np.array([place.get(f"B{label[1:]}", index) for index, label in enumerate(labels)], np.int64)
    return np.where(begins, beginning[indices], indices)


def best(outputs: np.ndarray) -> np.ndarray:
    """The best label index of each word, int64 (words,); UNREAD for NaN rows."""
    unread = np.isnan(outputs).any(axis=-1)
    if not unread.any():
        return np.asarray(outputs.argmax(axis=-1))
    return np.where(unread, UNREAD, np.argmax(np.where(unread[:, None], 0.0, outputs), axis=-1))


@lru_cache(maxsize=16)
def allowed_transitions(labels: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Labels that may come first, bool (labels,), and that may follow each other, bool (labels, labels) as [from, to].

    `O` and every `B-x` may occur anywhere; `I-x` only follows `B-x` or `I-x`.
    """
    heads, _, names = zip(*(label.partition("-") for label in labels), strict=True)
    inside, begun, name = np.array(heads) == "I", np.isin(heads, ("B", "I")), np.array(names)
    return ~inside, ~inside[None, :] | (begun[:, None] & (name[:, None] == name[None, :]))


def log_transitions(targets: Iterable[np.ndarray], labels: int) -> np.ndarray:
    """How much more often a label comes first, or follows another, than its share of the words says.

    float64 (labels + 1, labels): the logarithm of that ratio, for the first word, then by the label of the word before.
    Each row is given one word with the shares of all, and each share half a word.
    """
    counts = np.zeros((labels + 1, labels))
    for row in targets:
        known = np.maximum(row, -1)  # below 0: no label is known
        np.add.at(counts, (np.concatenate([[0], known[:-1] + 1]), known), known >= 0)
    shares = (counts.sum(axis=0) + 0.5) / (counts.sum() + 0.5 * labels)
    likely = (counts + shares) / (counts.sum(axis=1, keepdims=True) + 1)
    logarithms: np.ndarray = np.log(likely / shares)
    return logarithms


@lru_cache(maxsize=16)
def _scores_of(labels: tuple[str, ...], transitions: tuple[tuple[float, ...], ...]) -> tuple[np.ndarray, np.ndarray]:
    """Scores of the first label, (labels,), and from a label to the next, (from, to): -inf for what is not allowed."""
    first, follows = allowed_transitions(labels)
    learned = np.asarray(transitions or np.zeros((len(labels) + 1, len(labels))))
    return np.where(first, learned[0], -np.inf), np.where(follows, learned[1:], -np.inf)


def best_path(
    outputs: np.ndarray, labels: Sequence[str], transitions: tuple[tuple[float, ...], ...] = ()
) -> np.ndarray:
    """The allowed sequence of label indices with the largest sum of log-probabilities, int64 (words,).

    With `transitions` (labels + 1, labels), of log-probabilities and transitions (Viterbi 1967).

    `outputs` are raw outputs of the head, (words, labels); they differ from log-probabilities by one number per word,
    which all sequences share. A NaN word gets some label that its neighbours allow: a span that continues after it may
    begin there. Transitions count between words of which both have outputs. If the best labels of the single words form
    an allowed sequence, that is the result; among equal sequences, the one whose last word has the first label, then
    the word before it, and so on.
    """
    return best_paths([outputs], labels, transitions)[0]


def best_paths(
    rows: Sequence[np.ndarray], labels: Sequence[str], transitions: tuple[tuple[float, ...], ...] = ()
) -> list[np.ndarray]:
    """The same for the words of several texts: word after word, of some texts of like length at once.

    Texts whose best labels of the single words are certain to form the best sequence are not searched.
    """
    first, follows = _scores_of(tuple(labels), transitions)
    scored = [_numbers(row, len(labels)) for row in rows]
    are_read = [~np.isnan(row).any(axis=-1) for row in rows] if transitions else []
    paths: list[np.ndarray] = [scores.argmax(axis=-1) for scores in scored]
    known = set[int]()
    with_all = [i for i, path in enumerate(paths) if len(path) and (not transitions or are_read[i].all())]
    for begin in range(0, len(with_all), CHECKED_AT_ONCE):
        texts = with_all[begin : begin + CHECKED_AT_ONCE]
        values = [scored[i] for i in texts] if transitions else None
        known.update(np.array(texts)[_are_settled([paths[i] for i in texts], first, follows, values)].tolist())
    order = sorted((i for i, path in enumerate(paths) if len(path) and i not in known), key=lambda i: -len(paths[i]))
    for begin in range(0, len(order), AT_ONCE):
        texts = order[begin : begin + AT_ONCE]
        lengths = np.array([len(paths[i]) for i in texts])
        scores = np.zeros((len(texts), lengths[0], len(labels)))
        for row, i in zip(scores, texts, strict=True):
            row[: len(scored[i])] = scored[i]
        steps = _steps([are_read[i] for i in texts] if transitions else [], first, follows)
        # The best sum of a path that ends with each label of each word, (texts, words, labels).
        totals = scores
        totals[:, 0] += steps(0, len(texts))
        # The number of texts with a word at each place; the texts are sorted, the longest first.
        with_word = [int(np.searchsorted(-lengths, -word)) for word in range(lengths[0])]
        for word in range(1, lengths[0]):
            several = slice(with_word[word])
            totals[several, word] += (totals[several, word - 1, :, None] + steps(word, with_word[word])).max(axis=1)
        best_labels = np.zeros(scores.shape[:2], np.int64)
        best_labels[np.arange(len(texts)), lengths - 1] = totals[np.arange(len(texts)), lengths - 1].argmax(axis=1)
        for word in range(lengths[0] - 1, 0, -1):  # which label led to the best sum is asked of one label a word alone
            several = slice(with_word[word])
            to_next = _to(steps(word, with_word[word]), best_labels[several, word])
            best_labels[several, word - 1] = (totals[several, word - 1] + to_next).argmax(axis=1)
        for i, path, length in zip(texts, best_labels, lengths.tolist(), strict=True):
            paths[i] = path[:length]
    return paths


def _steps(are_read: Sequence[np.ndarray], first: np.ndarray, follows: np.ndarray) -> Callable[[int, int], np.ndarray]:
    """A function of a place and a number of texts: scores of labels there, (texts, labels), else by the label before.

    `are_read` says of each word of the texts, the longest first, whether it has outputs. Transitions from or to a word
    without outputs would decide alone, so that only what is allowed counts there.
    """
    if all(read.all() for read in are_read):
        return lambda word, texts: follows if word else first
    both = np.zeros((len(are_read), len(are_read[0])), bool)
    for known, read in zip(both, are_read, strict=True):
        known[: len(read)] = read
    both[:, 1:] &= both[:, :-1]
    bare_first, bare_follows = (np.where(np.isfinite(scores), 0.0, scores) for scores in (first, follows))

    def scores(word: int, texts: int) -> np.ndarray:
        if word:
            return np.where(both[:texts, word, None, None], follows, bare_follows)
        return np.where(both[:, 0, None], first, bare_first)

    return scores


def _to(steps: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The steps to one label of each text by the label before, (texts, from); steps are (from, to), or by text."""
    return steps[:, labels].T if steps.ndim == 2 else steps[np.arange(len(labels)), :, labels]


def _numbers(outputs: np.ndarray, labels: int) -> np.ndarray:
    """The outputs as float64 (words, labels), 0 for NaN words."""
    numbers = np.asarray(outputs, np.float64).reshape(-1, labels)
    return np.where(np.isnan(numbers).any(axis=-1, keepdims=True), 0.0, numbers)


def _are_settled(
    paths: Sequence[np.ndarray], first: np.ndarray, follows: np.ndarray, scored: Sequence[np.ndarray] | None
) -> np.ndarray:
    """True for each text whose best labels of single words are certain to be its best sequence, bool (texts,).

    They are if they are allowed and no transitions were learned (`scored` None), or if every other label of a word
    loses more than the steps to and from it could gain, whatever labels its neighbours have. A step between two other
    labels is counted for the second word, one back to a best label for the first.
    """
    starts, words = np.cumsum([0, *map(len, paths)])[:-1], np.arange(sum(map(len, paths)))
    path = np.concatenate(paths)
    steps = np.concatenate([[0.0], follows[path[:-1], path[1:]]])  # to the best label of each word
    steps[starts] = first[path[starts]]
    are_allowed = np.minimum.reduceat(np.isfinite(steps), starts)
    if scored is None:
        return are_allowed
    scores = np.concatenate(scored)
    steps = np.where(np.isfinite(steps), steps, 0.0)
    to_each = np.broadcast_to(follows.max(axis=0), scores.shape).copy()
    to_each[starts] = first
    back = np.maximum(follows[:, path[1:]].T - steps[1:, None], 0.0)  # to the best label of the word after
    back[starts[1:] - 1] = 0.0
    lead = scores[words, path][:, None] - scores - (to_each - steps[:, None])
    lead[:-1] -= back
    lead[words, path] = np.inf
    return are_allowed & (np.minimum.reduceat(lead.min(axis=1), starts) > ROUNDING)
