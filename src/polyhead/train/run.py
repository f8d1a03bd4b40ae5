"""`polyhead train`: a project file becomes a bundle, task by task; what is finished is never done again."""

from __future__ import annotations

import hashlib
import shutil
import time
from pathlib import Path as FilePath

import msgspec

from polyhead import __version__
from polyhead import plan as planning
from polyhead.bundle.manifest import TaskRecord
from polyhead.bundle.read import Bundle
from polyhead.bundle.write import write_bundle
from polyhead.errors import TrainError, WrongTrunk
from polyhead.nn.load import load_trunk
from polyhead.plan import Codec, Path
from polyhead.project import Project
from polyhead.sharing.pooled import with_codec
from polyhead.tasks.kinds import kind_of
from polyhead.text.tokenise import Input
from polyhead.train.card import card_of
from polyhead.train.events import Events, duration
from polyhead.train.extract import Extraction, Extractor
from polyhead.train.numerics import numerics, precision_of
from polyhead.train.outlook import outlook
from polyhead.train.prepare import Prepared, prepare, single_inputs
from polyhead.train.probes import probes_of
from polyhead.train.task_run import Trained, paths_of, train_task, wanted
from polyhead.trunk_data import TrunkData


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a run of `train` did."""

    bundle: str
    trained: dict[str, dict[str, dict[str, float]]]  # task -> split -> metric -> value
    kept: tuple[str, ...]  # tasks that were trained already, unchanged
    extraction: Extraction
    seconds: float


def train_project(
    project: Project,
    *,
    folder: FilePath,
    cache: FilePath | None = None,
    events: Events | None = None,
    only: tuple[str, ...] = (),
) -> Outcome:
    """Trains every declared task over the frozen trunk and writes each into the bundle as soon as it is done.

    `folder` is where relative paths start. Features and checkpoints are kept in `cache` (default: beside the
    bundle), so an interrupted run goes on where it stopped and another task over the same texts encodes nothing.
    """
    began, events = time.monotonic(), events or Events()
    root = (folder / project.bundle).resolve()
    cache = cache or root.with_name(root.name + "-cache")
    if only:
        entries = tuple(entry for entry in project.tasks if entry.name in only)
        project = msgspec.structs.replace(project, tasks=entries)
    prepared = prepare(project, folder)
    data = load_trunk(project.trunk.place(folder), max_tokens=project.trunk.max_tokens)
    data = msgspec.structs.replace(data, name=project.trunk.name)
    precisions = sorted({precision_of(p.training) for p in prepared})
    if len(precisions) > 1:
        raise TrainError(
            "tasks of one run must read the trunk in one precision",
            got=precisions,
            do="set one [training] precision",
        )
    extractor = Extractor(data, folder=cache / "features", precision=precisions[0])
    bundle = _opened(root, extractor)
    prints = {p.task.name: p.fingerprint() for p in prepared}
    todo = [p for p in prepared if not _is_done(bundle, p, prints[p.task.name])]
    kept = tuple(p.task.name for p in prepared if p not in todo)
    paths = _paths(todo, prepared, extractor, bundle)
    for line in outlook(todo, paths, extractor.data.architecture, kept=kept):
        events.line(line)
    extraction = _extract(todo, paths, extractor, events)
    scores = {}
    for p in todo:
        trained = train_task(
            p,
            paths[p.task.name],
            extractor,
            checkpoints=(folder_of := _checkpoints(cache, prints[p.task.name], paths[p.task.name])),
            events=events,
        )
        _commit(root, p, trained, extractor, {**prints[p.task.name], "numerics": numerics(precisions[0])})
        shutil.rmtree(folder_of, ignore_errors=True)
        scores[p.task.name] = trained.scores
        events.line(_score_line(p, trained))
        events.event("task", task=p.task.name, scores=trained.scores, history=trained.fitted.history)
    seconds = time.monotonic() - began
    events.line(f"bundle {project.bundle}: {len(todo)} trained, {len(kept)} kept, in {duration(seconds)}")
    return Outcome(bundle=str(root), trained=scores, kept=kept, extraction=extraction, seconds=seconds)


def _opened(root: FilePath, extractor: Extractor) -> Bundle:
    """The bundle there, if it stands on the same trunk; else a new one."""
    if not (root / "bundle.json").exists():
        return write_bundle(root, extractor.data)
    bundle = Bundle.open(root)
    if bundle.digest != extractor.digest and not bundle.tasks and not any(root.glob("tasks/*")):
        shutil.rmtree(root)  # a run that was stopped before its first task left a trunk only
        return write_bundle(root, extractor.data)
    if bundle.digest != extractor.digest:
        raise WrongTrunk(
            f"the bundle {root.name} stands on another trunk",
            got=f"this project's trunk {_described(extractor.data)}, the bundle's {_described(bundle.trunk())}",
            do="name another bundle in the project file, or give the bundle's own trunk and max_tokens",
        )
    return bundle


def _described(data: TrunkData) -> str:
    return f"{data.digest[:16]} ({data.name}, max_tokens {data.settings.max_tokens})"


def _tag(fingerprint: dict[str, object]) -> str:
    """A short name for one exact way of training. How values are computed is left out: a trained task stays."""
    named = {name: value for name, value in fingerprint.items() if name != "numerics"}
    return hashlib.sha256(msgspec.json.encode(named, order="sorted")).hexdigest()[:16]


def _checkpoints(cache: FilePath, fingerprint: dict[str, object], paths: list[Path]) -> FilePath:
    """A folder for one way of training over exact paths, trunk digest included: no other run resumes from it."""
    return (
        cache / "checkpoints" / _tag({**fingerprint, "paths": [msgspec.to_builtins(path) for path in paths]})
    )


def _is_done(bundle: Bundle, prepared: Prepared, fingerprint: dict[str, object]) -> bool:
    record = bundle.tasks.get(prepared.task.name)
    return record is not None and record.trained_with.get("fingerprint") == _tag(fingerprint)


def _paths(
    todo: list[Prepared], prepared: list[Prepared], extractor: Extractor, bundle: Bundle
) -> dict[str, list[Path]]:
    """Each task's candidate paths; uint8 constants are shared by all tasks that store the same value.

    A bundle's own constants come first, so that a task added later reads the features that are kept already. Others
    come from the texts of all tasks, those that are done too, so that a resumed run finds the same ones.
    """
    known: dict[bytes, Codec] = {}
    for record in bundle.tasks.values():
        per = "dimension" if len(record.path.pool.codec.scale) > 1 else "tensor"
        known.setdefault(_codec_key(record.path, per), record.path.pool.codec)
    found: dict[str, list[Path]] = {}
    for p in todo:
        bare = Codec(name=p.strategy.codec, before_mean=p.strategy.codec_before_mean)
        found[p.task.name] = []
        for path in paths_of(p, extractor, bare):
            per = p.strategy.codec_per
            key = _codec_key(path, per)
            if key not in known:
                known[key] = extractor.calibrated(path, _texts_like(key, prepared, extractor), per=per)
            found[p.task.name].append(with_codec(path, known[key]))
    return found


def _codec_key(path: Path, per: str) -> bytes:
    pool = path.stored().pool
    bare = msgspec.structs.replace(pool.codec, scale=(), zero=())
    return msgspec.json.encode([msgspec.structs.replace(pool, codec=bare), per])


def _texts_like(key: bytes, prepared: list[Prepared], extractor: Extractor) -> list[Input]:
    """Training inputs of every task that stores the same value, taken in turn."""
    lists: list[list[Input]] = []
    for p in prepared:
        bare = Codec(name=p.strategy.codec, before_mean=p.strategy.codec_before_mean)
        if any(_codec_key(path, p.strategy.codec_per) == key for path in paths_of(p, extractor, bare)):
            lists += single_inputs(p.train.examples.inputs, p.task)
    return [text for inputs in lists for text in inputs]


def _extract(
    todo: list[Prepared], paths: dict[str, list[Path]], extractor: Extractor, events: Events
) -> Extraction:
    progress = events.progress("encoding", unit="texts")
    requests = [request for p in todo for path in paths[p.task.name] for request in wanted(p, path)]
    extraction = extractor.fill(requests, update=progress.update)
    progress.finish()
    rate = extraction.passes / extraction.seconds if extraction.seconds else 0.0
    events.line(
        f"encoded {extraction.passes:,} inputs once ({rate:,.0f} a second), "
        f"{extraction.reused:,} stored values reused, {extraction.cut:,} inputs cut to the trunk's limit"
    )
    events.event("extraction", **msgspec.structs.asdict(extraction))
    return extraction


def _commit(
    root: FilePath, prepared: Prepared, trained: Trained, extractor: Extractor, fingerprint: dict[str, object]
) -> None:
    """Writes the task into the bundle; until then nothing of it is visible there."""
    bundle, task = Bundle.open(root), prepared.task
    record = TaskRecord(
        task=task,
        path=trained.path,
        trunk=extractor.digest,
        prefix=planning.digest(trained.path.stored()),
        trained_with={"fingerprint": _tag(fingerprint), "polyhead": __version__, **fingerprint},
    )
    bundle.add_task(
        record,
        trained.arrays,
        scores={"splits": trained.scores, "tried": trained.tried, "history": _untimed(trained)},
        probes=probes_of(prepared),
        card=card_of(prepared, trained, extractor.data),
        replace=task.name in bundle.tasks,
    )


def _untimed(trained: Trained) -> list[dict[str, float]]:
    """The epochs without their seconds: what a bundle holds is the same for the same seed."""
    return [
        {name: value for name, value in row.items() if name != "seconds"} for row in trained.fitted.history
    ]


def _score_line(prepared: Prepared, trained: Trained) -> str:
    task = prepared.task
    metric = kind_of(task).default_metric(task)
    shown = ", ".join(f"{split} {metric} {scores[metric]:.4f}" for split, scores in trained.scores.items())
    pooler = f" ({trained.path.pool.positions} chosen of {', '.join(trained.tried)})" if trained.tried else ""
    fitted = trained.fitted
    epochs = f"best of {len(fitted.history)} epochs is {fitted.best_epoch}"
    return f"{task.name}: {shown}{pooler}, {epochs}, {duration(fitted.seconds)}"
