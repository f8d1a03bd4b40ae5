"""Held-out splits of examples: the same for the same seed, with no input on both sides."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import msgspec
import numpy as np

from polyhead.data.read import Examples
from polyhead.errors import EmptyData
from polyhead.tasks.task import Task, kind_of
from polyhead.text.characters import has_visible
from polyhead.text.question import Question, TaskInput, texts_of
from polyhead.values import Value


class TaskExamples(Value, eq=False):
    """A task's examples, and the file that they were read from."""

    task: Task
    examples: Examples
    path: str


def with_weight(examples: Examples, task: Task) -> Examples:
    """The rows whose weight is above 0: the others count nowhere, as if they were not there. EmptyData if none is."""
    kept = [number for number, weight in enumerate(examples.weights or ()) if weight]
    if examples.weights is None or len(kept) == len(examples.rows):
        return examples
    count = examples.report.used - len(examples.rows) + len(kept)
    report = msgspec.structs.replace(examples.report, used=count, weightless=len(examples.rows) - len(kept))
    if not kept:
        problem = f"task '{task.name}': every row has weight 0, so there is nothing to learn from"
        raise EmptyData(problem, got=f"{len(examples.rows):,} rows", do="give a row a weight above 0", report=report)
    return msgspec.structs.replace(examples.take(kept), report=report)


def hold_out(
    examples: Examples, fraction: float, seed: int, task: Task, *, even_single: bool = False
) -> tuple[Examples, Examples]:
    """(kept, held out), each in file order; about `fraction` of the rows are held out, and one group at least.

    Rows of one group stay together; rows without one stay with those that have equal texts, ignoring case, spaces and
    the order of a pair or of options, and questions with those over the same context, where there are several. Each
    stratum of the kind contributes its share, but a stratum of a single such group is kept; where all are, the last is
    held out if `even_single`. Raises EmptyData for an empty side.
    """
    rng = np.random.default_rng(seed)
    strata = _by_label(examples, task)
    held: list[int] = []
    shortfall = 0.0  # rounding carried over between strata, so that small strata together contribute their share
    for groups in strata.values():
        taken, shortfall = _taken(groups, fraction, shortfall, rng)
        held += taken
    total = sum(map(len, strata.values()))
    if not held and total > 1:
        allowed = [groups for groups in strata.values() if len(groups) > 1] or list(strata.values()) * even_single
        held = allowed[-1][-1] if allowed else []
    return _halves(examples, held, task, fraction, groups=total)


def folds(examples: Examples, count: int, seed: int, task: Task) -> list[list[int]]:
    """The rows of each of `count` folds, which partition the rows; fewer folds if there are fewer groups.

    Rows stay together as in `hold_out`, and each stratum is distributed evenly.
    """
    rng = np.random.default_rng(seed)
    dealt: list[list[int]] = [[] for _ in range(count)]
    place = 0
    for groups in _by_label(examples, task).values():
        for index in rng.permutation(len(groups)):
            dealt[place % count] += groups[index]
            place += 1
    return [sorted(rows) for rows in dealt if rows]


def split_together(tasks: Sequence[TaskExamples], fraction: float, seed: int) -> list[tuple[Examples, Examples]]:
    """(kept, held out) of each task, as by `hold_out`; what one task holds out, no other task keeps.

    Rows with equal texts or contexts stay together across tasks and files, and so do several tasks' readings of one row
    of a file, and a file's rows of one group.
    Each stratum of each task contributes about its share: the rarest is assigned first, as in iterative stratification
    (Sechidis et al. 2011).
    """
    groups = _groups(tasks, seed)
    strata = _strata(tasks, groups)
    held: list[list[int]] = [[] for _ in tasks]
    for group in _chosen(strata, fraction):
        for task, row in groups[group]:
            held[task].append(row)
    counts = [sum(len(stratum.rows) for stratum in strata if stratum.task == index) for index in range(len(tasks))]
    return [
        _halves(task.examples, rows, task.task, fraction, groups=count)
        for task, rows, count in zip(tasks, held, counts, strict=True)
    ]


def overlapping(tasks: Sequence[TaskExamples]) -> list[list[TaskExamples]]:
    """Lists of tasks that share rows of a file or texts; most tasks are alone in their list."""
    sets = _DisjointSets()
    for index, task in enumerate(tasks if len(tasks) > 1 else ()):
        for keys in _keys(task):
            sets.join([("task", index), *keys])
    lists: dict[int, list[TaskExamples]] = {}
    for index, task in enumerate(tasks):
        lists.setdefault(sets.of(("task", index)), []).append(task)
    return list(lists.values())


class _Stratum(msgspec.Struct, frozen=True):
    """A unit that is split separately: a label of a task, or a whole task. `rows`: group -> number of its rows."""

    task: int
    rows: dict[int, int]


class _DisjointSets:
    """Keys in disjoint sets (union-find)."""

    def __init__(self) -> None:
        self._numbers: dict[object, int] = {}
        self._above: list[int] = []

    def join(self, keys: Sequence[object]) -> None:
        first, *others = (self.of(key) for key in keys)
        for other in others:
            self._above[self._top(other)] = self._top(first)

    def of(self, key: object) -> int:
        """The number of the key's set."""
        number = self._numbers.setdefault(key, len(self._above))
        if number == len(self._above):
            self._above.append(number)
        return self._top(number)

    def _top(self, number: int) -> int:
        while self._above[number] != number:
            self._above[number] = self._above[self._above[number]]
            number = self._above[number]
        return number


def kept_together(examples: Examples, task: Task) -> list[tuple[object, ...]]:
    """A key for each row; rows of one key stay together. It is the row's group, else its context, else its texts.

    Groups are not joined by equal texts: a few words that everybody says would join all of them.
    """
    groups, keys = examples.groups or [None] * len(examples.inputs), list[tuple[object, ...]]()
    for value, group in zip(examples.inputs, groups, strict=True):
        context = _context_of(value, task)
        keys.append((None, group) if group is not None else texts_key((context,) if has_visible(context) else value))
    return keys


def split_keys(examples: Examples, task: Task) -> list[tuple[object, ...]]:
    """The keys by which rows are split: those of `kept_together`, or texts where all rows have the same context."""
    keys = kept_together(examples, task)
    return keys if examples.groups or len(set(keys)) > 1 else [*map(texts_key, examples.inputs)]


def texts_key(example: TaskInput) -> tuple[str, ...]:
    """Its texts, ignoring case, spaces and their order: equal for inputs that count as the same."""
    return tuple(sorted(" ".join(text.casefold().split()) for text in texts_of(example)))


def _context_of(example: TaskInput, task: Task) -> str:
    """The text that a question is about; "" without one."""
    if isinstance(example, Question):
        return example.context
    return example[-1] if kind_of(task).context_column is not None else ""


def _keys(task: TaskExamples) -> list[tuple[object, ...]]:
    """The keys by which examples of several tasks may coincide: the row in the file, the group, or context and texts.

    Texts and contexts coincide across files, groups only within one.
    """
    examples, keys = task.examples, list[tuple[object, ...]]()
    for row, value, key in zip(examples.rows, examples.inputs, split_keys(examples, task.task), strict=True):
        others = ((task.path, *key),) if key[0] is None else (key, texts_key(value))
        keys.append(((task.path, row), *others))
    return keys


def _groups(tasks: Sequence[TaskExamples], seed: int) -> list[list[tuple[int, int]]]:
    """(task, row) of the examples that stay together, in an order that depends on texts and seed alone."""
    sets, members = _DisjointSets(), dict[int, list[tuple[int, int]]]()
    keys_of = [_keys(task) for task in tasks]
    for pairs in keys_of:
        for pair in pairs:
            sets.join(pair)
    ranks: dict[int, bytes] = {}
    for task, pairs in enumerate(keys_of):
        for row, (place, key, *_) in enumerate(pairs):
            group = sets.of(place)
            members.setdefault(group, []).append((task, row))
            rank = blake2b(repr((seed, key)).encode("utf-8", "surrogatepass"), digest_size=16).digest()
            ranks[group] = min(rank, ranks.get(group, rank))
    return [members[group] for group in sorted(members, key=lambda group: ranks[group])]


def _strata(tasks: Sequence[TaskExamples], groups: Sequence[Sequence[tuple[int, int]]]) -> list[_Stratum]:
    """The strata in the order of tasks and labels; a group has the label of its first row."""
    rows_of: dict[tuple[int, int], dict[int, int]] = {}
    for number, group in enumerate(groups):
        labels: dict[int, int] = {}
        for task, row in group:
            label = labels.setdefault(task, kind_of(tasks[task].task).stratum(tasks[task].examples.targets[row]))
            rows = rows_of.setdefault((task, label), {})
            rows[number] = rows.get(number, 0) + 1
    return [_Stratum(task, rows_of[task, label]) for task, label in sorted(rows_of)]


def _chosen(strata: Sequence[_Stratum], fraction: float) -> list[int]:
    """The groups to hold out: about `fraction` of each stratum's rows, and never all of its groups."""
    remaining = [len(stratum.rows) for stratum in strata]  # groups that are kept
    within: dict[int, list[int]] = {}
    for number, stratum in enumerate(strata):
        for group in stratum.rows:
            within.setdefault(group, []).append(number)
    held: dict[int, bool] = {}
    rows_of = {stratum.task: 0 for stratum in strata}  # rows of groups decided so far
    held_of = dict(rows_of)
    for stratum in sorted(strata, key=lambda stratum: len(stratum.rows)):
        undecided = [group for group in stratum.rows if group not in held]
        already = sum(rows for group, rows in stratum.rows.items() if held.get(group))
        of_label = fraction * sum(stratum.rows.values()) - already
        of_task = fraction * (rows_of[stratum.task] + sum(stratum.rows[group] for group in undecided))
        # The label's share alone would accumulate rounding errors; the task's share alone would ignore the label.
        wanted, taken = (of_label + of_task - held_of[stratum.task]) / 2, 0
        for group in undecided:
            is_last = any(remaining[number] == 1 for number in within[group])
            held[group] = not is_last and taken + stratum.rows[group] / 2 <= wanted
            taken += stratum.rows[group] * held[group]
            for number in within[group]:
                other = strata[number]
                remaining[number] -= held[group]
                rows_of[other.task] += other.rows[group]
                held_of[other.task] += other.rows[group] * held[group]
    return [group for group, is_held in held.items() if is_held]


def _by_label(examples: Examples, task: Task) -> dict[int, list[list[int]]]:
    """Lists of rows that stay together, by the label of each one's first row, in label order."""
    groups: dict[object, list[int]] = {}
    for index, key in enumerate(split_keys(examples, task)):
        groups.setdefault(key, []).append(index)
    strata: dict[int, list[list[int]]] = {}
    for group in groups.values():
        strata.setdefault(kind_of(task).stratum(examples.targets[group[0]]), []).append(group)
    return {label: strata[label] for label in sorted(strata)}


def _halves(
    examples: Examples, held: Sequence[int], task: Task, fraction: float, *, groups: int
) -> tuple[Examples, Examples]:
    chosen = sorted(held)
    kept = sorted(set(range(len(examples.inputs))) - set(held))
    has_context = any(map(has_visible, (_context_of(value, task) for value in examples.inputs)))
    unit = "groups" if examples.groups is not None else "contexts" if has_context else "inputs"
    if not kept or not chosen:
        raise EmptyData(
            f"task '{task.name}': too few different {unit} to hold some out",
            got=f"{len(examples.inputs)} rows, {groups} different {unit}, fraction {fraction}",
            do="give more rows"
            + (" with other contexts, a group for each row," * (unit == "contexts"))
            + " or a validation file",
        )
    return examples.take(kept), examples.take(chosen)


def _taken(
    groups: list[list[int]], fraction: float, shortfall: float, rng: np.random.Generator
) -> tuple[list[int], float]:
    wanted = fraction * sum(map(len, groups)) + shortfall
    taken: list[int] = []
    for index in rng.permutation(len(groups))[: len(groups) - 1]:  # at least one group is kept
        size = len(groups[index])
        if len(taken) + size / 2 <= wanted:  # closer to the target with the group than without it
            taken += groups[index]
    return taken, wanted - len(taken)
