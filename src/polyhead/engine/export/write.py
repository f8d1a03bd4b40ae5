"""A bundle's tasks as ONNX files that run without Polyhead, written, run, and compared before they get their name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path as FilePath

import msgspec
import numpy as np
import onnx
import onnxruntime as ort
import tokenizers
from onnx import TensorProto

from polyhead._version import __version__
from polyhead.bundle.atomic import workspace
from polyhead.bundle.format import BUNDLE
from polyhead.bundle.live_versions import Probe
from polyhead.encoder.decoder import Decoder
from polyhead.engine.backends.base import TokenBatch
from polyhead.engine.backends.onnx.ops import INLINE, OPSET
from polyhead.engine.export.graphs import (
    BuiltGraph,
    depths_read,
    longest_read,
    pair_graph,
    reads_states,
    task_graph,
    trunk_graph,
)
from polyhead.engine.export.record import (
    FORMAT,
    README,
    RECORD,
    TOKENIZER,
    TRUNK,
    Array,
    Export,
    ModelFile,
    TaskFiles,
    TokenizerFile,
    readme,
)
from polyhead.engine.export.text_ops import COLUMNS, IDS, MASK, SEGMENTS, VALUES, WORDS
from polyhead.engine.export.writing import ExportedSteps, begin_file, step_file
from polyhead.engine.inputs import input_types_of
from polyhead.engine.loaded import loaded
from polyhead.engine.probes import readable_probes
from polyhead.engine.session import Session
from polyhead.errors import BackendError, ConfigError
from polyhead.files import TEMPORARY, sync_folder, write_file
from polyhead.plan import merge
from polyhead.tasks.generation import GenerationRules
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Task
from polyhead.text.characters import word_pattern
from polyhead.text.hashing import hashed_text
from polyhead.text.question import Question, read_alone
from polyhead.text.tokenize import Input, repair
from polyhead.text.words import first_subtokens, words_in
from polyhead.values import to_json

TOLERANCE = 1e-3  # of a logit: float32 in another order
BORDERLINE = 4  # one probe in so many may have a feature on a border of its codec, which falls to either side
# How far that may move a logit. Features moved by 1e-4 moved MiniLM taggers' by 0.25 with sign, 0.03 with uint8.
BORDER, FINE_BORDER = 0.25, 0.01  # the second where the codec `is_fine`
LARGEST = 1 << 30  # bytes of one file: protobuf reads no message of 2 GiB, and needs twice its bytes to write one
ALIGNED = 4096  # bytes: where an array begins, so that it can be mapped into memory
LAST_TOKENS = "it reads first and last tokens of words, and its files would read one of each word"
EACH_WORD = "its head reads hashed features of each word, which no file computes: train it with words = false"
OWN_WORDS = "its head reads the words of two texts, which no graph does: train it with the strategy's words = false"
ASKED = 8  # probes of a task that are compared
TEXTS = ("Thank you!", "Is it broken?", "Send one back to Anna Reed, please: I was charged twice.", "no", "24th day")
Values = dict[str, np.ndarray]


def export_bundle(
    bundle: FilePath | str,
    out: FilePath | str,
    *,
    tasks: Iterable[str] | None = None,
    backend: str | None = None,
    largest: int = LARGEST,
    show: Callable[[str], None] = lambda line: None,
) -> Export:
    """Writes the folder `out`, which must not hold anything yet; None exports all tasks that can be.

    Every task's files are run on its probes and compared with a session on `backend`, in float32. Raises BackendError
    where they differ by more than the tolerance; nothing is left then.
    """
    out = FilePath(out).absolute()
    _check_free(out)
    session = Session(bundle, backend=backend, precision="float32")
    requested = session.task_names(tasks)
    apart = {name: why for name in requested if (why := _cannot(session, name))}
    names = [name for name in requested if name not in apart]
    if tasks is not None and apart or not names:
        raise BackendError(
            "these tasks cannot be exported" if apart else "the bundle has no task to export",
            got=[f"{name}: {why}" for name, why in apart.items()] or None,
            allowed=[name for name in session.tasks if not _cannot(session, name)] or None,
            do="leave these out, or train them as is said of each" if apart else "train a task",
        )
    with workspace(out.with_name(TEMPORARY + out.name), f"{out} cannot be written") as folder:
        written = _Writing(session, folder, largest, show).export(names)
        export = _checked(folder, msgspec.structs.replace(written, left_out=apart), session, show)
        write_file(folder / README, [readme(export).encode()])
        write_file(folder / RECORD, [to_json(export)])
        sync_folder(folder)
        folder.rename(out)
    return export


def _cannot(session: Session, name: str) -> str:
    """Why a task cannot be exported; "" if it can."""
    task = session.tasks[name]
    if task.ends == "last":
        return LAST_TOKENS
    if not session.bundle.tasks[name].path.head.words:
        return ""
    if kind_of(task).per_word:
        return EACH_WORD
    return OWN_WORDS if task.pair != "none" or kind_of(task).per_option else ""


class _Writing(msgspec.Struct, frozen=True):
    session: Session
    folder: FilePath
    largest: int
    show: Callable[[str], None]

    def export(self, names: Iterable[str]) -> Export:
        """Writes all files except the descriptions of them; nothing is compared yet."""
        bundle, tokenizer = self.session.bundle, self.session.tokenizer
        self.folder.mkdir(parents=True)
        tokenizer_sha256 = write_file(self.folder / TOKENIZER, [bundle.tokenizer])
        tasks = {name: self._task(name) for name in names}
        depths = {depth for name in tasks for depth in depths_read(bundle.tasks[name].path)}
        trunk = self._file(TRUNK, trunk_graph(bundle.trunk(), depths)) if depths else None
        return Export(
            format=FORMAT,
            polyhead=__version__,
            trunk_digest=bundle.digest,
            opset=OPSET,
            tokenizer=TokenizerFile(
                file=TOKENIZER, sha256=tokenizer_sha256, max_tokens=tokenizer.max_tokens, pad_id=tokenizer.pad_id
            ),
            trunk=trunk,
            tasks=tasks,
            word_pattern=word_pattern("\u0100").pattern if any(task.columns for task in tasks.values()) else "",
            left_out={},
            checked_with={"backend": self.session.backend.name, "precision": self.session.backend.precision},
            tolerance=TOLERANCE,
        )

    def _task(self, name: str) -> TaskFiles:
        self.show(f"writing {name}")
        bundle = self.session.bundle
        record, trunk = bundle.tasks[name], bundle.trunk()
        task = loaded(bundle, name)
        compare = step = None
        if record.path.head.separate:
            compare = self._file(f"pairs/{name}.onnx", pair_graph(task, record.task))
        if isinstance(decoder := record.path.head.decoder, Decoder):
            model = begin_file(trunk, task, record.task, decoder)
            step = self._file(f"steps/{name}.onnx", step_file(trunk, task, record.task, decoder))
        else:
            model = task_graph(trunk, task, record.task)
        return TaskFiles(
            task=record.task,
            reads=input_types_of(record.task)[0],
            version=bundle.version(name),
            arrays=record.arrays,
            max_tokens=longest_read(record.path, trunk),
            model=self._file(f"tasks/{name}.onnx", model),
            compare=compare,
            step=step,
            columns=record.path.head.words,
        )

    def _file(self, name: str, built: BuiltGraph) -> ModelFile:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        digests = write_model(path, built.model, built.arrays, largest=self.largest)
        inputs, outputs = (
            {
                port.name: Array(
                    type="int64" if port.type.tensor_type.elem_type == TensorProto.INT64 else "float32",
                    shape=tuple(d.dim_param or d.dim_value for d in port.type.tensor_type.shape.dim),
                )
                for port in side
            }
            for side in (built.model.graph.input, built.model.graph.output)
        )
        return ModelFile(file=name, inputs=inputs, outputs=outputs, digests=digests)


def _checked(folder: FilePath, export: Export, session: Session, show: Callable[[str], None]) -> Export:
    """The record with the measured differences; raises BackendError for a task whose answers differ."""
    exported, tasks = ExportedModel(folder, export), {}
    for name, files in export.tasks.items():
        show(f"comparing {name}")
        measured = np.sort(export_differences(exported, files, session)).tolist()  # NaN last
        codec = session.bundle.tasks[name].path.pool.codec.format
        borderline = 0 if codec.is_exact else len(measured) // BORDERLINE
        border = FINE_BORDER if codec.is_fine else BORDER
        if measured and not (measured[-1 - borderline] <= TOLERANCE and measured[-1] <= border):
            raise BackendError(
                f"the exported files of task '{name}' answer otherwise than the session",
                got=f"a logit that differs by {measured[-1]:.3g}",
                allowed=f"{TOLERANCE:g}" + f"; {border:g} of {borderline} of {len(measured)} probes" * (borderline > 0),
                do="report this, with the bundle's plan (`polyhead inspect`); nothing was written",
            )
        tasks[name] = msgspec.structs.replace(
            files, largest_difference=max(measured, default=0.0), probes=len(measured)
        )
    return msgspec.structs.replace(export, tasks=tasks)


def _check_free(out: FilePath) -> None:
    if out.is_dir() and not out.is_symlink() and not any(out.iterdir()):
        return
    if out.exists() or out.is_symlink():
        is_bundle = (out / BUNDLE).exists()
        do = "name a new folder: this one is a bundle" if is_bundle else "name a new folder, or an empty one"
        raise ConfigError(f"there is something at {out} already", do=do)
    if not out.parent.is_dir():
        raise ConfigError(f"cannot write {out}", got=f"there is no folder {out.parent}", do="make it first")


def write_model(
    path: FilePath, model: onnx.ModelProto, arrays: Mapping[str, np.ndarray], *, largest: int = LARGEST
) -> dict[str, str]:
    """Writes the model with its arrays, those of more than `largest` bytes together to `<name>.data` beside it.

    Returns the SHA-256, in hex, of each file by its name.
    """
    apart = {name: array for name, array in arrays.items() if array.nbytes > INLINE}
    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    initializers = [array_proto for array_proto in whole.graph.initializer if array_proto.name in apart]
    if whole.ByteSize() + sum(array.nbytes for array in apart.values()) <= largest:
        for array_proto in initializers:
            del array_proto.external_data[:]
            array_proto.data_location = onnx.TensorProto.DEFAULT
            array_proto.raw_data = apart[array_proto.name].tobytes()
        return {path.name: write_file(path, [whole.SerializeToString()])}
    beside, chunks, at = path.with_name(f"{path.name}.data"), list[memoryview | bytes](), 0
    for array_proto in initializers:
        array = np.ascontiguousarray(apart[array_proto.name])
        chunks += [b"\0" * (-at % ALIGNED), array.reshape(-1).view(np.uint8).data]
        at += -at % ALIGNED
        del array_proto.external_data[:]
        for key, value in (("location", beside.name), ("offset", at), ("length", array.nbytes)):
            array_proto.external_data.add(key=key, value=str(value))
        at += array.nbytes
    return {path.name: write_file(path, [whole.SerializeToString()]), beside.name: write_file(beside, chunks)}


class ExportedModel:
    """Runs an export with ONNX Runtime and `tokenizers`, and nothing else."""

    def __init__(self, root: FilePath, export: Export) -> None:
        self._root, self._export, tokenizer = root, export, export.tokenizer
        self._sessions: dict[str, ort.InferenceSession] = {}
        self._tokenizer = tokenizers.Tokenizer.from_file(str(root / tokenizer.file))
        self._tokenizer.enable_truncation(tokenizer.max_tokens)
        self._tokenizer.enable_padding(pad_id=tokenizer.pad_id)

    def logits(self, files: TaskFiles, inputs: Sequence[Input], words: Sequence[np.ndarray]) -> np.ndarray:
        """The task's, of texts and pairs, one a row; `words` holds the first token of each word that has one."""
        if files.compare is not None:
            first, second = (
                self._of_text(files.model, [(texts[place],) for texts in inputs])["features"] for place in (0, -1)
            )
            return self.run(files.compare, {"first": first, "second": second})["logits"]
        return self._of_text(files.model, inputs, words, columns=files.columns)["logits"]

    def steps(self, files: TaskFiles, inputs: Sequence[Input]) -> ExportedSteps:
        """The decoder of a task that writes, for these texts."""
        assert files.step is not None
        values = self._with_states(files.model, self._read(inputs))
        return ExportedSteps(values, begin=partial(self.run, files.model), step=partial(self.run, files.step))

    def _of_text(
        self, file: ModelFile, inputs: Sequence[Input], words: Sequence[np.ndarray] = (), *, columns: int = 0
    ) -> Values:
        values = self._read(inputs)
        if columns:
            hashed = [hashed_text(texts[0], columns) for texts in inputs]
            size = (len(hashed), max(len(text.columns) for text in hashed))
            values |= {COLUMNS: np.zeros(size, np.int64), VALUES: np.zeros(size, np.float32)}
            for row, text in enumerate(hashed):
                values[COLUMNS][row, : len(text.columns)] = text.columns
                values[VALUES][row, : len(text.columns)] = text.values
        if WORDS in file.inputs:
            values[WORDS] = np.full((len(words), max(map(len, words))), -1, np.int64)
            for row, places in enumerate(words):
                values[WORDS][row, : len(places)] = places
        return self.run(file, self._with_states(file, values))

    def _with_states(self, file: ModelFile, values: Values) -> Values:
        if not reads_states(file.inputs):
            return values
        assert self._export.trunk is not None
        return values | self.run(self._export.trunk, values)

    def _read(self, inputs: Sequence[Input]) -> Values:
        encoded = self._tokenizer.encode_batch([texts[0] if len(texts) == 1 else texts for texts in inputs])
        return {
            IDS: np.array([encoding.ids for encoding in encoded], np.int64),
            MASK: np.array([encoding.attention_mask for encoding in encoded], np.int64),
            SEGMENTS: np.array([encoding.type_ids for encoding in encoded], np.int64),
        }

    def run(self, file: ModelFile, values: Mapping[str, np.ndarray]) -> Values:
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
    if files.step is not None:
        return [_written_difference(exported, files, session, texts) for p in probes for texts in read_alone([p.input])]
    places = [None if p.words is None else np.array(p.words, np.int32).reshape(-1, 2) for p in probes]
    wanted = session.outputs(task.name, [probe.input for probe in probes], words=places)
    rows, tokens = list[Input](), list[np.ndarray]()
    for probe, words in zip(probes, places, strict=True):
        for texts in read_alone([probe.input]):
            (encoded,) = session.tokenizer.encode([texts])
            rows.append(_repaired(texts))
            tokens.append(first_subtokens(encoded, words_in(texts) if words is None else words))
    own_tokens = [places[places >= 0] for places in tokens]
    logits, apart, row = exported.logits(files, rows, own_tokens), list[float](), 0
    for probe, outputs in zip(probes, wanted, strict=True):
        options = len(probe.options or "1")
        exported_logits = logits[row : row + options]
        if kind_of(task).per_word:
            exported_logits, outputs = exported_logits[0, : len(own_tokens[row])], outputs[tokens[row] >= 0]
        apart.append(float(np.abs(exported_logits.reshape(-1) - outputs.reshape(-1)).max(initial=0.0)))
        row += options
    return apart


def _written_difference(exported: ExportedModel, files: TaskFiles, session: Session, texts: Input) -> float:
    """The largest difference of the scores of the tokens that the session's decoder would write first."""
    name, backend = files.task.name, session.backend
    path = session.bundle.tasks[name].path
    (encoded,) = session.tokenizer.encode([texts])
    ids, rules = encoded.ids[None].astype(np.int64), files.task.generation
    assert isinstance(rules, GenerationRules)
    batch = TokenBatch(
        ids=ids,
        mask=np.ones(ids.shape, bool),
        segments=encoded.segments[None].astype(np.int64),
        words=np.full((1, 1), -1, np.int64),
    )
    states = backend.run(merge({name: path}), batch)[name]
    ours = backend.decoder(name)
    theirs = exported.steps(files, [_repaired(texts)])
    caches, read = [decoder.begin(states, batch.mask) for decoder in (ours, theirs)], np.array([[rules.start]])
    worst = 0.0
    for _ in range(min(rules.tokens, ASKED)):
        wanted, caches[0] = ours.step(read, caches[0])
        scores, caches[1] = theirs.step(read, caches[1])
        worst = max(worst, float(np.abs(scores - wanted).max()))
        read = wanted[:, 0].argmax(axis=-1)[:, None]
    return worst


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
