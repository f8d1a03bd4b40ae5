"""A model: one encoder, any number of tasks over it, each learned, replaced and asked by name."""

from __future__ import annotations

import io
import shutil
import sys
import tarfile
import tempfile
import weakref
from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from polyhead.api.given import inputs_of
from polyhead.api.rows import Labelled, check_inputs, check_labels, columns_for, kind_of_inputs, write_rows
from polyhead.api.settings import settings_of
from polyhead.arguments import typed
from polyhead.bundle.format import BUNDLE
from polyhead.bundle.read import Bundle
from polyhead.bundle.whole import whole_bundle
from polyhead.config import to_value
from polyhead.engine.evaluate import evaluation_of
from polyhead.engine.inputs import Passage, input_types_of
from polyhead.engine.session import Result, Session
from polyhead.errors import BadValue, ConfigError, UnknownTask, nearest
from polyhead.progress import ProgressDisplay
from polyhead.project.declare import InitOptions, declare
from polyhead.project.tables import DataFile, Project, TaskEntry, TrunkChoice
from polyhead.tasks.columns import Source
from polyhead.tasks.guess import kind_of_labels
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import KINDS, Task, check_name
from polyhead.text.question import Question
from polyhead.text.words import joined

if TYPE_CHECKING:
    from polyhead.bundle.models import Models
    from polyhead.train.training import Outcome

NOT_IN_A_BUNDLE = (".lock", "*.tmp")


class Model:
    """A bundle of tasks over one encoder, changed and asked in Python.

        model = Model("minilm")
        model.fit("topics", texts, labels)
        model.predict(["where is my parcel?"])  # {"topics": ["delivery"]}

    `trunk` is `minilm`, a Hugging Face folder or hub id, or the folder of a bundle, whose trunk it then is. `folder` is
    where the bundle lies; without it it lies in a temporary folder, until `save`. What a folder holds already stays.
    `verbose` says on standard error what is guessed, and how far training is.
    """

    @typed
    def __init__(
        self,
        trunk: str = "minilm",
        *,
        folder: FilePath | str | None = None,
        cache: FilePath | str | None = None,
        backend: str | None = None,
        precision: str | None = None,
        deterministic: bool = False,
        verbose: bool = True,
    ) -> None:
        self.trunk, self._cache, self.verbose = trunk, cache, verbose
        self._how: dict[str, Any] = {"backend": backend, "precision": precision, "deterministic": deterministic}
        self._work = FilePath(tempfile.mkdtemp(prefix="polyhead-"))
        weakref.finalize(self, shutil.rmtree, self._work, ignore_errors=True)
        self.folder = FilePath(self._work, "bundle") if folder is None else FilePath(folder).resolve()
        self._open: Session | None = None

    @classmethod
    def load(cls, folder: FilePath | str, **options: Any) -> Model:
        """The model of a bundle's folder, changed where it lies. Raises BundleError for what is none."""
        Bundle.open(folder)
        return cls(str(folder), folder=folder, **options)

    @property
    def session(self) -> Session:
        """What answers: for streams, columns and deadlines. Raises ConfigError as long as there is no task."""
        if self._open is None:
            if not (self.folder / BUNDLE).exists():
                raise ConfigError("the model has no task yet", do="give it one: model.fit(name, texts, labels)")
            self._open = Session(self.folder, **self._how)
        return self._open

    @property
    def tasks(self) -> dict[str, Task]:
        """The tasks by name, each with its kind and labels."""
        return dict(self.session.tasks) if (self.folder / BUNDLE).exists() else {}

    @property
    def versions(self) -> dict[str, str]:
        """The live version of each task."""
        if not (self.folder / BUNDLE).exists():
            return {}
        bundle = Bundle.open(self.folder, verify=False)
        return {name: line.version for name, line in bundle.lines.items()}

    def scores(self, task: str) -> dict[str, dict[str, float]]:
        """What training measured: split -> metric -> value."""
        self._known(task)
        return self._home(task).split_scores(task)

    def fit(
        self,
        task: str,
        texts: Any,
        labels: Any,
        *,
        kind: str | None = None,
        classes: Sequence[str] | None = None,
        text: str = "text",
        text_b: str | None = None,
        validation: Any = None,
        test: Any = None,
        if_better: bool = False,
        **settings: Any,
    ) -> Self:
        """Learns a task, or a new version of one; no other task's answers move.

        `texts` are strings, pairs of them, each a tuple, `Question`s, `Passage`s, or lists of words; or a frame, of
        which `text`, `text_b` and `labels` name columns. `kind` is guessed where it is not given; `classes` are all
        labels in order, by default those that occur. `validation` and `test` are (texts, labels), or a frame with the
        same columns: the first chooses between heads and may be a share of the texts, the second is only scored.
        `settings` are keys of a `[[tasks]]` table: `metric="macro_f1"`, `strategy="branch"`, `training={"epochs": 5}`.
        With `if_better` a live version stays unless the new one scores better.

        Raises BadValue for rows that cannot be read, ConfigError for settings that do not fit.
        """
        check_name(task)  # before it names a file
        rows = Labelled.of(texts, labels, text=text, text_b=text_b, what=f"task '{task}'")
        entry = self._entry(task, rows, kind, classes, settings_of(task, settings))
        for split, given in (("validation", validation), ("test", test)):
            if isinstance(given, str | Real | DataFile):
                entry[split] = given
            elif given is not None:
                own, answers = given if isinstance(given, tuple) and len(given) == 2 else (given, labels)
                what = f"the {split} of task '{task}'"
                held = Labelled.of(own, answers, text=text, text_b=text_b, what=what)
                check_inputs(KINDS[entry["kind"]], [rows.inputs[0], *held.inputs])
                entry[split] = str(FilePath(self._work, "data", f"{task}-{split}.jsonl"))
                write_rows(FilePath(entry[split]), KINDS[entry["kind"]], held)
        self._train(TaskEntry(**entry), if_better=if_better)
        return self

    def update(self, task: str, texts: Any, labels: Any, *, if_better: bool = True, **options: Any) -> bool:
        """Learns a task anew from these rows; whether the new version went live. See `fit`."""
        self._known(task)
        before = self.versions[task]
        self.fit(task, texts, labels, if_better=if_better, **options)
        return self.versions[task] != before

    def rollback(self, task: str, version: str | None = None) -> str:
        """Goes back to an earlier version, by default the one before; gives the live one."""
        from polyhead.bundle.journal import finish
        from polyhead.certify.rollback import roll_back

        self._known(task)
        done = roll_back(self.folder, [task], version)
        finish(self.folder, done.begun)
        self.session.refresh()
        return done.certificate.after[task].version

    def remove(self, task: str) -> None:
        """Takes a task away, with all its versions."""
        from polyhead.bundle.remove import unlist
        from polyhead.certify import certified

        self._known(task)
        certified(self.folder, "remove", lambda: unlist(self.folder, [task]), changing=[task])
        self.session.refresh()

    def predict(
        self, texts: Any, *, tasks: Iterable[str] | str | None = None, text: str = "text", text_b: str | None = None
    ) -> Any:
        """The answers: for one text {task: answer}, for several {task: [answer, ...]}, for a frame a frame like it.

        `texts` are what `fit` takes, of any types together; one alone is a string, a `Question` or a `Passage`, since
        a tuple holds several. An answer is what its task's labels were: a label, a list of them, a number, spans; for
        a `Question` the option's index. It is None where a task does not fit an input. One pass of the encoder answers
        all tasks of a text.
        """
        if isinstance(texts, str | Question | Passage):
            several = self.predict([texts], tasks=tasks)
            return {name: answers[0] for name, answers in several.items()}
        inputs, table = inputs_of(texts, text=text, text_b=text_b)
        columns = self.session.columns([_read(given) for given in inputs], tasks=_names(tasks), words=_words(inputs))
        answers: dict[str, list[Any]] = {}
        for name, column in columns.tasks.items():
            if len(column.rows) or tasks is not None:
                kind, cells = kind_of(column.task), list[Any]([None] * len(inputs))
                for row, answer in zip(column.rows.tolist(), column.answers, strict=True):
                    cells[row] = kind.cell_of(answer)
                answers[name] = cells
        return answers if table is None else table.answered(answers)

    def predict_proba(self, texts: Any, task: str, *, text: str = "text", text_b: str | None = None) -> np.ndarray:
        """Probabilities, float32 (texts, labels), in the order of `tasks[task].labels`; NaN for what it does not read.

        Raises BadValue for a task whose kind has none.
        """
        self._known(task)
        inputs, _ = inputs_of(texts, text=text, text_b=text_b)
        scores = self.session.columns([_read(given) for given in inputs], tasks=[task])[task].scores
        if scores is None:
            raise BadValue(
                f"task '{task}' has no probability for each label",
                got=f"kind '{self.tasks[task].kind}'",
                do="ask `results`, which has all that it answers",
            )
        return scores

    def results(
        self, texts: Any, *, tasks: Iterable[str] | str | None = None, text: str = "text", text_b: str | None = None
    ) -> list[Result]:
        """Everything about each text: answers with scores, versions, receipts, and why a task has no answer."""
        inputs, _ = inputs_of(texts, text=text, text_b=text_b)
        return self.session.predict([_read(given) for given in inputs], tasks=_names(tasks), words=_words(inputs))

    def evaluate(
        self,
        task: str,
        texts: Any,
        labels: Any,
        *,
        text: str = "text",
        text_b: str | None = None,
        overlaps: str | None = None,
    ) -> dict[str, float]:
        """Every metric of the task's kind on these rows; `overlaps` as in `fit`, of labelled spans that overlap."""
        declared = self._known(task)
        rows = Labelled.of(texts, labels, text=text, text_b=text_b, what="evaluate")
        kind, file = kind_of(declared), FilePath(self._work, "data", f"{task}-evaluated.jsonl")
        check_inputs(kind, rows.inputs, input_types_of(declared))
        write_rows(file, kind, rows)
        columns: dict[str, Any] = dict(columns_for(kind, rows.inputs))
        source = to_value({"path": str(file), "overlaps": overlaps, **columns}, Source, source="evaluate")
        return evaluation_of(self.session, task, source).score.scores

    def save(self, folder: FilePath | str) -> FilePath:
        """Writes the bundle to a new folder, for `Model.load`, `polyhead serve` and every other command."""
        with whole_bundle(folder) as building:
            shutil.copytree(self.session.bundle.root, building, ignore=shutil.ignore_patterns(*NOT_IN_A_BUNDLE))
        return FilePath(folder)

    def push(self, repository: str, *, private: bool = True, token: str | None = None) -> str:
        """Uploads the bundle to the Hugging Face hub; gives its address. See `polyhead.api.hub`."""
        from polyhead.api.hub import push

        return push(self.session.bundle.root, repository, private=private, token=token)

    @classmethod
    def pull(
        cls,
        repository: str,
        folder: FilePath | str,
        *,
        revision: str | None = None,
        token: str | None = None,
        **options: Any,
    ) -> Model:
        """The model of a bundle that was pushed, downloaded into a new folder and checked file by file."""
        from polyhead.api.hub import pull

        return cls.load(pull(repository, FilePath(folder), revision=revision, token=token), **options)

    def __repr__(self) -> str:
        lines = [f"Model({self.trunk!r}, folder={str(self.folder)!r})"]
        for name, task in self.tasks.items():
            metric, value = self._home(name).headline(name)
            score = "" if value is None else f", {metric} {value:.3f}"
            lines.append(f"  {name}: {task.kind}{f', {len(task.labels)} labels' if task.labels else ''}{score}")
        return "\n".join(lines)

    def __reduce__(self) -> tuple[Any, ...]:
        packed = io.BytesIO()
        if (self.folder / BUNDLE).exists():
            with tarfile.open(fileobj=packed, mode="w") as archive:
                archive.add(self.folder, arcname="bundle")
        options = {"trunk": self.trunk, "verbose": self.verbose, "cache": self._cache} | self._how
        return _unpacked, (options, packed.getvalue())

    def _home(self, task: str) -> Bundle | Models:
        """The keeper of the task's scores: a task that owns its model lies in a folder of its own."""
        summaries = self.session.summaries
        return summaries.models if task in summaries.tasks else self.session.bundle

    def _known(self, task: str) -> Task:
        if task not in self.tasks:
            raise UnknownTask(
                f"the model has no task '{task}'", got=task, allowed=sorted(self.tasks), do=nearest(task, self.tasks)
            )
        return self.tasks[task]

    def _entry(
        self, task: str, rows: Labelled, kind: str | None, classes: Sequence[str] | None, settings: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The `[[tasks]]` table, with the labels found, those of the live version first."""
        live = self.tasks.get(task)
        if kind is None and live is not None:
            kind = live.kind
        if kind is None and (guessed := kind_of_inputs(rows.inputs)) is not None:
            kind, why = guessed
            self._say(f"{task}: kind {kind}, since {why}")
        if kind is None:
            guess = kind_of_labels(rows.labels)
            kind = guess.kind
            if guess.rivals:
                raise ConfigError(
                    f"the labels of task '{task}' fit several kinds alike",
                    got=guess.why,
                    allowed=[kind, *guess.rivals],
                    do="give kind=",
                )
            self._say(f"{task}: kind {kind}, since {guess.why}; `kind=` says otherwise")
        known, file = KINDS.named(kind), FilePath(self._work, "data", f"{task}.jsonl")
        check_inputs(known, rows.inputs)
        check_labels(known, rows.labels, what=f"task '{task}'")
        write_rows(file, known, rows)
        columns = columns_for(known, rows.inputs)
        asked: dict[str, Any] = {key: columns.get(key) for key in ("tokens", "spans")} | {
            "text_b": columns.get("text_b"),
            "overlaps": settings.get("overlaps"),
        }
        if "tags" in columns:
            asked["label"] = columns["tags"]
        entry = declare(InitOptions(data=str(file), kind=kind, name=task, **asked), file.parent).entry
        entry |= {"train": str(file)}
        if "pair" in entry and "pair" not in settings:
            del entry["pair"]  # as a project file's default
        if classes is not None:
            entry["labels"] = list(classes)
        elif live is not None and live.labels:
            entry["labels"] = [*live.labels, *(label for label in entry["labels"] if label not in live.labels)]
        entry |= settings
        return {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}

    def _train(self, entry: TaskEntry, *, if_better: bool) -> Outcome:
        from polyhead import train_project
        from polyhead.train.loop.events import Events

        is_there = (self.folder / BUNDLE).exists()
        trunk = str(self.folder) if is_there else self.trunk
        project = Project(tasks=(entry,), bundle=str(self.folder), trunk=TrunkChoice(name=trunk))
        outcome = train_project(
            project,
            folder=self._work,
            cache=self._cache or FilePath(self._work, "cache"),
            events=None if self.verbose else Events(),
            retrain=() if if_better else (entry.name,),
            if_better=if_better,
        )
        if self._open is not None:
            self._open.refresh()
        return outcome

    def _say(self, line: str) -> None:
        ProgressDisplay(sys.stderr if self.verbose else None).line(line)


def _unpacked(options: Mapping[str, Any], packed: bytes) -> Model:
    """A model that was pickled, in a temporary folder of its own."""
    model = Model(**options)
    if packed:
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extractall(model.folder.parent, filter="data")
    return model


def _names(tasks: Iterable[str] | str | None) -> list[str] | None:
    if tasks is None:
        return None
    return [tasks] if isinstance(tasks, str) else list(tasks)


def _read(given: Any) -> Any:
    """The input as a session takes it: words as the text that they make."""
    return joined(given)[0] if isinstance(given, list) else given


def _words(inputs: Sequence[Any]) -> list[np.ndarray | None] | None:
    """The places of the words of inputs that are lists of words."""
    if not any(isinstance(given, list) for given in inputs):
        return None
    return [joined(given)[1] if isinstance(given, list) else None for given in inputs]
