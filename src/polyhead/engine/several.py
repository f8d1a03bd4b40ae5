"""A set of bundles as one session: each task runs on its own bundle's trunk, or on several in a cascade.

A cascade is a task that several bundles have. The first of them answers a text where the calibrated probability of its
label reaches a threshold; the other texts go to the next bundle, and the last one answers whatever it gets.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import isfinite
from pathlib import Path as FilePath
from time import monotonic
from typing import Any, cast

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType

from polyhead.arguments import typed
from polyhead.bundle.read import Bundle
from polyhead.engine.answers import Result
from polyhead.engine.familiar import NoneBelow, check_none_below
from polyhead.engine.inputs import Inputs, Words, checked_deadline, checked_inputs, checked_words
from polyhead.engine.loaded import Changes, LoadedTasks, shown_tasks
from polyhead.engine.receipt import Receipt, added_up
from polyhead.engine.request import Request
from polyhead.engine.session import Session, attached_vectors, wants_vectors
from polyhead.errors import ConfigError, ErrorT, PolyheadError, reworded, suggestion
from polyhead.tasks.calibration import KEY, Wishes, wish_of, with_calibrated
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Answer, Task

NOTHING = Receipt(passes=0, layers=0, tokens=0)


class SessionSet:
    """Bundles opened together. Tasks are asked by name, whatever bundle they lie in; a receipt says which answered.

        SessionSet(["cheap", "deep"], cascades={"topics": 0.9}).predict(texts)

    `cascades` gives the threshold of each task that several bundles have, from the cheapest bundle to the deepest. A
    threshold of 0 leaves every text to the first bundle, one above 1 none. The other arguments are those of `Session`.
    Raises ConfigError for a task of several bundles without a threshold, and for a cascade of tasks that differ.
    """

    @typed
    def __init__(
        self,
        bundles: Sequence[Bundle | FilePath | str],
        *,
        cascades: Mapping[str, float] | None = None,
        backend: str | None = None,
        precision: str | None = None,
        deterministic: bool = False,
        streams: int = 1,
    ) -> None:
        how: dict[str, Any] = {"backend": backend, "precision": precision}
        how |= {"deterministic": deterministic, "streams": streams}
        opened = [bundle if isinstance(bundle, Bundle) else Bundle.open(bundle) for bundle in bundles]
        names = bundle_names([str(bundle.root) for bundle in opened])
        self.cascades = dict(cascades or {})
        by_name = dict(zip(names, opened, strict=True))
        tasks = {name: {task: record.task for task, record in bundle.tasks.items()} for name, bundle in by_name.items()}
        homes_of(tasks, self.cascades)  # before any trunk is loaded
        self.sessions = {name: Session(bundle, **how) for name, bundle in by_name.items()}
        # While bundles change one after another, the tasks before: calls see the changes of all, or none.
        self._changing, self._before = threading.Lock(), cast(TasksOfSet | None, None)

    @property
    def loaded(self) -> TasksOfSet:
        """The tasks of this moment, of all bundles."""
        while (before := self._before) is None:
            parts = {name: session.loaded for name, session in self.sessions.items()}
            if self._before is None and all(self.sessions[name].loaded is part for name, part in parts.items()):
                return TasksOfSet(parts, self.cascades)
        return before

    @property
    def tasks(self) -> dict[str, Task]:
        """Every task that is not hidden."""
        return shown_tasks(self.loaded)

    def predict(
        self,
        inputs: Inputs,
        *,
        tasks: Iterable[str] | None = None,
        words: Words = None,
        deadline: float | None = None,
        calibrated: Wishes = True,
        familiar: bool = False,
        none_below: NoneBelow = None,
    ) -> list[Result]:
        """One result an input, as `Session.predict` gives it; of a cascade only the unsure texts go to the next trunk.

        Each trunk that some task needs reads an input once. Receipts add up what all of them did. A `calibrated` choice
        is one that every bundle with the task has: BadValue is raised before any text is encoded.
        """
        listed = checked_inputs(inputs)
        own_words, seconds = checked_words(words, listed), checked_deadline(deadline)
        end = None if seconds is None else monotonic() + seconds
        asked = self.loaded.task_names(tasks)
        loaded, vectors = self._moment(asked, calibrated, familiar=familiar, none_below=none_below)
        turns, failures = Turns(loaded, asked, len(listed)), list[Exception]()
        for bundle, part in loaded.parts.items():
            for rows, names in turns.questions(bundle):
                limits = limits_of(none_below, names)
                is_told = wants_vectors(part, names, familiar=familiar, none_below=limits)
                wishes = {name: name in self.cascades or wish_of(calibrated, name) for name in names}
                with errors_of_call(rows):
                    columns = Request(
                        part,
                        [listed[row] for row in rows],
                        names,
                        words=None if own_words is None else [own_words[row] for row in rows],
                        deadline=None if end is None else max(0.0, end - monotonic()),
                        vectors=vectors[bundle] if is_told else None,
                    ).run(part, raises=False)
                    results = columns.results(wishes, familiar=familiar, none_below=limits)
                failures += [] if columns.failure is None else [columns.failure]
                turns.take(bundle, rows, names, results)
        results = turns.results()
        if failures and not any(result.answers or result.late for result in results):
            raise failures[0]
        return [self._wished(result, loaded, calibrated) for result in results]

    def refresh(self) -> dict[str, Changes]:
        """Reads every bundle.json again: see `Session.refresh`. What breaks the set is refused, and no bundle changes.

        The bundles are checked together: a task may move from one to another.
        """
        new_tasks, all_changes = dict[str, Mapping[str, Task]](), dict[str, Changes]()

        def refresh(bundle: str, *others: str) -> None:
            def check(old: LoadedTasks, new: LoadedTasks, changes: Changes) -> None:
                new_tasks[bundle], all_changes[bundle] = new.tasks, changes
                if others:  # within this change, so that their refusal undoes it
                    refresh(*others)
                else:
                    homes_of(new_tasks, self.cascades)

            self.sessions[bundle].refresh(check)

        with self._changing:
            self._before = self.loaded
            try:
                refresh(*self.sessions)
            finally:
                self._before = None
        return all_changes

    def _moment(
        self, tasks: Sequence[str], calibrated: Wishes, *, familiar: bool, none_below: NoneBelow
    ) -> tuple[TasksOfSet, dict[str, str]]:
        """The tasks of now, and the hidden one of each bundle that gives mean vectors, where its tasks want it."""
        while True:
            loaded = self.loaded
            names = loaded.task_names(tasks)
            check_none_below(none_below, loaded.tasks, names)
            loaded.check_choices(calibrated, names)
            vectors = {}
            for bundle, part in loaded.parts.items():
                its_tasks = [name for name in names if bundle in loaded.bundles[name]]
                limits = limits_of(none_below, its_tasks)
                if wants_vectors(part, its_tasks, familiar=familiar, none_below=limits):
                    vectors[bundle] = attached_vectors(self.sessions[bundle])
            if all(name in loaded.parts[bundle].tasks for bundle, name in vectors.items()):
                return loaded, vectors

    def _wished(self, result: Result, loaded: TasksOfSet, calibrated: Wishes) -> Result:
        """The answers of cascades as the caller wants them calibrated, each by the bundle that gave it."""
        answers = dict(result.answers)
        for name in self.cascades.keys() & answers.keys():
            if (wish := wish_of(calibrated, name)) is not True:
                bundles = result.receipt.bundles or {}  # of a set: by task, the one that answered
                home = loaded.part(bundles[name])
                (answers[name],) = with_calibrated(home.tasks[name], home.calibrations.get(name), [answers[name]], wish)
        return msgspec.structs.replace(result, answers=answers)


class TasksOfSet(LoadedTasks):
    """The tasks of all bundles of a set at one moment. It answers nothing: `homes` do."""

    def __init__(self, parts: Mapping[str, LoadedTasks], cascades: Mapping[str, float]) -> None:
        """Raises ConfigError for tasks that cannot stand together."""
        self.parts, self.cascades = dict(parts), dict(cascades)
        self.bundles = homes_of({name: part.tasks for name, part in parts.items()}, cascades)
        self.tasks = {name: self.homes(name)[-1].tasks[name] for name in self.bundles}
        self.records, self.versions, self.known = {}, {}, {}  # of a cascade those of its last bundle
        for part in parts.values():
            self.records |= part.records
            self.versions |= part.versions
            self.known |= part.known
        self.hidden = frozenset[str]().union(*(part.hidden for part in parts.values()))
        # An answer of a cascade has the calibration of the bundle that gave it, and no other is made of it.
        shared = {name for name, bundles in self.bundles.items() if len(bundles) > 1}
        self.calibrations = {
            name: values for part in parts.values() for name, values in part.calibrations.items() if name not in shared
        }
        first = next(iter(parts.values()))
        self.tokenizer, self.deterministic = first.tokenizer, first.deterministic

    def homes(self, task: str) -> tuple[LoadedTasks, ...]:
        """The tasks of the bundles that answer this one, the deepest last."""
        return tuple(self.parts[bundle] for bundle in self.bundles[task])

    def part(self, bundle: str | UnsetType) -> LoadedTasks:
        """The tasks of this bundle."""
        assert bundle is not UNSET  # a set says which bundle answered
        return self.parts[bundle]

    def check_with(self, bundle: str, new: LoadedTasks) -> None:
        """Raises ConfigError if one bundle's new tasks conflict with those of the others."""
        homes_of({name: part.tasks for name, part in {**self.parts, bundle: new}.items()}, self.cascades)


class Turns:
    """One call of a set: the questions for each bundle in turn, and the answers so far."""

    def __init__(self, loaded: TasksOfSet, tasks: Sequence[str], inputs: int) -> None:
        self._loaded, self._tasks = loaded, tuple(tasks)
        self._results: list[Result | None] = [None] * inputs
        # Of each cascade, bool (inputs,): the inputs that no bundle has answered yet.
        self._open = {name: np.ones(inputs, bool) for name in tasks if len(loaded.bundles[name]) > 1}

    def questions(self, bundle: str) -> list[tuple[list[int], tuple[str, ...]]]:
        """Groups of inputs, by number, with the tasks that the bundle is asked for them."""
        asked_tasks = [name for name in self._tasks if bundle in self._loaded.bundles[name]]
        is_asked = np.array([self._open.get(name, np.ones(len(self._results), bool)) for name in asked_tasks])
        if not asked_tasks or not is_asked.size:
            return []
        sets, which = np.unique(is_asked, axis=1, return_inverse=True)
        groups = []
        for number in range(sets.shape[1]):
            names = tuple(name for name, is_wanted in zip(asked_tasks, sets[:, number], strict=True) if is_wanted)
            if names:
                groups.append((np.flatnonzero(np.ravel(which) == number).tolist(), names))
        return sorted(groups)

    def is_sure(self, bundle: str, task: str, answer: Answer) -> bool:
        """Whether the bundle's answer stands."""
        is_last = self._loaded.bundles[task][-1] == bundle
        return is_last or confidence(answer) >= self._loaded.cascades[task]

    def take(self, bundle: str, rows: Sequence[int], tasks: Sequence[str], results: Sequence[Result]) -> None:
        """Takes what a bundle answered."""
        for row, result in zip(rows, results, strict=True):
            unsure = [name for name in tasks if name in self._open and self._goes_on(bundle, name, result)]
            kept = {name: answer for name, answer in result.answers.items() if name not in unsure}
            kept_result = msgspec.structs.replace(
                result,
                answers=kept,
                failed={name: reason for name, reason in result.failed.items() if name not in unsure},
                versions={name: version for name, version in result.versions.items() if name not in unsure},
                receipt=msgspec.structs.replace(result.receipt, bundles=dict.fromkeys(kept, bundle)),
            )
            before = self._results[row]
            self._results[row] = kept_result if before is None else _joined(before, kept_result)
            for name in tasks:
                if name in self._open:
                    self._open[name][row] = name in unsure

    def results(self) -> list[Result]:
        """The results of all, tasks in the order of the call."""
        return [self._in_order(result) for result in self._results]

    def _goes_on(self, bundle: str, task: str, result: Result) -> bool:
        """Whether the next bundle is to answer: this one is not sure, or failed."""
        if task in result.answers:
            return not self.is_sure(bundle, task, result.answers[task])
        return task in result.failed and self._loaded.bundles[task][-1] != bundle

    def _in_order(self, result: Result | None) -> Result:
        if result is None:
            return Result(answers={}, receipt=NOTHING)
        answers = {name: result.answers[name] for name in self._tasks if name in result.answers}
        return msgspec.structs.replace(result, answers=answers)


@contextmanager
def errors_of_call(rows: Sequence[int | str]) -> Iterator[None]:
    """A context in which errors name inputs by their number in the whole call, or by a name of their own."""
    try:
        yield
    except PolyheadError as error:
        if (named := error_of_call(error, rows)) is error:
            raise
        raise named from error


def error_of_call(error: ErrorT, rows: Sequence[int | str]) -> ErrorT:
    """The error with the input's number in the whole call, or its name; the same if it is of no input."""
    row = error.facts.get("row")
    if type(row) is not int or not 0 <= row < len(rows):
        return error
    called = rows[row]
    is_text = isinstance(called, str)  # one text with a name, where an input may have several
    numbered = re.compile(rf"\b{'(?:a text of )?' if is_text else ''}input {row}\b")
    name, number = (called, None) if is_text else (f"input {called}", called)
    return reworded(error, lambda words: numbered.sub(lambda _: str(name), words), row=number)


def _joined(first: Result, second: Result) -> Result:
    """The results of two bundles for one input, joined."""
    return Result(
        answers=first.answers | second.answers,
        receipt=added_up(first.receipt, second.receipt),
        skipped=first.skipped | second.skipped,
        failed=first.failed | second.failed,
        late=(*first.late, *second.late),
        versions=first.versions | second.versions,
    )


def limits_of(none_below: NoneBelow, tasks: Sequence[str]) -> NoneBelow:
    """The `none_below` of a call, for those of its tasks that a bundle answers."""
    if not isinstance(none_below, Mapping):
        return none_below
    return {name: limit for name, limit in none_below.items() if name in tasks}


def confidence(answer: Answer) -> float:
    """The probability of the likeliest label, calibrated where the task's bundle has a calibration."""
    return float(max((answer.get(KEY) or answer)["scores"].values()))


def homes_of(tasks: Mapping[str, Mapping[str, Task]], cascades: Mapping[str, float]) -> dict[str, tuple[str, ...]]:
    """By task the bundles that answer it, in order. Raises ConfigError for tasks that cannot stand together."""
    homes: dict[str, tuple[str, ...]] = {}
    for bundle, bundle_tasks in tasks.items():
        for name in bundle_tasks:
            homes[name] = (*homes.get(name, ()), bundle)
    for name, bundles in homes.items():
        if len(bundles) > 1 and name not in cascades:
            do = "rename it in one of them"
            if _can_cascade(tasks[bundles[0]][name]):
                do += f", or let the first answer where it is sure: --cascade {name}=0.9"
            raise ConfigError(f"several bundles have a task '{name}'", got=", ".join(bundles), do=do)
    for name, threshold in cascades.items():
        if len(homes.get(name, ())) < 2:
            shared = sorted(task for task, bundles in homes.items() if len(bundles) > 1)
            raise ConfigError(
                f"a cascade needs two bundles with a task '{name}'",
                got=", ".join(homes.get(name, ())) or "no bundle has it",
                allowed=shared or "no task is in two of these bundles",
                do=suggestion(name, homes) if name not in homes else "serve the bundle of its deeper trunk as well",
            )
        if isinstance(threshold, bool) or not isfinite(threshold) or threshold < 0:
            raise ConfigError(
                f"the threshold of cascade '{name}' is no probability", got=threshold, allowed="0 to 1; above 1: never"
            )
        check_alike(name, {bundle: tasks[bundle][name] for bundle in homes[name]})
    return homes


def check_alike(name: str, tasks: Mapping[str, Task]) -> None:
    """Raises ConfigError unless the tasks of these bundles can answer for each other."""
    first, *others = tasks.items()
    if not _can_cascade(first[1]):
        raise ConfigError(
            f"task '{name}' cannot be a cascade",
            got=f"kind '{first[1].kind}'",
            allowed="kind 'single_label', of single texts or pairs",
            do="make cascades of tasks of that kind alone",
        )
    for bundle, task in others:
        for field in ("kind", "labels", "pair"):
            wanted, its = getattr(first[1], field), getattr(task, field)
            if wanted != its:
                raise ConfigError(
                    f"the bundles of cascade '{name}' differ in its {field}",
                    got=f"{first[0]}: {wanted}; {bundle}: {its}",
                    do="train both with the same labels in the same order",
                )


def _can_cascade(task: Task) -> bool:
    kind = kind_of(task)
    return kind.scores == "softmax" and not kind.per_word and not kind.per_option


def bundle_names(folders: Sequence[str]) -> list[str]:
    """The names of a set's bundles: their folders' names, with as many parents as make them distinct."""
    parts = [FilePath(folder).resolve().parts for folder in folders if len(set(folders)) == len(folders)]
    for length in range(1, max(map(len, parts), default=0) + 1):
        names = ["/".join(part[-length:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    raise ConfigError("a set needs different bundles", got=list(folders), do="name each folder once")
