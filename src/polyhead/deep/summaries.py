"""`polyhead train` for summarization tasks: each becomes a model of its own in the project's bundle.

These models are trained apart from the tasks that read the trunk, and change none of their answers.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from polyhead._version import __version__
from polyhead.bundle.create import write_bundle
from polyhead.bundle.format import BUNDLE
from polyhead.bundle.journal import keep_attempts
from polyhead.bundle.models import ModelDraft, Models, add_model, check_model_name
from polyhead.data.read import Examples
from polyhead.deep.loop.numerics import numerics, precision_of
from polyhead.deep.summarizer import Seq2Seq, load_seq2seq
from polyhead.deep.summarizer_training import TrainedSummarizer, summaries_of, train_summarizer
from polyhead.encoder.summarizer import Seq2SeqData, Summarizer
from polyhead.files import remove_tree
from polyhead.progress import counted, duration
from polyhead.project.tables import TaskEntry, TrunkChoice
from polyhead.tasks.kinds import kind_of
from polyhead.train.data.prepared import Prepared, split_rows
from polyhead.train.data.units import split_summarizers
from polyhead.train.events import Events
from polyhead.train.job import FrozenTrunk
from polyhead.train.record.compared import VersionComparison, outputs_of_both
from polyhead.train.record.decided import VersionDecisions, choices, left_line
from polyhead.train.record.draft import score_table, validation_probes
from polyhead.train.record.held import keep_held
from polyhead.train.record.lines import skipped
from polyhead.train.runs import SUFFIX, cache_folder
from polyhead.train.training import BundleTraining, TrainingResult, TrainingRun

TRAINER = 1  # counted up when the same declaration and data would train another model


class Summaries(BundleTraining):
    """Tasks over the frozen trunk, then a model for each summarization task, all in one bundle."""

    def __init__(self, run: TrainingRun, prepared: Sequence[Prepared]) -> None:
        entries, (others, _) = {entry.name: entry for entry in run.project.tasks}, split_summarizers(run.project)
        self.run = run
        self._summarizing = [(p, entries[p.task.name]) for p in prepared if entries[p.task.name] not in others]
        rest = [p for p in prepared if entries[p.task.name] in others]
        project = msgspec.structs.replace(run.project, tasks=others) if rest else run.project
        self._rest = FrozenTrunk(msgspec.structs.replace(run, project=project), rest) if rest else None

    def check(self) -> None:
        """Checks the tasks over the trunk."""
        if self._rest is not None:
            self._rest.check()

    def train(self) -> TrainingResult:
        """The tasks over the trunk first; without any, the bundle of the trunk is there or is made."""
        began, run = time.monotonic(), self.run
        if self._rest is not None:
            outcome = self._rest.train()
        else:
            if not (run.root / BUNDLE).exists():
                write_bundle(run.root, run.data)
            outcome = TrainingResult(bundle=str(run.root), seconds=0.0)
        for p, entry in self._summarizing:
            outcome = _train(run, p, entry).within(outcome, p.task.name)
        return msgspec.structs.replace(outcome, seconds=time.monotonic() - began)


class _Made(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome for one task: trained, left for a reason, or trained already."""

    scores: dict[str, dict[str, float]] | None = None
    left: str | None = None
    compared: VersionComparison | None = None

    def within(self, outcome: TrainingResult, name: str) -> TrainingResult:
        """The run's outcome with this task added."""
        is_kept = self.scores is None and self.left is None
        return msgspec.structs.replace(
            outcome,
            trained=outcome.trained | ({} if self.scores is None else {name: self.scores}),
            kept=outcome.kept + ((name,) if is_kept else ()),
            left=outcome.left | ({} if self.left is None else {name: self.left}),
            compared=outcome.compared | ({} if self.compared is None else {name: self.compared}),
        )


def _train(run: TrainingRun, prepared: Prepared, entry: TaskEntry) -> _Made:
    """Trains the task unless the bundle has it trained the same way, or a decision says otherwise."""
    root, events, options = run.root, run.events, run.options
    task, choice = prepared.task, _choice(entry)
    place = TrunkChoice(name=choice.name).place(run.folder)  # a folder beside the project file, or a hub id
    data = load_seq2seq(place, max_tokens=choice.max_tokens, summary_tokens=choice.summary_tokens, beams=choice.beams)
    data = msgspec.structs.replace(data, name=choice.name)
    fingerprint, live = _fingerprint(prepared, choice, data), Models(root)
    tag = str(fingerprint["fingerprint"])
    is_live = task.name in live.lines
    is_known = is_live and live.record(task.name).trained_with.get("fingerprint") in _tags(prepared, choice, data)
    rival = {task.name: (live.record(task.name).task, task)} if is_live else {}
    new = set() if is_known else {task.name}
    chosen = choices(new, (), {task.name: tag}, VersionDecisions.of_models(root), options, rival)
    if not chosen.todo:
        for line in chosen.lines() or [f"{task.name}: trained already, unchanged"]:
            events.line(line)
        return _Made(left=chosen.left.get(task.name))
    check_model_name(root, task.name, replace=is_live)
    for line in _outlook(prepared, data):
        events.line(line)
    kept = cache_folder(run.cache, "checkpoints", tag)
    checkpoint = kept / f"{task.name}-summarizer{SUFFIX}"
    trained = train_summarizer(prepared, data, smoothing=choice.smoothing, checkpoint=checkpoint, events=events)
    compared = _compared(live, prepared, trained, events) if is_live else None
    if compared is not None and options.if_better and not compared.is_better:
        keep_attempts(root, {task.name: compared.attempt(tag, live.lines[task.name].record)})
        reason = compared.kept_line(live.version(task.name))
        events.line(left_line(task.name, reason))
        return _Made(left=reason, compared=compared)
    keep_held(run.cache, task.name, trained.data.arrays, trained.held, numerics("float32"))
    add_model(root, _draft(prepared, trained, fingerprint), replace=is_live)
    remove_tree(kept, root=run.cache)
    events.line(_score_line(prepared, trained))
    if compared is not None:
        events.line(f"{task.name}: {compared.line()}")
    events.event("task", task=task.name, scores=trained.scores, history=trained.fitted.history)
    return _Made(scores=trained.scores, compared=compared)


def _draft(prepared: Prepared, trained: TrainedSummarizer, fingerprint: dict[str, object]) -> ModelDraft:
    facts = {**fingerprint, "data": split_rows(prepared.splits)}
    return ModelDraft(
        task=prepared.task,
        data=trained.data,
        trained_with={"polyhead": __version__, "numerics": numerics("float32"), **facts},
        scores={"splits": trained.scores, "history": _untimed(trained)},
        probes=validation_probes(prepared),
        card=summarizer_card(prepared, trained),
    )


def _compared(live: Models, prepared: Prepared, trained: TrainedSummarizer, events: Events) -> VersionComparison:
    """Scores of the live model and the new one on the same examples."""
    name = prepared.task.name
    record = live.record(name)

    def written_by(data: Seq2SeqData) -> Callable[[Examples], list[np.ndarray]]:
        return lambda examples: summaries_of(Seq2Seq(data), name, examples, events)

    live_outputs = written_by(live.data(name))
    return outputs_of_both(prepared, record.task, record.trained_with, live_outputs, written_by(trained.data))


def _choice(entry: TaskEntry) -> Summarizer:
    assert entry.model is not None  # TaskEntry.__post_init__ checks it
    return Summarizer(name=entry.model) if isinstance(entry.model, str) else entry.model


def _fingerprint(
    prepared: Prepared, choice: Summarizer, data: Seq2SeqData, *, precision: str | None = None
) -> dict[str, object]:
    """The facts that decide the trained model, and their digest under `fingerprint`."""
    facts = {name: fact for name, fact in prepared.fingerprint().items() if name != "strategy"}
    facts |= {
        "trainer": TRAINER,
        "model": {"name": choice.name, "digest": data.digest},
        "smoothing": choice.smoothing,
        "precision": precision or precision_of(prepared.training),
    }
    named = msgspec.to_builtins({**facts, "model": data.digest})
    tag = hashlib.sha256(msgspec.json.encode(named, order="sorted")).hexdigest()[:16]
    return {"fingerprint": tag, **facts}


def _tags(prepared: Prepared, choice: Summarizer, data: Seq2SeqData) -> set[object]:
    """The fingerprints under every precision that `auto` may stand for."""
    own = prepared.training.precision
    named = ("float32", "bfloat16") if own == "auto" else (own,)
    return {_fingerprint(prepared, choice, data, precision=option)["fingerprint"] for option in named}


def _outlook(prepared: Prepared, data: Seq2SeqData) -> list[str]:
    sizes = ", ".join(f"{len(s.examples.targets):,} {s.name}" for s in prepared.splits)
    steps = -(-len(prepared.train.examples.targets) // prepared.training.batch)
    epochs = counted(prepared.training.schedule(steps).rounds, "epoch")
    return [
        f"{prepared.task.name}: a summarizer of its own, {data.parameters:,} parameters, all trained; "
        f"{sizes} documents, {counted(steps, 'step')} an epoch, up to {epochs}",
        *skipped([prepared]),
    ]


def _score_line(prepared: Prepared, trained: TrainedSummarizer) -> str:
    task, fitted = prepared.task, trained.fitted
    metric = kind_of(task).default_metric(task)
    shown = ", ".join(f"{split} {metric} {scores[metric]:.4f}" for split, scores in trained.scores.items())
    cut = f", {counted(sum(trained.cut.values()), 'document')} cut" if any(trained.cut.values()) else ""
    cut += f", {counted(trained.cut_summaries, 'summary', several='summaries')} cut" if trained.cut_summaries else ""
    epochs = f"best of {counted(len(fitted.history), 'epoch')} is {fitted.best_epoch}"
    return f"{task.name}: {shown}{cut}, {epochs}, {duration(fitted.seconds)}"


def _untimed(trained: TrainedSummarizer) -> list[dict[str, float]]:
    """The epochs without their seconds, so that a bundle's bytes depend on the seed alone."""
    return [{name: v for name, v in row.items() if name != "seconds"} for row in trained.fitted.history]


def summarizer_card(prepared: Prepared, trained: TrainedSummarizer) -> str:
    """Markdown for the task's README.md."""
    task, settings = prepared.task, trained.data.settings
    metric = kind_of(task).default_metric(task)
    sizes = ", ".join(f"{len(s.examples.targets):,} {s.name}" for s in prepared.splits)
    how = "greedily" if settings.beams == 1 else f"with {settings.beams} beams"
    return "\n".join(
        [
            f"# {task.name}",
            "",
            "A `summarization` task. It owns its model and shares nothing with the trunk.",
            f"Team: {prepared.team or 'not stated'}.",
            "",
            "## Trained on",
            "",
            f"{sizes} documents; seed {prepared.training.seed}; best epoch {trained.fitted.best_epoch} by validation "
            f"{metric}. It started from `{trained.data.name}`.",
            "",
            *score_table(trained.scores),
            "## Limits",
            "",
            f"{trained.data.parameters:,} parameters of its own. Documents over {settings.max_tokens} tokens are cut "
            f"({sum(trained.cut.values()):,} of those above); at most {settings.summary_tokens} tokens are written, "
            f"{how}. What is written was not checked for truth.",
            "",
        ]
    )
