"""A loaded bundle that answers: every requested task of an input with one pass of the trunk."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path as FilePath

import numpy as np

from polyhead import cost
from polyhead.bundle.read import Bundle
from polyhead.config import Value
from polyhead.engine.backends import open_backend
from polyhead.engine.backends.base import LoadedTask, TokenBatch
from polyhead.engine.inputs import AnyInput, plain, why_not
from polyhead.engine.rows import Reading, batched, readings_of
from polyhead.engine.summaries import Summaries
from polyhead.errors import BackendError, BadValue, UnknownTask
from polyhead.plan import Plan, merge
from polyhead.tasks.example import Example
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Task
from polyhead.text.question import texts_of
from polyhead.text.tokenise import Encoded, Tokeniser, lone_surrogates, windows_of


class Receipt(Value):
    """What one input cost.

    `passes` counts inputs that were read, not runs of the trunk: one for a text or a pair read jointly, two for a pair
    read separately, one an option, one a window. `layers` counts every layer that was run on them: a prompt group or an
    adapter has its input run through layers of the trunk once more, which adds layers and no pass.

    `added_flops` has an entry for each answered task, what it alone did beyond a plain pass of the trunk, and one for
    tasks that shared such work, "shared: mood, urgency": the pass of their prompt group, layers with their common
    adapter. With the plain pass the entries are the whole cost; a pair read separately is counted as its longer text.
    """

    passes: int
    layers: int
    tokens: int  # special tokens included
    cut: int = 0  # tokens beyond the trunk's limit that were not read by tasks that do not read windows
    windows: int = 1
    repaired: int = 0  # lone surrogates that were replaced before reading
    added_flops: dict[str, int] = {}


class Result(Value):
    """Answers keyed by task, the tasks that do not fit this input with the reason, and the receipt."""

    answers: dict[str, dict[str, object]]
    receipt: Receipt
    skipped: dict[str, str] = {}


class Session:
    """A bundle opened for answering. Tasks are an argument of every call; there is no active task.

    `precision` is that of the trunk; None takes the one the tasks were trained with. In deterministic mode every
    batch has the same shapes, so that a row's answer is the same bits whatever its batch mates are.
    """

    def __init__(
        self,
        bundle: Bundle | FilePath | str,
        *,
        backend: str = "torch",
        precision: str | None = None,
        deterministic: bool = False,
    ) -> None:
        self.bundle = bundle if isinstance(bundle, Bundle) else Bundle.open(bundle)
        trunk = self.bundle.trunk()
        self.records = dict(self.bundle.tasks)
        loaded = {
            name: LoadedTask(path=record.path, arrays=self.bundle.part(name), others=self.bundle.others(name))
            for name, record in self.records.items()
        }
        self.deterministic = deterministic
        self.backend = open_backend(
            backend,
            trunk,
            loaded,
            precision=precision or self._trained_precision(),
            deterministic=deterministic,
        )
        self.tokeniser = Tokeniser(trunk.tokenizer, trunk.settings)
        self.shape, self.settings = trunk.architecture, trunk.settings
        self.summaries = Summaries(self.bundle, deterministic=deterministic)
        self._plans: dict[tuple[str, ...], Plan] = {}
        # by the tasks and tokens of a reading, entries of `Receipt.added_flops`
        self._flops: dict[tuple[tuple[str, ...], int], dict[str, int]] = {}

    def predict(
        self,
        inputs: Sequence[AnyInput | str],
        *,
        tasks: Iterable[str] | None = None,
        words: Sequence[np.ndarray | None] | None = None,
    ) -> list[Result]:
        """One result an input, in order. `tasks` asks for some; None for all that fit.

        An input is a text, a pair of texts, a `Passage` (a question and its context, for span tasks alone) or a
        `Question` with options. `words` gives an input's own words (words, 2), in characters, for tagging; without it
        words are found.
        """
        names, writing = self.summaries.apart(self.asked(tasks))
        given: list[AnyInput] = [(text,) if isinstance(text, str) else text for text in inputs]
        readings = readings_of(
            given, {name: self.records[name].task for name in names}, self.tokeniser, self.settings, words
        )
        outputs = self.outputs_of(readings)
        by_row: dict[int, list[Reading]] = {}
        for reading in readings:
            by_row.setdefault(reading.row, []).append(reading)
        found = [self._result(i, text, names, by_row.get(i, []), outputs) for i, text in enumerate(given)]
        return self.summaries.added(found, given, writing, required=tasks is not None)

    def outputs(
        self, task: str, inputs: Sequence[AnyInput], *, words: Sequence[np.ndarray | None] | None = None
    ) -> list[np.ndarray]:
        """The task's outputs (logits) for each input, windows merged: what metrics are computed from."""
        self.asked([task])
        if task in self.summaries.tasks:
            return self.summaries.outputs(task, inputs)
        readings = readings_of(
            list(inputs), {task: self.records[task].task}, self.tokeniser, self.settings, words
        )
        found = self.outputs_of(readings)
        for index, given in enumerate(inputs):
            if (task, index) not in found:
                raise BadValue(
                    f"task '{task}' has no output for input {index}",
                    got=why_not(self.records[task].task, given),
                    do="leave that input out",
                )
        return [found[task, index] for index in range(len(inputs))]

    def plan(self, tasks: Iterable[str]) -> Plan:
        """The merged plan of these tasks."""
        key = tuple(tasks)
        if key not in self._plans:
            self._plans[key] = merge({name: self.records[name].path for name in key})
        return self._plans[key]

    @property
    def tasks(self) -> dict[str, Task]:
        """Every task that can be asked: those that read the trunk, then those that own their models."""
        return {name: record.task for name, record in self.records.items()} | self.summaries.tasks

    def asked(self, tasks: Iterable[str] | None) -> tuple[str, ...]:
        """The tasks that a call with this argument answers, each once; None asks for all. Raises UnknownTask."""
        known = self.tasks
        names = tuple(dict.fromkeys(tasks)) if tasks is not None else tuple(known)
        unknown = [name for name in names if name not in known]
        if unknown:
            raise UnknownTask(
                f"the bundle has no task {', '.join(map(repr, unknown))}",
                allowed=sorted(known),
                do="ask for tasks that `polyhead inspect` lists",
            )
        return names

    def _trained_precision(self) -> str:
        found = {_precision(record.trained_with) for record in self.records.values()} - {None}
        if len(found) > 1:
            raise BackendError(
                "the bundle's tasks were trained on a trunk of different precisions",
                got=sorted(str(one) for one in found),
                do="say which one is to answer: precision=..., --precision",
            )
        return next(iter(found), None) or "float32"

    def outputs_of(
        self, readings: Sequence[Reading], *, together: bool = False
    ) -> dict[tuple[str, int], np.ndarray]:
        """Outputs by task and input.

        Readings of different tasks are batched apart, or `together`: then all tasks of a batch run over all its rows.
        """
        found: dict[tuple[str, int], np.ndarray] = {}
        for group in [list(readings)] if together else _by_tasks(readings):
            for batch, members in self._batched(group):
                plan = self.plan(dict.fromkeys(task for reading in members for task in reading.tasks))
                features = self.backend.features(plan, batch)
                for row, reading in enumerate(members):
                    for task in reading.tasks:
                        found[task, reading.id] = self._headed(task, reading, features[task][row])
        return self._of_inputs(readings, found)

    def _batched(self, readings: Sequence[Reading]) -> Iterator[tuple[TokenBatch, list[Reading]]]:
        return batched(
            readings, self.tokeniser.pad_id, self.settings.max_tokens, deterministic=self.deterministic
        )

    def _headed(self, task: str, reading: Reading, features: np.ndarray) -> np.ndarray:
        """The task's output for one reading, of the words that it reads; of half a separate pair the features."""
        if reading.role in ("first", "second"):
            return features
        if not kind_of(self.records[task].task).per_word:
            return np.asarray(self.backend.outputs(task, features[None])[0])
        return np.asarray(self.backend.outputs(task, features[None, : len(reading.read)])[0], np.float32)

    def _of_inputs(
        self, readings: Sequence[Reading], found: Mapping[tuple[str, int], np.ndarray]
    ) -> dict[tuple[str, int], np.ndarray]:
        """Outputs by task and input: windows merged, the texts of a pair compared, options side by side."""
        places: dict[tuple[str, int], dict[int, list[Reading]]] = {}
        for reading in readings:
            for name in reading.tasks:
                places.setdefault((name, reading.row), {}).setdefault(reading.option, []).append(reading)
        outputs = {}
        for (name, row), options in places.items():
            task, several = self.records[name].task, [options[place] for place in sorted(options)]
            if several[0][0].role == "first":
                first, second = (found[name, reading.id][None] for reading in several[0])
                outputs[name, row] = self.backend.outputs(name, first, second)[0]
                continue
            whole = [_of_windows(task, some, [found[name, r.id] for r in some]) for some in several]
            outputs[name, row] = np.concatenate(whole) if kind_of(task).per_option else whole[0]
        return outputs

    def _result(
        self,
        index: int,
        given: AnyInput,
        names: Sequence[str],
        mine: Sequence[Reading],
        outputs: Mapping[tuple[str, int], np.ndarray],
    ) -> Result:
        answers: dict[str, dict[str, object]] = {}
        skipped: dict[str, str] = {}
        for name in names:
            task = self.records[name].task
            if (name, index) not in outputs:
                skipped[name] = why_not(task, given)
                continue
            own = next(r for r in mine if name in r.tasks)
            example = Example(given=plain(given), words=own.all_words)
            answers[name] = kind_of(task).decode(task, outputs[name, index], example)
        receipt = self._receipt(given, mine, list(answers))
        return Result(answers=answers, receipt=receipt, skipped=skipped)

    def _receipt(self, given: AnyInput, readings: Sequence[Reading], answered: Sequence[str]) -> Receipt:
        depths = [cost.layer_evaluations(self.plan(r.tasks)) for r in readings]
        return Receipt(
            passes=len(readings),
            layers=sum(depths),
            tokens=sum(len(r.encoded.ids) for r in readings),
            cut=sum(r.encoded.cut for r in readings) + self._unread(readings),
            windows=max((r.encoded.window + 1 for r in readings), default=1),
            repaired=sum(map(lone_surrogates, texts_of(plain(given)))) if readings else 0,
            added_flops=self._added_flops(readings, answered),
        )

    def _added_flops(self, readings: Sequence[Reading], answered: Sequence[str]) -> dict[str, int]:
        """For each window and option what each task added alone, and what several added together."""
        apart = [r for r in readings if r.role in ("first", "second")]
        counted = [r for r in readings if r not in apart]
        if apart:
            counted.append(max(apart, key=lambda r: len(r.encoded.ids)))
        found = dict.fromkeys(answered, 0)
        for reading in counted:
            for name, flops in self._added(reading.tasks, len(reading.encoded.ids)).items():
                found[name] = found.get(name, 0) + flops
        return found

    def _unread(self, readings: Sequence[Reading]) -> int:
        """Tokens in later windows, which the tasks that cut do not read; 0 where every task reads windows."""
        later = [r for r in readings if r.encoded.window > 0]
        if not later or set(later[0].tasks) == set(readings[0].tasks):
            return 0
        stride = windows_of(self.settings.max_tokens).stride
        return sum(_moved(r.encoded, readings[0].encoded) - stride for r in later)

    def _added(self, tasks: tuple[str, ...], tokens: int) -> dict[str, int]:
        if (tasks, tokens) not in self._flops:
            found = cost.flops_by_sharers(self.plan(tasks), self.shape, tokens, folded=True)
            self._flops[tasks, tokens] = {
                names[0] if len(names) == 1 else f"shared: {', '.join(names)}": flops
                for names, flops in found.items()
            }
        return self._flops[tasks, tokens]


def _moved(window: Encoded, first: Encoded) -> int:
    """Tokens of the text that the windows move over; a pair's other text stands in each of them."""
    here = [window.offsets[window.sequence == text].tolist() for text in range(window.texts)]
    before = [first.offsets[first.sequence == text].tolist() for text in range(first.texts)]
    return sum(len(now) for now, then in zip(here, before, strict=True) if now[:1] != then[:1])


def _by_tasks(readings: Sequence[Reading]) -> Iterator[list[Reading]]:
    groups: dict[tuple[str, ...], list[Reading]] = {}
    for reading in readings:
        groups.setdefault(reading.tasks, []).append(reading)
    yield from groups.values()


def _of_windows(task: Task, readings: Sequence[Reading], raw: Sequence[np.ndarray]) -> np.ndarray:
    """One output of one or several windows; of words a row for each in the text, NaN where none reads it."""
    kind = kind_of(task)
    if kind.per_word:
        best = readings[0].best_windows([r.encoded for r in readings])[:, 0]
        return kind.merge_words(task, raw, [r.places for r in readings], best)
    return raw[0] if len(raw) == 1 else kind.merge_windows(task, list(raw))


def _precision(trained_with: Mapping[str, object]) -> str | None:
    numerics = trained_with.get("numerics")
    return str(numerics["precision"]) if isinstance(numerics, dict) and "precision" in numerics else None
