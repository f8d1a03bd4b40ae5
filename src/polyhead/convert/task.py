"""One checkpoint as a task: its declaration, path, arrays, probes and card."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path as FilePath
from typing import Any, Literal

import msgspec
import numpy as np

from polyhead._version import __version__
from polyhead.bundle.live_versions import Probe
from polyhead.bundle.manifest import TaskRecord
from polyhead.convert.hugging_face import ForeignHead, read_encoder, weights_digests
from polyhead.convert.parity import Parity
from polyhead.convert.peft import Lora, adapter_line
from polyhead.convert.scan import ScannedEncoder
from polyhead.deep.nn.runtime import numerics
from polyhead.encoder.data import TrunkData
from polyhead.errors import BadName, ConfigError, PolyheadError
from polyhead.plan import Embed, Layers, Path, cost, merge, shared_layers
from polyhead.tasks.kinds import KINDS, kind_of
from polyhead.tasks.task import Task, kinds_with, owner_of
from polyhead.text.question import TaskInput, texts_of
from polyhead.text.words import words_in
from polyhead.train.record.draft import PROBES, about_task
from polyhead.values import Value, check_unused


class ImportRequest(Value):
    """The folders to import, and the settings that their config.json lacks."""

    folders: tuple[str, ...]
    base: str | None = None  # the trunk: a name for `load_trunk`; None: the layers that the folders share
    names: dict[str, str] = {}  # folder -> task; others are named after their folder
    range: tuple[float, float] | None = None  # for regression
    pair: Literal["none", "joined"] = "none"  # of classifiers
    long_texts: Literal["cut", "windows"] = "cut"
    null_answers: bool = False  # whether question answering may say that there is no answer
    max_tokens: int | None = None  # of a new bundle's trunk
    actor: str = ""  # the person who imports, for the certificate


class ForeignCheckpoint(Value, eq=False):
    """A folder to import; arrays of its encoder are read again when needed."""

    folder: str
    scanned: ScannedEncoder
    head: ForeignHead
    task: Task
    lora: Lora | None = None  # the adapter over its base, if the folder holds one


def name_of(folder: str) -> str:
    """A task's name from a folder's: its last part, without characters that a name cannot have."""
    last = FilePath(folder).expanduser().resolve().name
    clean = re.sub(r"[^A-Za-z0-9._-]+", "-", last).strip("-._")
    return re.sub(r"\.{2,}", ".", clean)[:64].rstrip(".") or "task"


def foreign_task(folder: str, name: str, head: ForeignHead, wanted: ImportRequest) -> Task:
    """The folder's task; raises ConfigError, naming the folder, for settings that its kind cannot use or lacks."""
    kind = KINDS[head.kind]
    if "range" in kind.uses and wanted.range is None:
        raise ConfigError(
            f"{folder}: a {kind.name} task needs the range of its values, which config.json does not hold",
            do="give the lowest and the highest value that the model was trained on, such as --range 0 5",
        )
    if "pair" not in kind.uses and wanted.pair != "none" and not kind.per_option:
        raise ConfigError(f"{folder}: a token classifier reads one text", got="--pair joined", do="leave it out")
    do = "name the labels otherwise in id2label of its config.json, which changes no weight"
    if kind.labels_words:
        do += "; for tags of spans: O, and B-x for every I-x; for labels of words: none that begins with B- or I-"
    try:
        return Task(
            name=name,
            kind=head.kind,
            labels=head.labels,
            pair=wanted.pair if "pair" in kind.uses else "none",
            range=wanted.range if "range" in kind.uses else None,
            long_texts=wanted.long_texts if "long_texts" in kind.uses else "cut",
            null_answers=wanted.null_answers and "null_answers" in kind.uses,
            ends="last" if "ends" in kind.uses else msgspec.UNSET,
        )
    except BadName:
        raise
    except PolyheadError as error:
        raise ConfigError(f"{folder}: {error.what}", got=error.got, allowed=error.allowed, do=do) from None


def check_used(wanted: ImportRequest, tasks: Sequence[Task]) -> None:
    """Raises ConfigError for a setting that none of these tasks uses."""
    used = {name for task in tasks for name in kind_of(task).uses}
    idle = {name: kinds_with("uses", name) for name in ("range", "pair", "long_texts", "null_answers")}
    why = {name: f"none of the folders holds a task of kind {kinds}" for name, kinds in idle.items()}
    check_unused("", wanted, {name: reason for name, reason in why.items() if name not in used})


def foreign_path(model: ForeignCheckpoint, trunk: str, tap: int) -> Path:
    """`Embed, Layers(0, tap, trunk), Layers(tap, N, part), Pool, Head`; either kind of layers may be absent.

    For an adapter `Embed, Layers(0, N, trunk, delta), Pool, Head`, cut where its ranks, scales or maps change.
    """
    owner, depth = owner_of(model.task), len(model.scanned.layers)
    if model.lora is not None:
        return Path(nodes=(Embed(trunk=trunk), *model.lora.nodes(owner), *model.head.ends(owner)))
    nodes = [*shared_layers(tap)]
    nodes += [Layers(start=tap, stop=depth, weights=owner)] if tap < depth else []
    return Path(nodes=(Embed(trunk=trunk), *nodes, *model.head.ends(owner)))


def foreign_arrays(model: ForeignCheckpoint, path: Path) -> dict[str, np.ndarray]:
    """The task's arrays; a regression's output layer gives fractions of the range, as in all tasks."""
    if model.lora is not None:
        inside = model.lora.arrays()
    else:
        data = read_encoder(model.folder)
        names = cost.part_arrays(path, data.architecture, owner_of(model.task))
        inside = {name: data.arrays[name] for name in names if name in data.arrays}
    arrays = inside | dict(model.head.arrays)
    if model.task.range is not None:
        low, high = model.task.range
        for name, shift in (("head.output.weight", 0.0), ("head.output.bias", low)):
            exact = (arrays[name].astype(np.float64) - shift) / (high - low)
            arrays[name] = exact.astype(np.float32)
    return arrays


def record_of(model: ForeignCheckpoint, path: Path, origin: Mapping[str, object]) -> TaskRecord:
    """The task's record; `origin` is kept under `imported` in its training facts."""
    return TaskRecord(
        task=model.task,
        path=path,
        trunk=path.embed.trunk,
        trained_with={"polyhead": __version__, "numerics": numerics("float32"), "imported": dict(origin)},
    )


def origin_of(model: ForeignCheckpoint, proof: Parity) -> dict[str, object]:
    """The origin of the task, and the proof of equal answers."""
    origin: dict[str, object] = {
        "folder": model.folder,
        "class": model.head.model_class,
        "weights": weights_digests(model.folder),
        "parity": msgspec.to_builtins(proof),
    }
    if model.lora is not None:
        origin["adapter"] = adapter_of(model)
        origin["base"] = {"folder": str(model.lora.base), "weights": weights_digests(model.lora.base)}
    return origin


def adapter_of(model: ForeignCheckpoint) -> str:
    """The maps and layers with low-rank matrices, in a few words; "" for a whole model."""
    return adapter_line(model.scanned.adapted) if model.lora is not None else ""


def foreign_probes(task: Task, texts: Sequence[TaskInput]) -> list[dict[str, Any]]:
    """PROBES of the texts, or all if there are fewer: the longest, one beyond ASCII, others evenly spaced."""
    longest = max(range(len(texts)), key=lambda i: sum(map(len, texts_of(texts[i]))))
    foreign = [i for i, text in enumerate(texts) if not all(t.isascii() for t in texts_of(text))]
    spaced = np.linspace(0, len(texts) - 1, PROBES).round().astype(int).tolist()
    chosen = list(dict.fromkeys([longest, *foreign[:1], *spaced, *range(len(texts))]))
    per_word = kind_of(task).per_word
    probes = [Probe.of(texts[i], words_in(texts_of(texts[i])) if per_word else None) for i in sorted(chosen[:PROBES])]
    return [probe.line() for probe in probes]


def own_cost(name: str, path: Path, trunk: TrunkData) -> cost.Cost:
    """The cost that the task adds to a pass of its trunk on a text of 32 tokens."""
    return cost.added(merge({name: path}), name, trunk.architecture, tokens=32)


def import_card(model: ForeignCheckpoint, path: Path, trunk: TrunkData, proof: Parity) -> str:
    """Markdown for the task's README.md."""
    task, extra = model.task, own_cost(model.task.name, path, trunk)
    agreed = "" if proof.agreement is None else f" {100 * proof.agreement:.1f} % of the decisions are the same."
    return "\n".join(
        [
            f"# {task.name}",
            "",
            f"A `{task.kind}` task" + (" on pairs read joined" if task.pair != "none" else "") + ".",
            *about_task(task),
            "",
            "## Imported from",
            "",
            f"`{model.folder}`, {_description(model, extra.layer_evaluations)} the trunk `{trunk.name}`.",
            f"{extra.parameters:,} parameters of its own; {extra.flops / 1e6:.2f} MFLOP more on a text of 32 tokens.",
            "",
            "## Proof",
            "",
            f"On {proof.texts} texts the largest difference from transformers {proof.transformers} is "
            f"{proof.max_abs_difference:.2g} (allowed: {proof.tolerance:g}).{agreed}",
            "",
            "## Limits",
            "",
            f"Scores on labelled data were not measured here. Inputs over {trunk.settings.max_tokens} tokens are cut.",
            "",
        ]
    )


def _description(model: ForeignCheckpoint, layers: int) -> str:
    """A description of the folder's content, up to the trunk's name."""
    if model.lora is not None:
        return f"a `{model.head.model_class}` with an adapter ({adapter_of(model)}) in the layers of"
    shared = len(model.scanned.layers) - layers
    return f"a `{model.head.model_class}`; {layers} layers of its own over {shared} of"
