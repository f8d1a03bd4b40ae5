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
from polyhead.engine.rows import Reading, batched, readings_of
from polyhead.errors import BackendError, BadValue, UnknownTask
from polyhead.plan import Plan, merge
from polyhead.tasks.kinds import kind_of
from polyhead.text.tokenise import Input, Tokeniser, repair


class Receipt(Value):
    """What one input cost."""

    passes: int  # encoder passes: one for a text, one for a pair read jointly, two for a pair read separately
    layers: int  # layers evaluated, over all passes
    tokens: int  # special tokens included
    cut: int = 0  # tokens beyond the trunk's limit that were not read by tasks that do not read windows
    windows: int = 1
    repaired: int = 0  # lone surrogates that were replaced before reading
    added_flops: dict[str, int] = {}  # what each task added to the shared pass


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
            name: LoadedTask(path=record.path, arrays=self.bundle.part(name))
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
        self._plans: dict[tuple[str, ...], Plan] = {}

    def predict(
        self,
        inputs: Sequence[Input | str],
        *,
        tasks: Iterable[str] | None = None,
        words: Sequence[np.ndarray | None] | None = None,
    ) -> list[Result]:
        """One result an input, in order. `tasks` asks for some; None for all that fit.

        `words` gives an input's own words (words, 2), in characters, for tagging; without it words are found.
        """
        names = self.asked(tasks)
        given: list[Input] = [(text,) if isinstance(text, str) else text for text in inputs]
        readings = readings_of(
            given, {name: self.records[name].task for name in names}, self.tokeniser, self.settings, words
        )
        outputs = self.outputs_of(readings)
        by_row: dict[int, list[Reading]] = {}
        for reading in readings:
            by_row.setdefault(reading.row, []).append(reading)
        return [self._result(i, text, names, by_row.get(i, []), outputs) for i, text in enumerate(given)]

    def outputs(
        self, task: str, inputs: Sequence[Input], *, words: Sequence[np.ndarray | None] | None = None
    ) -> list[np.ndarray]:
        """The task's outputs (logits) for each input, windows merged: what metrics are computed from."""
        self.asked([task])
        readings = readings_of(
            list(inputs), {task: self.records[task].task}, self.tokeniser, self.settings, words
        )
        found = self.outputs_of(readings)
        return [found[task, i] for i in range(len(inputs))]

    def plan(self, tasks: Iterable[str]) -> Plan:
        """The merged plan of these tasks."""
        key = tuple(tasks)
        if key not in self._plans:
            self._plans[key] = merge({name: self.records[name].path for name in key})
        return self._plans[key]

    def asked(self, tasks: Iterable[str] | None) -> tuple[str, ...]:
        """The tasks that a call with this argument answers, each once; None asks for all. Raises UnknownTask."""
        names = tuple(dict.fromkeys(tasks)) if tasks is not None else tuple(self.records)
        unknown = [name for name in names if name not in self.records]
        if unknown:
            raise UnknownTask(
                f"the bundle has no task {', '.join(map(repr, unknown))}",
                allowed=sorted(self.records),
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
        """Outputs by task and input: features of every reading first, then each task's head, then windows merged.

        Readings of different tasks are batched apart, or `together`: then all tasks of a batch run over all its rows.
        """
        features: dict[tuple[str, int], np.ndarray] = {}
        for group in [list(readings)] if together else _by_tasks(readings):
            for batch, members in self._batched(group):
                plan = self.plan(dict.fromkeys(task for reading in members for task in reading.tasks))
                found = self.backend.features(plan, batch)
                for row, reading in enumerate(members):
                    for task in reading.tasks:
                        count = len(reading.words) if kind_of(self.records[task].task).per_word else None
                        values = found[task][row]
                        features[task, reading.id] = values if count is None else values[:count]
        return self._headed(readings, features)

    def _batched(self, readings: Sequence[Reading]) -> Iterator[tuple[TokenBatch, list[Reading]]]:
        return batched(
            readings, self.tokeniser.pad_id, self.settings.max_tokens, deterministic=self.deterministic
        )

    def _headed(
        self, readings: Sequence[Reading], features: Mapping[tuple[str, int], np.ndarray]
    ) -> dict[tuple[str, int], np.ndarray]:
        places: dict[tuple[str, int], list[Reading]] = {}
        for reading in readings:
            for task in reading.tasks:
                places.setdefault((task, reading.row), []).append(reading)
        outputs = {}
        for (task, row), several in places.items():
            first = [r for r in several if r.role != "second"]
            second: list[Reading | None] = [r for r in several if r.role == "second"]
            raw = [
                self.backend.outputs(
                    task,
                    features[task, reading.id][None],
                    features[task, other.id][None] if other is not None else None,
                )[0]
                for reading, other in zip(first, second or [None] * len(first), strict=True)
            ]
            if kind_of(self.records[task].task).per_word:
                raw = [_unread(values, reading.words) for values, reading in zip(raw, first, strict=True)]
            outputs[task, row] = _merged(self.records[task].task, first, raw)
        return outputs

    def _result(
        self,
        index: int,
        text: Input,
        names: Sequence[str],
        mine: Sequence[Reading],
        outputs: Mapping[tuple[str, int], np.ndarray],
    ) -> Result:
        answers: dict[str, dict[str, object]] = {}
        skipped: dict[str, str] = {}
        for name in names:
            if (name, index) not in outputs:
                skipped[name] = _why_not(self.records[name].task.pair, text)
                continue
            task = self.records[name].task
            own = next(r for r in mine if name in r.tasks)
            answers[name] = kind_of(task).decode(
                task, outputs[name, index], text=repair(text[0]), words=own.all_words
            )
        return Result(answers=answers, receipt=self._receipt(mine, list(answers)), skipped=skipped)

    def _receipt(self, readings: Sequence[Reading], answered: Sequence[str]) -> Receipt:
        depths = [cost.layer_evaluations(self.plan(r.tasks)) for r in readings]
        added = {}
        for task in answered:
            tokens = max(len(r.encoded.ids) for r in readings if task in r.tasks)
            added[task] = self._added(task, tokens)
        return Receipt(
            passes=len(readings),
            layers=sum(depths),
            tokens=sum(len(r.encoded.ids) for r in readings),
            cut=sum(r.encoded.cut for r in readings) + self._unread(readings),
            windows=max((r.encoded.window + 1 for r in readings), default=1),
            repaired=sum(r.encoded.repaired for r in readings),
            added_flops=added,
        )

    def _unread(self, readings: Sequence[Reading]) -> int:
        """Tokens in later windows, which the tasks that cut do not read; 0 where every task reads windows."""
        later = [r for r in readings if r.encoded.window > 0]
        if not later or set(later[0].tasks) == set(readings[0].tasks):
            return 0
        stride = self.settings.max_tokens // 4
        return sum(int((r.encoded.sequence >= 0).sum()) - stride for r in later)

    def _added(self, task: str, tokens: int) -> int:
        return int(cost.added(self.plan([task]), task, self.shape, tokens, folded=True).flops)


def _by_tasks(readings: Sequence[Reading]) -> Iterator[list[Reading]]:
    groups: dict[tuple[str, ...], list[Reading]] = {}
    for reading in readings:
        groups.setdefault(reading.tasks, []).append(reading)
    yield from groups.values()


def _merged(task: object, readings: Sequence[Reading], raw: Sequence[np.ndarray]) -> np.ndarray:
    from polyhead.tasks.task import Task

    assert isinstance(task, Task)
    if len(raw) == 1:
        return raw[0]
    if not kind_of(task).per_word:
        return kind_of(task).merge_windows(task, list(raw))
    best = readings[0].best_windows([r.encoded for r in readings])
    return np.stack([raw[max(window, 0)][i] for i, (window, _) in enumerate(best)]) if len(best) else raw[0]


def _unread(values: np.ndarray, words: np.ndarray) -> np.ndarray:
    """The outputs with NaN for every word that no token stands for; kinds read that as not answered."""
    return np.where(words[:, None] < 0, np.float32(np.nan), values)


def _why_not(pair: str, text: Input) -> str:
    if not all(part.strip() for part in text):
        return "the text is empty"
    if pair == "none":
        return "this task reads one text, a pair was given"
    return "this task reads a pair of texts, one text was given"


def _precision(trained_with: Mapping[str, object]) -> str | None:
    numerics = trained_with.get("numerics")
    return str(numerics["precision"]) if isinstance(numerics, dict) and "precision" in numerics else None


def input_of(row: object, *, where: str) -> tuple[Input, np.ndarray | None]:
    """An input from a JSON value: a string, or an object with `text` (and `text_b`), or with `tokens`."""
    if isinstance(row, str):
        return (row,), None
    if isinstance(row, dict):
        for first, second in (("text", "text_b"), ("text_a", "text_b")):
            texts = [row[name] for name in (first, second) if row.get(name) is not None]
            if row.get(first) is not None and all(isinstance(text, str) for text in texts):
                return ((texts[0], texts[1]) if len(texts) == 2 else (texts[0],)), None
        tokens = row.get("tokens")
        if isinstance(tokens, list) and all(isinstance(token, str) for token in tokens):
            ends = np.cumsum([len(token) + 1 for token in tokens]) - 1
            starts = ends - [len(token) for token in tokens]
            return (" ".join(tokens),), np.stack([starts, ends], axis=1).astype(np.int32).reshape(-1, 2)
    raise BadValue(
        f"{where}: this is not an input",
        got="null" if row is None else row,
        allowed='a string, {"text": ...}, {"text": ..., "text_b": ...} or {"tokens": [...]}',
        do="give one of these, each text a string",
    )
