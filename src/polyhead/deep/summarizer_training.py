"""One summarization task, from documents with summaries to a fine-tuned encoder-decoder with its scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path as FilePath

import msgspec
import numpy as np
import torch
from torch import Tensor

from polyhead.data.read import Examples
from polyhead.deep.loop.feed import LengthSorted, TrainingBatch
from polyhead.deep.loop.fit import Course
from polyhead.deep.loop.loss import UNLABELLED, token_cross_entropy
from polyhead.deep.loop.numerics import precision_of
from polyhead.deep.summarizer import Seq2Seq
from polyhead.encoder.summarizer import Seq2SeqData
from polyhead.tasks.kinds import kind_of
from polyhead.text.batch import batches
from polyhead.text.tokenize import Encoded
from polyhead.train.data.prepared import Prepared
from polyhead.train.events import Events
from polyhead.train.record.draft import HeldRows
from polyhead.train.runs import Fitted


class TrainedSummarizer(msgspec.Struct, frozen=True, kw_only=True):
    """A fine-tuned model and its scores on whole splits."""

    data: Seq2SeqData
    scores: dict[str, dict[str, float]]  # split -> metric -> value
    held: HeldRows
    fitted: Fitted
    cut: dict[str, int]  # split -> documents longer than the model reads
    cut_summaries: int  # of train: summaries longer than it writes


class SummaryExamples(LengthSorted):
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
    """The loss that a course asks for: mean over the summaries' tokens of the label-smoothed cross entropy.

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

    Test documents are read once, by the kept model. Training runs in the precision of `training`, writing in float32.
    Raises MissingExtra before training where ROUGE is not installed.
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
