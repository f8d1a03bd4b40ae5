"""A model: one encoder with any number of tasks, each trained, replaced and queried by name."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any, Self

from polyhead.api.containers import Frame, texts_of_rows
from polyhead.api.encoder import copy_bundle, encoder_of, packed, shown_encoder, unpack
from polyhead.api.fitting import GivenRows, NewRows, earlier_records, keep_records, labels_by_task
from polyhead.api.predicting import as_input, cells_by_task, check_names_of_scores, is_alone, word_places
from polyhead.api.rows import Record, in_python
from polyhead.arguments import typed
from polyhead.bundle.format import BUNDLE
from polyhead.bundle.read import Bundle
from polyhead.data.columns import check_has_reader
from polyhead.engine.answers import AnswerTable
from polyhead.engine.backends import check_backend
from polyhead.engine.session import Result, Session
from polyhead.errors import BadValue, ConfigError, UnknownTask, suggestion
from polyhead.files import temporary_folder
from polyhead.progress import ProgressDisplay, counted, progress_display
from polyhead.project.tables import Project, TaskEntry, TrunkChoice
from polyhead.tasks.task import Task

if TYPE_CHECKING:
    from polyhead.evaluate.report.notebook import ReportPage
    from polyhead.train.training import TrainingResult


class Model:
    """A bundle of tasks over one encoder, changed and queried in Python.

        model = Model("minilm")
        model.fit("topics", texts, labels)
        model.predict(["where is my parcel?"])  # {"topics": ["delivery"]}

    `trunk` is `minilm`, another short name (`mpnet`, `multilingual`), a Hugging Face folder or hub id, or a bundle's
    folder, for its trunk; by default `minilm`. The bundle is in `folder`, or else in a temporary folder until `save`.
    A bundle that `folder` has is kept, with its encoder: WrongTrunk is raised if another is named, TrunkNotFound if it
    cannot be compared. `cache` keeps the encoder's features and each fit's rows, so that later programs need not encode
    them again and can `add` to them. `verbose` reports guesses and progress on standard error, or in a notebook.
    """

    keeps_rows = True  # for later fits that add to them

    @typed
    def __init__(
        self,
        trunk: str | None = None,
        *,
        folder: FilePath | str | None = None,
        cache: FilePath | str | None = None,
        backend: str | None = None,
        precision: str | None = None,
        deterministic: bool = False,
        verbose: bool = True,
    ) -> None:
        check_backend(backend, precision)
        self._cache, self.verbose = FilePath(cache).resolve() if cache else None, verbose
        self._how: dict[str, Any] = {"backend": backend, "precision": precision, "deterministic": deterministic}
        self._work = temporary_folder(self)
        self.folder = FilePath(self._work, "bundle") if folder is None else FilePath(folder).resolve()
        self.trunk = encoder_of(self.folder, trunk)
        self._open: Session | None = None
        self._fitting = threading.RLock()

    @classmethod
    def load(cls, folder: FilePath | str, **options: Any) -> Model:
        """The model of a bundle's folder, changed in place. Raises BundleError if there is no bundle."""
        Bundle.open(folder)
        return cls(folder=folder, **options)

    @property
    def session(self) -> Session:
        """The session that answers: for streams, columns and deadlines. Raises ConfigError without tasks."""
        if self._open is None:
            if not (self.folder / BUNDLE).exists():
                raise ConfigError("the model has no task yet", do="give it one: model.fit(name, texts, labels)")
            self._open = Session(self.folder, **self._how)
        return self._open

    @property
    def tasks(self) -> dict[str, Task]:
        """The tasks by name, each with its kind and labels."""
        return dict(self.session.tasks) if self._has_bundle else {}

    @property
    def versions(self) -> dict[str, str]:
        """The live version of each task."""
        return {name: line.version for name, line in (self.session.bundle.lines if self._has_bundle else {}).items()}

    def scores(self, task: str) -> dict[str, dict[str, float]]:
        """The scores measured in training: split -> metric -> value."""
        return self.session.bundle.split_scores(self._known(task).name)

    def fit(
        self,
        task: Any,
        texts: Any = None,
        labels: Any = None,
        *,
        kind: str | Mapping[str, str] | None = None,
        classes: Sequence[str] | Mapping[str, Sequence[str]] | None = None,
        text: str | Sequence[str] = "text",
        text_b: str | None = None,
        groups: Any = None,
        weights: Any = None,
        validation: Any = None,
        test: Any = None,
        add: bool = False,
        if_better: bool = False,
        allow_lost_labels: bool = False,
        **settings: Any,
    ) -> Self:
        """Trains a task, or a new version of one; no other task's answers change.

            model.fit("mood", texts, labels)
            model.fit(frame, text="message", labels=["topics", "mood"])  # a task for each column

        `texts` are strings, pairs of them as tuples, `Question`s, `Passage`s, or lists of words; or a data frame, in
        which arguments name columns: several `text` are joined. `kind` is guessed if it is not given; `classes` are all
        labels in order, by default those that occur; both may be dicts by task. `validation` and `test` are (texts,
        labels), or a data frame with the same columns: the first chooses between heads and may be a share of the texts,
        the second is only scored. Rows with one value in `groups`, such as a person, are all trained on or all held
        out; rows count in proportion to `weights`, in tasks with one label a text. `settings` are keys of a
        `[[tasks]]` table: `metric="macro_f1"`, `strategy="branch"`, `training={"epochs": 5}`; `effort="quick"` tries
        linear heads alone, `"best"` more than the default, in so many `minutes` if they are given.

        With `add`, the training rows of the live version count too, if it was trained in this model, or in one with the
        same `cache`: none is encoded again. With `if_better` a live version stays unless the new one scores better. If
        labels of the live version have no row now it stays too, unless `allow_lost_labels` permits their loss.

        Raises BadValue for rows that cannot be read and arguments that would be ignored, ConfigError for settings that
        do not fit, BundleError for labels that would be lost.
        """
        texts, named = labels_by_task(task, texts, labels, kind, classes)
        fields: dict[str, Any] = {"text": text, "text_b": text_b, "groups": groups, "weights": weights}
        fields |= {"is_of_several": len(named) > 1, "splits": {"validation": validation, "test": test}}
        call_rows, entries = GivenRows(texts=texts, **fields), list[TaskEntry]()
        before, records = dict[str, int](), dict[str, list[Record]]()
        with progress_display(sys.stderr if self.verbose else None) as display, ExitStack() as held, self._fitting:
            self._follow()
            for name, answers in named.items():
                live = self.tasks.get(name)
                new = NewRows.of(name, call_rows, answers, kind=kind, live=live, settings=settings, say=display.line)
                earlier = earlier_records(self._rows_of(name), new, live) if add and live is not None else []
                records[name] = [*earlier, *new.records]
                entries.append(new.held(held, call_rows, earlier=earlier, live=live, classes=classes))
                before[str(entries[-1].train)] = len(earlier)
            check_has_reader(settings, [entry.known_kind for entry in entries])
            with in_python(before):
                outcome = self._train(entries, display, if_better=if_better, allow_lost_labels=allow_lost_labels)
            if self.keeps_rows:
                keep_records(records, outcome.versions, Bundle.open(self.folder, verify=False), self._rows_of)
        return self

    def update(self, task: str, texts: Any, labels: Any, *, if_better: bool = True, **options: Any) -> bool:
        """Trains a task again on these rows; returns whether the new version went live. See `fit`."""
        self._follow()
        before = self.versions[self._known(task).name]
        self.fit(task, texts, labels, if_better=if_better, **options)
        return self.versions[task] != before

    def rollback(self, task: str, version: str | None = None) -> str:
        """Makes an earlier version live, by default the one before; returns the live one."""
        from polyhead.certify import Requester, roll_back

        self._known(task)
        roll_back(self.folder, [task], version, by=Requester()).reported(self.folder)
        self.session.refresh()
        return self.versions[task]

    def remove(self, task: str) -> None:
        """Removes a task with all its versions."""
        from polyhead.certify import Requester, remove_from

        self._known(task)
        remove_from(self.folder, [task], by=Requester())
        self.session.refresh()

    def predict(
        self,
        texts: Any,
        *,
        tasks: Iterable[str] | str | None = None,
        text: str | Sequence[str] = "text",
        text_b: str | None = None,
        scores: bool = False,
    ) -> Any:
        """The answers: for one text {task: answer}, for several {task: [answer, ...]}, for a data frame one like it.

        `texts` are those of `fit`, of any types together; a single one is a string, a `Question`, a `Passage`, or a
        tuple of two texts, which is a pair. An answer has the form of the task's labels: a label, a list of them, a
        number, spans; for a `Question` the option's index. It is None for a missing or empty text, and if a task does
        not read the input; `results` says why. With `scores` the probability of each label is added in `TASK.scores`.
        One pass of the encoder answers all tasks of a text.

        Raises BadValue if a named task, or every task, reads none of the texts, and for a task called `TASK.scores`.
        """
        columns, inputs, table, is_single = self._columns(texts, tasks, text=text, text_b=text_b, scores=scores)
        cells = cells_by_task(columns, inputs, are_named=tasks is not None, has_scores=scores)
        cells = {name: answers[0] for name, answers in cells.items()} if is_single else cells
        return cells if table is None else table.answered(cells)

    def predict_proba(
        self, texts: Any, task: str | None = None, *, text: str | Sequence[str] = "text", text_b: str | None = None
    ) -> Any:
        """Probabilities, float32 (texts, labels), in the order of `tasks[task].labels`; for a data frame, one like it.

        The columns of a data frame are the labels. `task` may be omitted if there is only one. A missing or empty text,
        or one that the task does not read, has NaN. Raises BadValue for a task whose kind has no probabilities.
        """
        task = self._only(task)
        columns, _, table, _ = self._columns(texts, task, text=text, text_b=text_b)
        scores, answered = columns[task].scores, columns[task].task  # as it was then: another fit may have ended since
        if scores is None:
            kind, do = f"kind '{answered.kind}'", "ask `results`, which has all that it answers"
            raise BadValue(f"task '{task}' has no probability for each label", got=kind, do=do)
        by_label = dict(zip(answered.labels, scores.T.tolist(), strict=True))
        return scores if table is None else table.answered(by_label)

    def results(
        self,
        texts: Any,
        *,
        tasks: Iterable[str] | str | None = None,
        text: str | Sequence[str] = "text",
        text_b: str | None = None,
    ) -> list[Result]:
        """The full result of each text: answers with scores, versions, receipts, and why a task has no answer.

        `texts` are those of `predict`; a single one gives a list of one result. A notebook shows the texts with tags
        marked, and bars for scores.
        """
        from polyhead.api.showing import ShownResults

        columns, inputs, *_ = self._columns(texts, tasks, text=text, text_b=text_b)
        return ShownResults(columns.results(), list(map(as_input, inputs)))

    def evaluate(
        self,
        task: str,
        texts: Any,
        labels: Any,
        *,
        text: str | Sequence[str] = "text",
        text_b: str | None = None,
        separator: str | None = None,
        empty: str | None = None,
        overlaps: str | None = None,
    ) -> dict[str, float]:
        """Every metric of the task's kind on these rows; `separator`, `empty` and `overlaps` are as in `fit`."""
        from polyhead.api.showing import evaluation_on

        cells: dict[str, Any] = {"text": text, "text_b": text_b, "separator": separator, "empty": empty}
        return evaluation_on(self.session, self._known(task), texts, labels, overlaps=overlaps, **cells).score.scores

    def report(
        self,
        task: str | None = None,
        texts: Any = None,
        labels: Any = None,
        *,
        text: str | Sequence[str] = "text",
        text_b: str | None = None,
        separator: str | None = None,
        empty: str | None = None,
    ) -> ReportPage:
        """The page of `polyhead evaluate --report`, of these rows, else of those that training held out.

        It is about one task, or without rows about all. `separator` and `empty` are those of `fit`. A notebook shows
        it, `save` writes it. Raises BundleError if neither the model nor its `cache` has the rows.
        """
        from polyhead.api.showing import check_no_rows, held_report, rows_report

        cells: dict[str, Any] = {"text": text, "text_b": text_b, "separator": separator, "empty": empty}
        if texts is not None:
            return rows_report(self.session, self._known(self._only(task)), texts, labels, **cells)
        check_no_rows(labels, **cells)
        rows = {name: self._rows_of(name) for name in (self.tasks if task is None else [self._known(task).name])}
        return held_report(self.session, rows, FilePath(self._cache or FilePath(self._work, "cache")))

    def save(self, folder: FilePath | str) -> FilePath:
        """Writes the bundle to a new folder, for `Model.load`, `polyhead serve` and every other command."""
        copy_bundle(self.session.bundle.root, FilePath(folder))
        return FilePath(folder)

    def push(self, repository: str, *, private: bool = True, token: str | None = None) -> str:
        """Uploads the bundle to the Hugging Face hub; returns its address. See `polyhead.api.hub`."""
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
        """The model of an uploaded bundle, downloaded into a new folder and checked file by file."""
        from polyhead.api.hub import pull

        return cls.load(pull(repository, FilePath(folder), revision=revision, token=token), **options)

    def __repr__(self) -> str:
        lines = [f"Model({shown_encoder(self.folder, self.trunk)!r}, folder={str(self.folder)!r})"]
        for name, task in self.tasks.items():
            metric, value = self.session.bundle.headline(name)
            score = "" if value is None else f", {metric} {value:.3f}"
            lines.append(f"  {name}: {task.kind}{f', {len(task.labels)} labels' if task.labels else ''}{score}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        from polyhead.api.showing import model_html

        return model_html(f"Model({shown_encoder(self.folder, self.trunk)!r})", self.session if self.tasks else None)

    def __reduce__(self) -> tuple[Any, ...]:
        options = {"verbose": self.verbose, "cache": self._cache} | self._how
        return _unpacked, (options, packed(self.folder)), {"trunk": self.trunk}  # its folder may be missing there

    @property
    def _has_bundle(self) -> bool:
        return self._open is not None or (self.folder / BUNDLE).exists()

    def _follow(self) -> None:
        """Reads what others changed in the folder; raises BundleError if it has no bundle any more."""
        if self._open is not None:
            self._open.refresh()

    def _known(self, task: str) -> Task:
        if task in (ours := self.tasks):
            return ours[task]
        raise UnknownTask(f"the model has no task '{task}'", got=task, allowed=sorted(ours), do=suggestion(task, ours))

    def _columns(
        self, texts: Any, tasks: Iterable[str] | str | None, *, scores: bool = False, **columns: Any
    ) -> tuple[AnswerTable, list[Any], Frame | None, bool]:
        """The answers, the inputs, their data frame, and whether it was a single input."""
        names = None if tasks is None else [tasks] if isinstance(tasks, str) else list(tasks)
        known = {name: self._known(name) for name in (self.tasks if names is None else names)}
        check_names_of_scores(known if scores else {})
        is_single = is_alone(texts, known)
        inputs, table = texts_of_rows([texts] if is_single else texts, **columns)
        answers = self.session.columns(list(map(as_input, inputs)), tasks=names, words=word_places(inputs))
        return answers, inputs, table, is_single

    def _only(self, task: str | None) -> str:
        """The named task, or the only one."""
        if task is not None:
            return self._known(task).name
        if len(self.tasks) != 1:
            raise UnknownTask("no task is named, and the model has not just one", allowed=sorted(self.tasks))
        return next(iter(self.tasks))

    def _rows_of(self, task: str, bundle: Bundle | None = None) -> FilePath:
        """The file with the training rows of the live version: of now, or as the bundle was read."""
        bundle = bundle or Bundle.open(self.folder, verify=False)
        folder = FilePath(self._cache or FilePath(self._work, "cache"))
        earlier = folder / "rows" / f"{bundle.lines[task].record}.jsonl"  # as it was named before
        return earlier if earlier.exists() else folder / "rows" / f"{bundle.learned_digest(task)}.jsonl"

    def _train(
        self, entries: Sequence[TaskEntry], display: ProgressDisplay, *, if_better: bool, allow_lost_labels: bool
    ) -> TrainingResult:
        from polyhead import train_project
        from polyhead.train.events import Events

        display.line(f"training {counted(len(entries), 'task')} into {self.folder}")
        trunk = str(self.folder) if (self.folder / BUNDLE).exists() else self.trunk
        project = Project(tasks=tuple(entries), bundle=str(self.folder), trunk=TrunkChoice(name=trunk))
        outcome = train_project(
            project,
            folder=self._work,
            cache=self._cache or FilePath(self._work, "cache"),
            events=Events(say=display.line, show=display.show),
            retrain=() if if_better else tuple(entry.name for entry in entries),
            if_better=if_better,
            allow_lost_labels=allow_lost_labels,
        )
        self._follow()
        return outcome


def _unpacked(options: Mapping[str, Any], content: bytes) -> Model:
    """An unpickled model, in its own temporary folder."""
    model = Model(**options)
    if content:
        unpack(content, model.folder)
    return model
