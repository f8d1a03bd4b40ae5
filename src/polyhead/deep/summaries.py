"""Training of summarization tasks: each becomes a fine-tuned encoder-decoder in the project's bundle.

These models change no answer of the tasks that read the trunk.
"""

from __future__ import annotations

import hashlib
import math
import shutil
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path as FilePath

import msgspec
import numpy as np
import torch
from torch import Tensor

from polyhead._version import __version__
from polyhead.bundle.create import write_bundle
from polyhead.bundle.format import BUNDLE
from polyhead.bundle.journal import keep_attempts
from polyhead.bundle.models import ModelDraft, read_model
from polyhead.bundle.owners import owner_named
from polyhead.bundle.read import Bundle
from polyhead.bundle.versions import check_free, check_sort
from polyhead.data.read import Examples
from polyhead.deep.loop.feed import TrainingBatch
from polyhead.deep.loop.fit import Course
from polyhead.deep.loop.loss import token_cross_entropy
from polyhead.deep.nn.runtime import numerics, precision_of
from polyhead.deep.summarizer import Seq2Seq, load_seq2seq
from polyhead.encoder.summarizer import Seq2SeqData, Summarizer
from polyhead.progress import counted, duration
from polyhead.project.tables import TaskEntry, TrunkChoice
from polyhead.tasks.kinds import kind_of
from polyhead.text.batch import batches
from polyhead.text.tokenize import Encoded
from polyhead.train.data.batches import UNLABELLED, LengthSorted
from polyhead.train.data.prepared import Prepared, split_rows
from polyhead.train.data.units import split_summarizers
from polyhead.train.events import Events
from polyhead.train.job import FrozenTrunk, write_proven
from polyhead.train.record.compared import VersionComparison, outputs_of_both
from polyhead.train.record.decided import VersionDecisions, choices, left_line
from polyhead.train.record.draft import HeldRows, score_table, validation_probes
from polyhead.train.record.held import keep_held
from polyhead.train.record.lines import skipped
from polyhead.train.runs import SUFFIX, Fitted, cache_folder
from polyhead.train.training import BundleTraining, TrainingResult, TrainingRun

TRAINER = 1  # incremented when the same declaration and data would train another model


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
        """The tasks over the trunk come first; without any, the trunk's bundle exists or is made."""
        began, run = time.monotonic(), self.run
        if self._rest is not None:
            outcome = self._rest.train()
        else:
            if not (run.root / BUNDLE).exists():
                write_bundle(run.root, run.data)
            outcome = TrainingResult(bundle=str(run.root), seconds=0.0)
        for p, entry in self._summarizing:
            own = _train(run, p, entry)
            outcome = msgspec.structs.replace(
                outcome,
                trained=outcome.trained | own.trained,
                kept=outcome.kept + own.kept,
                left=outcome.left | own.left,
                compared=outcome.compared | own.compared,
            )
        return msgspec.structs.replace(outcome, seconds=time.monotonic() - began)


def _train(run: TrainingRun, prepared: Prepared, entry: TaskEntry) -> TrainingResult:
    """Trains the task unless the bundle has it trained the same way, or a decision says otherwise."""
    root, events, options = run.root, run.events, run.options
    task, choice, outcome = prepared.task, _choice(entry), partial(TrainingResult, bundle=str(root), seconds=0.0)
    place = TrunkChoice(name=choice.name).place(run.folder)  # a folder next to the project file, or a hub id
    data = load_seq2seq(place, max_tokens=choice.max_tokens, summary_tokens=choice.summary_tokens, beams=choice.beams)
    data = msgspec.structs.replace(data, name=choice.name)
    fingerprint, bundle = _fingerprint(prepared, choice, data), Bundle.open(root, verify=False)
    tag = str(fingerprint["fingerprint"])
    is_live = task.name in bundle.lines
    check_sort(bundle.lines, task.name, owns_model=True)
    check_free([owner_named(name) for name in bundle.lines], owner_named(task.name), is_live)
    is_known = is_live and bundle.record(task.name).trained_with.get("fingerprint") in _tags(prepared, choice, data)
    rival = {task.name: (bundle.record(task.name).task, task)} if is_live else {}
    new = set() if is_known else {task.name}
    chosen = choices(new, (), {task.name: tag}, VersionDecisions.of(bundle), options, rival)
    if not chosen.todo:
        for line in chosen.lines() or [f"{task.name}: trained already, unchanged"]:
            events.line(line)
        return outcome(left=dict(chosen.left)) if chosen.left else outcome(kept=(task.name,))
    for line in _outlook(prepared, data):
        events.line(line)
    kept = cache_folder(run.cache, "checkpoints", tag)
    checkpoint = kept / f"{task.name}-summarizer{SUFFIX}"
    trained = train_summarizer(prepared, data, smoothing=choice.smoothing, checkpoint=checkpoint, events=events)
    compared = _compared(bundle, prepared, trained, events) if is_live else None
    if compared is not None and options.if_better and not compared.is_better:
        keep_attempts(root, {task.name: compared.attempt(tag, bundle.lines[task.name].record)})
        reason = compared.kept_line(bundle.version(task.name))
        events.line(left_line(task.name, reason))
        return outcome(left={task.name: reason}, compared={task.name: compared})
    keep_held(run.cache, task.name, trained.data.arrays, trained.held, numerics("float32"))
    draft, is_alone = _draft(prepared, trained, fingerprint), set(bundle.lines) <= {task.name}
    write_proven(root, [draft], is_alone=is_alone, actor=options.actor, events=events)
    shutil.rmtree(kept, ignore_errors=True)
    events.line(_score_line(prepared, trained))
    if compared is not None:
        events.line(f"{task.name}: {compared.line()}")
    events.event("task", task=task.name, scores=trained.scores, history=trained.fitted.history)
    return outcome(trained={task.name: trained.scores}, compared={} if compared is None else {task.name: compared})


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


def _compared(bundle: Bundle, prepared: Prepared, trained: TrainedSummarizer, events: Events) -> VersionComparison:
    """Scores of the live model and the new one on the same examples."""
    name = prepared.task.name
    record = bundle.record(name)

    def written_by(data: Seq2SeqData) -> Callable[[Examples], list[np.ndarray]]:
        return lambda examples: summaries_of(Seq2Seq(data), name, examples, events)

    live_outputs = written_by(read_model(bundle, name))
    return outputs_of_both(prepared, record.task, record.trained_with, live_outputs, written_by(trained.data))


def _choice(entry: TaskEntry) -> Summarizer:
    assert entry.model is not None  # checked by TaskEntry.__post_init__
    return Summarizer(name=entry.model) if isinstance(entry.model, str) else entry.model


def _fingerprint(
    prepared: Prepared, choice: Summarizer, data: Seq2SeqData, *, precision: str | None = None
) -> dict[str, object]:
    """The facts that determine the trained model, and their digest under `fingerprint`."""
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
    epochs = counted(prepared.training.schedule(steps, whole=True).rounds, "epoch")
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
    """The epochs without their seconds, so that a bundle's bytes only depend on the seed."""
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


class TrainedSummarizer(msgspec.Struct, frozen=True, kw_only=True):
    """A fine-tuned model and its scores on whole splits."""

    data: Seq2SeqData
    scores: dict[str, dict[str, float]]  # split -> metric -> value
    held: HeldRows
    fitted: Fitted
    cut: dict[str, int]  # split -> number of documents longer than the model's limit
    cut_summaries: int  # of train: number of summaries longer than its limit


class SummaryExamples(LengthSorted[TrainingBatch]):
    """Documents with their first summaries, tokenized once; the other summaries are for scoring."""

    def __init__(self, model: Seq2Seq, examples: Examples) -> None:
        self._documents = model.documents(document_texts(examples))
        self._summaries = model.summaries([str(target[0]) for target in examples.targets])
        self._pad_id = model.pad_id
        self.cut = sum(encoded.cut > 0 for encoded in self._documents)
        self.cut_summaries = sum(encoded.cut > 0 for encoded in self._summaries)
        pairs = zip(self._documents, self._summaries, strict=True)
        super().__init__(np.array([len(document.ids) + len(summary.ids) for document, summary in pairs]))

    def batch(self, members: np.ndarray) -> TrainingBatch:
        """(rows, document tokens) ids and mask, (rows, summary tokens) labels, -100 for padding."""
        piece = next(
            batches([self._documents[i] for i in members], token_budget=1, pad_id=self._pad_id, fixed_rows=len(members))
        )
        members = members[piece.members]
        labels = torch.from_numpy(_padded([self._summaries[i] for i in members]))
        arguments = (torch.from_numpy(piece.ids), torch.from_numpy(piece.mask), labels)
        return TrainingBatch(arguments=arguments, targets=labels, members=members)


def document_texts(examples: Examples) -> list[str]:
    """The documents."""
    return [str(texts[0]) for texts in examples.inputs]  # type: ignore[index]  # one text each: pair is "none"


def smoothed_loss(smoothing: float, *, vocabulary: int | None = None) -> Callable[..., Tensor]:
    """The loss of a course: mean over the summaries' tokens of the label-smoothed cross entropy.

    With `vocabulary` V it is divided by ln V, so that a uniform guess scores exactly 1 (Aghajanyan et al. 2021).
    """
    plain = partial(token_cross_entropy, smoothing=smoothing)
    if vocabulary is None:
        return plain
    scale = math.log(vocabulary)
    return lambda outputs, targets, weights: plain(outputs, targets, weights) / scale


def train_summarizer(
    prepared: Prepared,
    data: Seq2SeqData,
    *,
    smoothing: float,
    checkpoint: FilePath | None = None,
    events: Events | None = None,
) -> TrainedSummarizer:
    """Fine-tunes the whole model and keeps the epoch whose summaries of the validation split score best.

    Only the kept model reads test documents, once. Training runs in the precision of `training`, generation in float32.
    Raises MissingExtra before training if ROUGE is not installed.
    """
    task, training, kind, listener = prepared.task, prepared.training, kind_of(prepared.task), events or Events()
    first = prepared.validation.examples.take([0])
    first.scores(task, [target[:1] for target in first.targets])  # fails here, not after hours of training
    model = Seq2Seq(data, dropout=training.dropout, bfloat16=precision_of(training) == "bfloat16")
    train = SummaryExamples(model, prepared.train.examples)

    def score() -> float:
        return evaluate(model, prepared, prepared.validation.examples, listener)[kind.default_metric(task)]

    fitted = Course(
        model,
        train,
        loss=smoothed_loss(smoothing),
        score=score,
        training=training,
        checkpoint=checkpoint,
        events=listener,
        label=f"{task.name} (summarizer)",
        whole=True,
    ).train()
    splits = [split for split in prepared.splits if split.name != "train"]
    summaries = {split.name: summaries_of(model, task.name, split.examples, listener) for split in splits}
    return TrainedSummarizer(
        data=model.data(),
        scores=prepared.scores(summaries),
        held=HeldRows(examples=prepared.validation.examples, outputs=summaries["validation"]),
        fitted=fitted,
        cut={"train": train.cut}
        | {s.name: sum(document.cut > 0 for document in model.documents(document_texts(s.examples))) for s in splits},
        cut_summaries=train.cut_summaries,
    )


def evaluate(model: Seq2Seq, prepared: Prepared, examples: Examples, events: Events) -> dict[str, float]:
    """All metrics of the kind for the model's summaries of the whole split."""
    return examples.scores(prepared.task, summaries_of(model, prepared.task.name, examples, events))


def summaries_of(model: Seq2Seq, name: str, examples: Examples, events: Events) -> list[np.ndarray]:
    """The model's summary of each document, as an array of one string."""
    progress = events.progress(f"{name}: writing", unit="summaries")
    summaries = model.write(document_texts(examples), show=lambda done: progress.update(done, len(examples.inputs)))
    progress.finish()
    return [np.array(summary.text, np.str_) for summary in summaries]


def _padded(summaries: Sequence[Encoded]) -> np.ndarray:
    out = np.full((len(summaries), max(len(summary.ids) for summary in summaries)), UNLABELLED, np.int64)
    for row, summary in enumerate(summaries):
        out[row, : len(summary.ids)] = summary.ids
    return out
