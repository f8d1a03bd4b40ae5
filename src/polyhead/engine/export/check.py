"""The files of an export, run as its README says, beside the session that they were made from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path as FilePath

import numpy as np
import onnxruntime as ort
import tokenizers

from polyhead.bundle.notes import Probe
from polyhead.engine.export.graphs import IDS, MASK, SEGMENTS, WORDS, reads_states
from polyhead.engine.export.record import Export, ModelFile, TaskFiles
from polyhead.engine.pinned import readable_probes
from polyhead.engine.session import Session
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Task
from polyhead.text.question import Question, read_alone
from polyhead.text.tokenize import Input, repair
from polyhead.text.words import first_subtokens, words_in

ASKED = 8  # probes of a task that are compared
TEXTS = ("Thank you!", "Is it broken?", "Send one back to Anna Reed, please: I was charged twice.", "no", "It is.")
Values = dict[str, np.ndarray]


class ExportedModel:
    """Runs an export with ONNX Runtime and `tokenizers`, and nothing else."""

    def __init__(self, root: FilePath, export: Export) -> None:
        self._root, self._export, tokenizer = root, export, export.tokenizer
        self._sessions: dict[str, ort.InferenceSession] = {}
        self._tokenizer = tokenizers.Tokenizer.from_file(str(root / tokenizer.file))
        self._tokenizer.enable_truncation(tokenizer.max_tokens)
        self._tokenizer.enable_padding(pad_id=tokenizer.pad_id)

    def logits(self, files: TaskFiles, inputs: Sequence[Input], words: Sequence[np.ndarray]) -> np.ndarray:
        """The task's, of texts and pairs, one a row; `words` holds the place of each word's first token, or -1."""
        if files.compare is not None:
            first, second = (
                self._of_text(files.model, [(texts[place],) for texts in inputs])["features"] for place in (0, -1)
            )
            return self.run(files.compare, {"first": first, "second": second})["logits"]
        return self._of_text(files.model, inputs, words)["logits"]

    def _of_text(self, file: ModelFile, inputs: Sequence[Input], words: Sequence[np.ndarray] = ()) -> Values:
        values = self._read(inputs)
        if WORDS in file.inputs:
            values[WORDS] = np.full((len(words), max(map(len, words))), -1, np.int64)
            for row, places in enumerate(words):
                values[WORDS][row, : len(places)] = places
        if reads_states(file.inputs):
            assert self._export.trunk is not None
            values |= self.run(self._export.trunk, values)
        return self.run(file, values)

    def _read(self, inputs: Sequence[Input]) -> Values:
        encoded = self._tokenizer.encode_batch([texts[0] if len(texts) == 1 else texts for texts in inputs])
        return {
            IDS: np.array([encoding.ids for encoding in encoded], np.int64),
            MASK: np.array([encoding.attention_mask for encoding in encoded], np.int64),
            SEGMENTS: np.array([encoding.type_ids for encoding in encoded], np.int64),
        }

    def run(self, file: ModelFile, values: Values) -> Values:
        """All outputs of one model; its inputs are among the values."""
        if file.file not in self._sessions:
            path = self._root / file.file
            self._sessions[file.file] = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
        inputs = {name: values[name] for name in file.inputs}
        return dict(zip(file.outputs, self._sessions[file.file].run(list(file.outputs), inputs), strict=True))


def export_differences(exported: ExportedModel, files: TaskFiles, session: Session) -> list[float]:
    """For each input the largest difference of a logit from the session's.

    Asked are some of the task's pinned probes and a few texts of our own, as far as the trunk reads them whole; the
    files read them all at once, padded.
    """
    task, probes = files.task, list(_probes_that_fit(files, session))
    places = [None if p.words is None else np.array(p.words, np.int32).reshape(-1, 2) for p in probes]
    wanted = session.outputs(task.name, [probe.input for probe in probes], words=places)
    rows, tokens = list[Input](), list[np.ndarray]()
    for probe, words in zip(probes, places, strict=True):
        for texts in read_alone([probe.input]):
            (encoded,) = session.tokenizer.encode([texts])
            rows.append(_repaired(texts))
            tokens.append(first_subtokens(encoded, words_in(texts) if words is None else words))
    logits, apart, row = exported.logits(files, rows, tokens), list[float](), 0
    for probe, outputs in zip(probes, wanted, strict=True):
        options = len(probe.options or "1")
        exported_logits = logits[row : row + options]
        if kind_of(task).per_word:
            read = tokens[row] >= 0
            exported_logits, outputs = exported_logits[0, : len(read)][read], outputs[read]
        apart.append(float(np.abs(exported_logits.reshape(-1) - outputs.reshape(-1)).max(initial=0.0)))
        row += options
    return apart


def _probes_that_fit(files: TaskFiles, session: Session) -> Iterator[Probe]:
    pinned = readable_probes(session.bundle, files.task.name)[:ASKED]
    for probe in (*pinned, *_of_our_own(files.task)):
        read = session.tokenizer.encode(read_alone([probe.input]))
        if not any(encoded.cut or len(encoded.ids) > files.max_tokens for encoded in read):
            yield probe


def _of_our_own(task: Task) -> Iterator[Probe]:
    for first, second in zip(TEXTS, TEXTS[1:] + TEXTS[:1], strict=True):
        if kind_of(task).per_option:
            yield Probe.of(Question(text=first, options=(second, "no")))
        else:
            yield Probe.of((first,) if task.pair == "none" else (first, second))


def _repaired(text: Input) -> Input:
    return (repair(text[0]),) if len(text) == 1 else (repair(text[0]), repair(text[1]))
