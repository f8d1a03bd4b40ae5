"""The proof that an imported task gives the same answers as the checkpoint in `transformers`, on the same texts."""

from __future__ import annotations

import hashlib
import importlib.metadata
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from polyhead.convert.peft import Lora
from polyhead.deep.foreign import add_adapter, foreign_logits, open_foreign
from polyhead.engine.session import Session
from polyhead.errors import ConfigError, TrunkError
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.kinds.span import answered
from polyhead.tasks.task import Example, Task
from polyhead.text.question import TaskInput, read_alone, texts_of
from polyhead.text.tokenize import Encoded, Input, Tokenizer, repair
from polyhead.text.words import first_subtokens, words_in
from polyhead.values import Value

TOLERANCE = 1e-4  # for logits and values up to 1, in float32; above 1, relative to the checkpoint's largest
BATCH = 16  # texts per batch of `transformers`


class Parity(Value):
    """The largest difference of two runs over the same texts; stored with the task."""

    texts: int
    texts_sha256: str
    answers: int  # compared: texts, options, or words for kinds that answer each
    max_abs_difference: float  # of logits, or of values for regression
    tolerance: float
    agreement: float | None  # share of answers with the same label, option or words; None for regression
    activation: Literal["softmax", "sigmoid", "identity"]  # the function from logits to scores, in both
    transformers: str
    torch: str


def parity(
    session: Session,
    task: Task,
    folder: str,
    texts: Sequence[TaskInput],
    *,
    lora: Lora | None = None,
    show: Callable[[str], None],
) -> Parity:
    """Compares the task's outputs with those of the folder's model; raises TrunkError beyond the tolerance.

    The model of an adapter is `transformers`' own over its base, with `W + alpha / rank * B A` instead of each W.
    """
    outputs = session.outputs(task.name, texts)
    ours_by_text = [_scaled(task, _compared(task, out)) for out in outputs]
    opened = _opened(folder, task, lora)
    answers = _theirs(session.tokenizer, task, folder, read_alone(texts), opened, show)
    ours, theirs = np.concatenate(ours_by_text), np.concatenate([answer.outputs for answer in answers])
    difference = float(np.abs(ours - theirs).max(initial=0.0))
    tolerance = TOLERANCE * max(1.0, float(np.abs(theirs).max(initial=0.0)))
    proof = Parity(
        texts=len(texts),
        texts_sha256=texts_digest(texts),
        answers=len(ours),
        max_abs_difference=difference,
        tolerance=tolerance,
        agreement=(
            _same_spans(task, texts, outputs, answers)
            if task.ends == "last"
            else _agreement(task, ours_by_text, theirs)
        ),
        activation=_activation(task),
        transformers=importlib.metadata.version("transformers"),
        torch=importlib.metadata.version("torch"),
    )
    if not (difference <= tolerance and np.isfinite(difference)):  # infinite outputs would allow any difference
        do = "leave this folder out and report it with its config.json"
        # values are kept as fractions of the range; a needlessly wide one makes them imprecise
        if task.range is not None:
            do = f"give the --range of the values that it was trained on; if that is {task.range}, {do}"
        raise TrunkError(
            f"{folder}: task '{task.name}' would not answer as the checkpoint does in transformers",
            got=f"a largest difference of {difference:.3g} on {len(texts)} texts",
            allowed=tolerance,
            do=do,
        )
    return proof


def texts_digest(texts: Sequence[TaskInput]) -> str:
    """SHA-256, in hex, of the texts in order."""
    return hashlib.sha256(msgspec.json.encode([[repair(t) for t in texts_of(text)] for text in texts])).hexdigest()


class _Answer(Value, eq=False):
    """The outputs of `transformers` for one text, pair or option: (1, outputs) or (words, outputs)."""

    outputs: np.ndarray
    span: tuple[int, int] | None = None  # of question answering: characters of the best span over tokens, if any


def _compared(task: Task, output: np.ndarray) -> np.ndarray:
    """Polyhead's outputs for one text: (1, outputs), (options, 1), or (words, outputs) for the words read."""
    if kind_of(task).per_option:
        return output[:, None]
    return output[~np.isnan(output).any(axis=-1)] if kind_of(task).per_word else output[None]


def _theirs(
    tokenizer: Tokenizer,
    task: Task,
    folder: str,
    texts: Sequence[Input],
    opened: tuple[Any, Any],
    show: Callable[[str], None],
) -> list[_Answer]:
    """The outputs of `transformers` for each input."""
    reader, model = opened
    reader.padding_side = "right"  # as positions are counted
    known = set(inspect.signature(model.forward).parameters)
    segments = getattr(model.config, "type_vocab_size", 0)
    encoded, are_options = tokenizer.encode(texts), kind_of(task).per_option
    _check_whole(task, folder, encoded)
    answers = []
    for start in range(0, len(texts), BATCH):
        show(f"transformers reads {folder}: {start:,} of {len(texts):,} texts")
        batch = [[repair(t) for t in text] for text in texts[start : start + BATCH]]
        columns = [list(column) for column in zip(*batch, strict=True)]
        tokens = reader(*columns, padding=True, truncation=True, max_length=tokenizer.max_tokens, return_tensors="pt")
        read = {name: value for name, value in tokens.items() if name in known}
        logits = foreign_logits(model, read, are_options=are_options)
        mask = tokens["attention_mask"].bool()
        for row, entry in enumerate(encoded[start : start + BATCH]):
            _check_read(folder, texts[entry.row], tokens, row, entry, segments=segments)
            values = logits[row].float().numpy()
            if kind_of(task).per_word:
                answers.append(_of_words(task, entry, values[mask[row].numpy()], words_in(batch[row])))
            else:
                answers.append(_Answer(outputs=values.reshape(-1, values.shape[-1])))
    show("")
    return answers


def _check_whole(task: Task, folder: str, encoded: Sequence[Encoded]) -> None:
    """Raises ConfigError for a text in windows, which `transformers` would cut."""
    cut = [entry.row for entry in encoded if entry.cut]
    if task.long_texts == "windows" and cut:
        raise ConfigError(
            f"{folder}: a task that reads long texts in windows is proven on texts that fit in one",
            got=f"{len(cut)} of {len(encoded)} texts are longer",
            do="leave them out of --texts, or give a larger --max-tokens",
        )


def _of_words(task: Task, entry: Encoded, values: np.ndarray, words: np.ndarray) -> _Answer:
    """From the outputs of all tokens those of each word's first token, and where a span ends those of its last."""
    first = first_subtokens(entry, words)
    words, first = words[first >= 0], first[first >= 0]
    if task.ends != "last":
        return _Answer(outputs=values[first])
    context = np.flatnonzero((entry.sequence == entry.texts - 1) & (entry.offsets[:, 1] > entry.offsets[:, 0]))
    offsets = entry.offsets[context]
    inside = (offsets[:, 0] < words[:, 1:]) & (offsets[:, 1] > words[:, :1])  # (words, tokens)
    last = [context[row][-1] if row.any() else token for row, token in zip(inside, first.tolist(), strict=True)]
    span = answered(task, values[[0, *context]])
    return _Answer(
        outputs=np.stack([values[first, 0], values[last, 1]], axis=1),
        span=None if span is None else (int(offsets[span.first - 1, 0]), int(offsets[span.last - 1, 1])),
    )


def _opened(folder: str, task: Task, lora: Lora | None) -> tuple[Any, Any]:
    """Tokenizer and float32 model of the folder, or of an adapter's base, opened by `transformers`."""
    path = str(lora.base if lora is not None else Path(folder).expanduser())
    kind = kind_of(task)
    # An adapter has its own outputs: those of its base, if any, differ in number.
    changes = {} if lora is None else {"num_labels": kind.width(task), "ignore_mismatched_sizes": True}
    tokenizer, model = open_foreign(folder, path, model_class=kind.model_class, own=changes)
    if lora is not None:
        add_adapter(model, lora.saved, lora.maps)
    return tokenizer, model


def _scaled(task: Task, outputs: np.ndarray) -> np.ndarray:
    """Outputs as the checkpoint gives them: a regression's are fractions of its range in Polyhead."""
    if task.range is None:
        return outputs
    low, high = task.range
    return np.asarray(low + outputs.astype(np.float64) * (high - low))


def _activation(task: Task) -> Literal["softmax", "sigmoid", "identity"]:
    scores = kind_of(task).scores or "softmax"  # over options, or places
    return "identity" if scores == "range" else scores


def _agreement(task: Task, ours_by_text: Sequence[np.ndarray], theirs: np.ndarray) -> float | None:
    activation, ours = _activation(task), np.concatenate(ours_by_text)
    if kind_of(task).per_option:
        options = zip(ours_by_text, np.split(theirs, np.cumsum(list(map(len, ours_by_text)))[:-1]), strict=True)
        return float(np.mean([each.argmax() == other.argmax() for each, other in options]))
    if activation == "identity":
        return None
    if activation == "sigmoid":
        return float(np.mean(((ours >= 0) == (theirs >= 0)).all(axis=-1)))
    return float(np.mean(ours.argmax(axis=-1) == theirs.argmax(axis=-1)))


def _same_spans(
    task: Task, texts: Sequence[TaskInput], outputs: Sequence[np.ndarray], answers: Sequence[_Answer]
) -> float:
    """The share of texts whose answer is the best span over tokens, as `transformers`' examples choose it, in words."""
    same = []
    for text, output, answer in zip(texts, outputs, answers, strict=True):
        example, wanted = Example(input=text), None
        if answer.span is not None:
            words, (start, end) = example.places[1:], answer.span
            words = words[(words[:, 0] < end) & (words[:, 1] > start)]
            wanted = (words[0, 0], words[-1, 1])
        ours = kind_of(task).decode(task, output, example)
        same.append(wanted == (None if ours["text"] is None else (ours["start"], ours["end"])))
    return float(np.mean(same))


def _check_read(folder: str, text: Input, tokens: Mapping[str, Any], row: int, ours: Encoded, *, segments: int) -> None:
    """Raises TrunkError unless `transformers` encodes the row to the same tokens and segments as Polyhead."""
    mask = tokens["attention_mask"][row].bool()
    ids = tokens["input_ids"][row][mask]
    kinds = tokens.get("token_type_ids", np.zeros((row + 1, 0)))[row]
    theirs = {"tokens": ids.numpy(), "segments": np.asarray(kinds)[mask.numpy()] if len(kinds) else 0 * ids.numpy()}
    expected = {"tokens": ours.ids, "segments": np.minimum(ours.segments, segments - 1)}
    for name in ("tokens", "segments") if segments > 1 else ("tokens",):
        if not np.array_equal(theirs[name], expected[name]):
            raise TrunkError(
                f"{folder}: transformers reads a text as other {name} than its tokenizer.json gives",
                got=f"{' + '.join(text)[:80]!r}: {theirs[name][:24].tolist()}",
                allowed=expected[name][:24].tolist(),
                do="save the tokenizer class of the model beside the weights again with `save_pretrained`",
            )
