"""Imports checkpoints with a common frozen prefix, and adapters over it, as tasks of one bundle with proofs."""

from __future__ import annotations

import importlib.resources
import json
from collections.abc import Mapping, Sequence
from pathlib import Path as FilePath

import msgspec

from polyhead.bundle.atomic import PROOF, check_absent, new_bundle_at, workspace
from polyhead.bundle.create import write_bundle
from polyhead.bundle.read import Bundle
from polyhead.bundle.write import Draft, add_tasks
from polyhead.certify import Certificate, certified
from polyhead.convert.folders import BaseEncoders, check_distinct, scanned_with
from polyhead.convert.hugging_face import read_base, read_encoder, read_head
from polyhead.convert.parity import Parity, parity
from polyhead.convert.peft import is_adapter
from polyhead.convert.scan import Group, group_of, over, scanned
from polyhead.convert.task import (
    ForeignCheckpoint,
    ImportRequest,
    adapter_of,
    check_used,
    foreign_arrays,
    foreign_path,
    foreign_probes,
    foreign_task,
    import_card,
    name_of,
    origin_of,
    own_cost,
    record_of,
)
from polyhead.encoder.data import TrunkData
from polyhead.encoder.shape import trunk_arrays
from polyhead.engine.backends import TRAINING_BACKEND
from polyhead.engine.inputs import (
    IN_WORDS,
    AnyInput,
    InputType,
    input_type_of,
    input_types_of,
    is_blank_input,
    reads_in_words,
    task_input,
)
from polyhead.engine.probes import recorded_precision
from polyhead.engine.session import Session
from polyhead.errors import BadName, ConfigError, WrongTrunk
from polyhead.plan import Path
from polyhead.progress import Show
from polyhead.tasks.task import Task
from polyhead.text.question import Question, TaskInput
from polyhead.text.tokenize import repair
from polyhead.values import Value

LEAST_TEXTS = 16
SAMPLE_TEXTS = 128  # of the packaged sample, if no texts are given
OPTIONS = 3  # of a question that is made of the sample's pairs


class Imported(Value):
    """One imported task."""

    task: str
    kind: str
    folder: str
    model_class: str
    version: str
    tap: int
    layers: int  # layers of its own, or the trunk's with its own matrices
    parameters: int  # of its own
    parity: Parity
    adapter: str = ""  # the base of its low-rank matrices; "" for a whole model


class ImportResult(Value):
    """The result of an import."""

    bundle: str
    is_new: bool
    trunk: str  # digest
    trunk_name: str
    trunk_layers: int
    tasks: tuple[Imported, ...]
    precisions: tuple[str, ...]  # the precision for answers of the bundle's tasks: these in float32, others as trained
    certificate: Certificate


def import_folders(
    wanted: ImportRequest, out: FilePath, inputs: Sequence[AnyInput] | None = None, *, show: Show = lambda text: None
) -> ImportResult:
    """Writes every folder as a task into `out`, a new bundle or one with the trunk that the folders share.

    Before anything is written there, each task answers those of `inputs` that it reads (None: texts of the packaged
    sample) from a temporary bundle and is compared with the checkpoint in `transformers`: all are imported, or none is.
    Raises TrunkError for a folder that shares nothing with the trunk or answers differently, WrongTrunk for an adapter
    of another encoder, BadName for a name that is taken.
    """
    check_distinct(wanted.folders)
    existing = _existing(out)
    bases = BaseEncoders(wanted.base)
    models = _read(wanted, existing, bases, show)
    texts = proof_texts([model.task for model in models], inputs)
    trunk, group = _trunk(wanted, bases.first(wanted.folders), models, existing, show)
    digest = trunk.digest
    paths = {model.folder: foreign_path(model, digest, group.taps[model.folder]) for model in models}
    problem = f"the import into {out} cannot be proven"
    nearest = next(parent for parent in out.resolve().parents if parent.is_dir())  # on the disk of the bundle
    with workspace(nearest / f"{PROOF}{out.resolve().name}", problem) as place:
        trial = _trial(place, trunk, models, paths, texts, show)
        session = Session(trial, backend=TRAINING_BACKEND, precision="float32")
        proofs = {
            model.folder: parity(session, model.task, model.folder, texts[model.task.name], lora=model.lora, show=show)
            for model in models
        }
        show("writing the bundle")
        certificate = _commit(out, trunk, models, paths, proofs, trial, is_new=existing is None, actor=wanted.actor)
    show("")
    bundle = Bundle.open(out)
    return ImportResult(
        bundle=str(out),
        is_new=existing is None,
        trunk=digest,
        trunk_name=trunk.name,
        trunk_layers=trunk.architecture.layers,
        precisions=tuple(sorted({recorded_precision(record) for record in bundle.tasks.values()})),
        certificate=certificate,
        tasks=tuple(
            Imported(
                task=model.task.name,
                kind=model.task.kind,
                folder=model.folder,
                model_class=model.head.model_class,
                version=bundle.version(model.task.name),
                tap=group.taps[model.folder],
                layers=len(model.scanned.layers) - group.taps[model.folder],
                parameters=own_cost(model.task.name, paths[model.folder], trunk).parameters,
                parity=proofs[model.folder],
                adapter=adapter_of(model),
            )
            for model in models
        ),
    )


def _existing(out: FilePath) -> Bundle | None:
    """The bundle at `out`, None if nothing is there; raises BundleError for a folder with something else."""
    if (out / "bundle.json").exists():
        return Bundle.open(out)
    check_absent(out)
    return None


def _trial(
    root: FilePath,
    trunk: TrunkData,
    models: Sequence[ForeignCheckpoint],
    paths: Mapping[str, Path],
    texts: Mapping[str, Sequence[TaskInput]],
    show: Show,
) -> Bundle:
    """A bundle of all the tasks in a temporary folder."""
    write_bundle(root, trunk)
    for model in models:
        show(f"reading the arrays of {model.folder}")
        path = paths[model.folder]
        draft = Draft(
            record=record_of(model, path, {}),
            arrays=foreign_arrays(model, path),
            scores={},
            probes=foreign_probes(model.task, texts[model.task.name]),
            card="",
        )
        add_tasks(root, [draft])
    return Bundle.open(root)


def _commit(
    out: FilePath,
    trunk: TrunkData,
    models: Sequence[ForeignCheckpoint],
    paths: Mapping[str, Path],
    proofs: Mapping[str, Parity],
    trial: Bundle,
    *,
    is_new: bool,
    actor: str,
) -> Certificate:
    """Writes the proven tasks in one step, with a certificate that no other task's answers changed."""
    drafts = [
        Draft(
            record=record_of(model, paths[model.folder], origin_of(model, proofs[model.folder])),
            arrays=trial.part(model.task.name),
            scores={"splits": {}},
            probes=trial.probes(model.task.name),
            card=import_card(model, paths[model.folder], trunk, proofs[model.folder]),
        )
        for model in models
    ]
    names = [model.task.name for model in models]
    if not is_new:
        return certified(out, "import", lambda: add_tasks(out, drafts), changing=names, actor=actor)
    with new_bundle_at(out) as building:
        write_bundle(building, trunk)
        return certified(building, "import", lambda: add_tasks(building, drafts), changing=names, actor=actor)


def _read(wanted: ImportRequest, existing: Bundle | None, bases: BaseEncoders, show: Show) -> list[ForeignCheckpoint]:
    """Every folder's digests, head and task; the arrays of its encoder are not kept."""
    models: list[ForeignCheckpoint] = []
    taken = set(existing.tasks) if existing is not None else set()
    unknown = sorted(set(wanted.names) - set(wanted.folders))
    if unknown:
        raise ConfigError("a name is given to a folder that is not imported", got=unknown, allowed=wanted.folders)
    for i, folder in enumerate(wanted.folders):
        show(f"reading {folder} ({i + 1} of {len(wanted.folders)})")
        adapted = bases.adapted(folder) if is_adapter(folder) else None
        head = adapted.head if adapted is not None else read_head(folder)
        name = wanted.names.get(folder) or name_of(folder)
        if name.casefold() in {other.casefold() for other in taken}:
            raise BadName(
                f"{folder}: its task would have the name of another",
                got=name,
                do=f"name it with --name {folder}=ANOTHER",
            )
        taken.add(name)
        task = foreign_task(folder, name, head, wanted)
        encoder = adapted.scanned if adapted is not None else scanned_with(read_encoder(folder), head)
        lora = adapted.lora if adapted is not None else None
        models.append(ForeignCheckpoint(folder=folder, scanned=encoder, head=head, task=task, lora=lora))
    check_used(wanted, [model.task for model in models])
    return models


def _trunk(
    wanted: ImportRequest, base: str | None, models: Sequence[ForeignCheckpoint], existing: Bundle | None, show: Show
) -> tuple[TrunkData, Group]:
    """The trunk with which all folders share layers, and the number for each; `base` is that of a new bundle."""
    encoders = [model.scanned for model in models]
    if existing is not None:
        trunk = existing.trunk()
        if wanted.max_tokens not in (None, trunk.settings.max_tokens):
            raise ConfigError(
                f"the trunk of {existing.root} reads another length already",
                got=wanted.max_tokens,
                allowed=trunk.settings.max_tokens,
                do="leave --max-tokens out, or write a new bundle",
            )
        _check_base(wanted, trunk, existing)
        named = msgspec.structs.replace(trunk, name=f"the trunk of {existing.root}")
        return trunk, over(scanned(named), encoders)
    if base is not None:
        show(f"reading {base}")
        trunk = read_base(base, max_tokens=wanted.max_tokens)
        return trunk, over(scanned(trunk), encoders)
    group = group_of(encoders)
    show(f"reading the trunk from {group.trunk}")
    whole = read_encoder(group.trunk, max_tokens=wanted.max_tokens)
    return _first_layers(whole, group.depth), group


def _check_base(wanted: ImportRequest, trunk: TrunkData, existing: Bundle) -> None:
    if wanted.base is None:
        return
    base = read_base(wanted.base, max_tokens=trunk.settings.max_tokens)
    if base.digest != trunk.digest:
        raise WrongTrunk(
            f"the bundle {existing.root} stands on another trunk than --base",
            got=f"--base {wanted.base}: {base.digest}",
            allowed=f"{trunk.name}: {trunk.digest}",
            do="leave --base out, or write a new bundle",
        )


def _first_layers(data: TrunkData, depth: int) -> TrunkData:
    shape = data.architecture.first_layers(depth)
    kept = {name: data.arrays[name] for name, _ in trunk_arrays(shape) if name in data.arrays}
    first = "first layer" if depth == 1 else f"first {depth} layers"
    name = data.name if depth == data.architecture.layers else f"{first} of {data.name}"
    return msgspec.structs.replace(data, name=name, architecture=shape, arrays=kept)


def proof_texts(tasks: Sequence[Task], inputs: Sequence[AnyInput] | None) -> Mapping[str, list[TaskInput]]:
    """The texts that prove each task: all given ones that it reads, or those of the sample.

    Raises ConfigError for a text that is blank or that no task reads, and for a task that reads too few.
    """
    types = {task.name: input_types_of(task) for task in tasks}
    if inputs is None:
        return {name: sample_texts(read[0]) for name, read in types.items()}
    if any(map(is_blank_input, inputs)):
        raise ConfigError("a text of the proof is blank", do="leave it out")
    allowed = list(dict.fromkeys(map(reads_in_words, types.values())))
    unread = [text for text in inputs if not any(input_type_of(text) in read for read in types.values())]
    if unread:
        raise ConfigError(
            "the texts of the proof are not of the kind that the tasks read",
            got=f"{IN_WORDS[input_type_of(unread[0])]} ({len(unread)} of {len(inputs)} lines are unread)",
            allowed=allowed,
            do="give pairs to classifiers with --pair joined, single texts without it",
        )
    texts = {name: [_repaired(text) for text in inputs if input_type_of(text) in read] for name, read in types.items()}
    for name, task_texts in texts.items():
        if len(task_texts) < LEAST_TEXTS:
            raise ConfigError(
                f"too few texts to prove that the answers of task '{name}' are the same",
                got=len(task_texts),
                allowed=f"{LEAST_TEXTS} or more, each {reads_in_words(types[name])}",
            )
    return texts


def sample_texts(input_type: InputType) -> list[TaskInput]:
    """Texts of the packaged sample, evenly spaced, and those of them that are not ASCII.

    The options of a question are the second texts of its pair and the pairs after it.
    """
    name, keys = ("messages.jsonl", ("text",)) if input_type == "text" else ("pairs.jsonl", ("text_a", "text_b"))
    raw = importlib.resources.files("polyhead.sample").joinpath(name).read_text(encoding="utf-8")
    rows = [json.loads(line) for line in raw.splitlines()]
    texts = [tuple(row[key] for key in keys) for row in rows]
    foreign = [text for text in texts if not all(part.isascii() for part in text)]
    spaced = [texts[i * len(texts) // SAMPLE_TEXTS] for i in range(SAMPLE_TEXTS)]
    chosen = list(dict.fromkeys([*foreign, *spaced]))[:SAMPLE_TEXTS]
    if input_type != "question":
        return [(text[0],) if len(text) == 1 else (text[0], text[1]) for text in chosen]
    options = [[chosen[(i + more) % len(chosen)][1] for more in range(OPTIONS)] for i in range(len(chosen))]
    return [Question(text=text[0], options=tuple(choices)) for text, choices in zip(chosen, options, strict=True)]


def _repaired(entry: AnyInput) -> TaskInput:
    """The input as its task reads it, without lone surrogates."""
    text = task_input(entry)
    if isinstance(text, Question):
        options = tuple(map(repair, text.options))
        return Question(text=repair(text.text), options=options, context=repair(text.context))
    return (repair(text[0]),) if len(text) == 1 else (repair(text[0]), repair(text[1]))
