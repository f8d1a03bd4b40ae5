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
from polyhead.errors import TrunkError
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Task
from polyhead.text.tokenize import Encoded, Input, Tokenizer, repair
from polyhead.text.words import first_subtokens, words_of
from polyhead.values import Value

TOLERANCE = 1e-4  # for logits and values up to 1, in float32; above 1, relative to the checkpoint's largest
BATCH = 16  # texts per batch of `transformers`


class Parity(Value):
    """The largest difference of two runs over the same texts; stored with the task."""

    texts: int
    texts_sha256: str
    answers: int  # compared: texts, or words for tagging
    max_abs_difference: float  # of logits, or of values for regression
    tolerance: float
    agreement: float | None  # share of answers with the same label; None for regression
    activation: Literal["softmax", "sigmoid", "identity"]  # the function from logits to scores, in both
    transformers: str
    torch: str


def parity(
    session: Session,
    task: Task,
    folder: str,
    texts: Sequence[Input],
    *,
    lora: Lora | None = None,
    show: Callable[[str], None],
) -> Parity:
    """Compares the task's outputs with those of the folder's model; raises TrunkError beyond the tolerance.

    The model of an adapter is `transformers`' own over its base, with `W + alpha / rank * B A` instead of each W.
    """
    ours = np.concatenate([_scaled(task, out) for out in _ours(session, task, texts)])
    opened = _opened(folder, task, lora)
    theirs = np.concatenate(list(_theirs(session.tokenizer, task, folder, texts, opened, show)))
    difference = float(np.abs(ours - theirs).max(initial=0.0))
    tolerance = TOLERANCE * max(1.0, float(np.abs(theirs).max(initial=0.0)))
    proof = Parity(
        texts=len(texts),
        texts_sha256=texts_digest(texts),
        answers=len(ours),
        max_abs_difference=difference,
        tolerance=tolerance,
        agreement=_agreement(task, ours, theirs),
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


def texts_digest(texts: Sequence[Input]) -> str:
    """SHA-256, in hex, of the texts in order."""
    return hashlib.sha256(msgspec.json.encode([[repair(t) for t in text] for text in texts])).hexdigest()


def _ours(session: Session, task: Task, texts: Sequence[Input]) -> list[np.ndarray]:
    """Polyhead's outputs for each text: (1, outputs), or (words, outputs) for the words read."""
    outputs = session.outputs(task.name, texts)
    if not kind_of(task).per_word:
        return [out[None] for out in outputs]
    return [out[~np.isnan(out).any(axis=-1)] for out in outputs]


def _theirs(
    tokenizer: Tokenizer,
    task: Task,
    folder: str,
    texts: Sequence[Input],
    opened: tuple[Any, Any],
    show: Callable[[str], None],
) -> list[np.ndarray]:
    """The outputs of `transformers`: (1, outputs) for each text, or (words, outputs)."""
    reader, model = opened
    reader.padding_side = "right"  # as positions are counted
    known = set(inspect.signature(model.forward).parameters)
    segments = getattr(model.config, "type_vocab_size", 0)
    encoded = tokenizer.encode(texts)
    values_by_text = []
    for start in range(0, len(texts), BATCH):
        show(f"transformers reads {folder}: {start:,} of {len(texts):,} texts")
        batch = [[repair(t) for t in text] for text in texts[start : start + BATCH]]
        columns = [list(column) for column in zip(*batch, strict=True)]
        tokens = reader(*columns, padding=True, truncation=True, max_length=tokenizer.max_tokens, return_tensors="pt")
        logits = foreign_logits(model, {name: value for name, value in tokens.items() if name in known})
        mask = tokens["attention_mask"].bool()
        for row, entry in enumerate(encoded[start : start + BATCH]):
            _check_read(folder, texts[entry.row], tokens, row, entry, segments=segments)
            values = logits[row].float().numpy()
            if kind_of(task).per_word:
                places = first_subtokens(entry, words_of(batch[row][0]))
                values = values[mask[row].numpy()][places[places >= 0]]
            values_by_text.append(values.reshape(-1, values.shape[-1]))
    show("")
    return values_by_text


def _opened(folder: str, task: Task, lora: Lora | None) -> tuple[Any, Any]:
    """Tokenizer and float32 model of the folder, or of an adapter's base, opened by `transformers`."""
    path = str(lora.base if lora is not None else Path(folder).expanduser())
    # An adapter has its own outputs: those of its base, if any, differ in number.
    own = {} if lora is None else {"num_labels": kind_of(task).width(task), "ignore_mismatched_sizes": True}
    tokenizer, model = open_foreign(folder, path, reads="Token" if kind_of(task).per_word else "Sequence", own=own)
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
    scores = kind_of(task).scores
    return "identity" if scores is None or scores == "range" else scores


def _agreement(task: Task, ours: np.ndarray, theirs: np.ndarray) -> float | None:
    activation = _activation(task)
    if activation == "identity":
        return None
    if activation == "sigmoid":
        return float(np.mean(((ours >= 0) == (theirs >= 0)).all(axis=-1)))
    return float(np.mean(ours.argmax(axis=-1) == theirs.argmax(axis=-1)))


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
