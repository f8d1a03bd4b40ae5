"""A task of strategy `branch`, from kept states to the candidate branches and the chosen one.

Trained branches are kept in the run's cache under their way of training, so that another choice needs no training.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path as FilePath

import msgspec
import numpy as np
from safetensors.numpy import load, save

from polyhead.deep.branch.run import Branches, DepthCandidate, TrainedBranch, grid, halving, seed_spread
from polyhead.deep.features import wanted_taps
from polyhead.encoder.data import arrays_digest
from polyhead.encoder.shape import Architecture
from polyhead.errors import ConfigError, TrainError
from polyhead.files import remove_leftovers, replace_file
from polyhead.plan import Path
from polyhead.plan.cost.allocate import AllocationOption, OptionsFile, best_under, by_rule, frontier, greedy, price_of
from polyhead.progress import counted
from polyhead.project.strategies.branch import as_branch, private_layers, tap_of
from polyhead.project.tables import AllocationRule
from polyhead.train.data.extract import Extractor
from polyhead.train.data.prepared import Prepared
from polyhead.train.data.source import FeatureRequest
from polyhead.train.events import Events
from polyhead.train.heads import selection_rule
from polyhead.train.heads.inputs import scaled
from polyhead.train.heads.temperature import best_scale
from polyhead.train.job import Trainer, extractor_of
from polyhead.train.record.draft import HeldOutRows, Trained
from polyhead.train.runs import SUFFIX, Fitted
from polyhead.values import from_json

KEPT = "branches.json"  # the list of a task's kept branches, next to them


class ChosenBranch(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate branch, already trained."""

    name: str
    path: Path
    fitted: Fitted
    arrays: str  # their digest


class BranchSearch(msgspec.Struct, frozen=True, kw_only=True):
    """All branches of one task: its teacher, others trained to the end in the search, students; and all candidates."""

    task: str
    kept: tuple[ChosenBranch, ...]
    candidates: tuple[DepthCandidate, ...] = ()

    def options(self) -> list[AllocationOption]:
        """The options of an allocation; scores are those of validation."""
        return [
            AllocationOption(
                task=self.task,
                name=branch.name,
                tap=tap_of(branch.path),
                layers=len(private_layers(branch.path)),
                score=100 * branch.fitted.score,
            )
            for branch in self.kept
        ]


class Branched(Trainer):
    """Trains every task's branches first, and then chooses between them; both are kept in the cache.

    `prepared` are all tasks of branches, including trained ones: their options are recorded, and under one budget the
    choice covers all.
    """

    order = 1

    def paths(self) -> dict[str, list[Path]]:
        """The path of every depth that each task tries.

        Raises ConfigError, before any training, for a budget that nothing can meet, whatever is learned.
        """
        paths = {p.task.name: branch_paths(p, extractor_of(self.job)) for p in self.prepared}
        if self.todo:
            check_affordable(self.prepared, paths, self.job.allocation, extractor_of(self.job).data.architecture)
        return paths

    def readers(self) -> Sequence[Prepared]:
        """Under one budget all tasks of branches, since the choice covers all."""
        return self.prepared if self.todo and self.job.allocation.rule == "budget" else self.todo

    def requests(self, prepared: Prepared, path: Path) -> list[FeatureRequest]:
        """The states at the path's tap."""
        return wanted_taps(prepared, path, extractor_of(self.job))

    def train(self) -> None:
        """Trains missing branches, records all options, and commits the chosen branches."""
        if not self.todo:
            return
        job, extractor = self.job, extractor_of(self.job)
        shape, precision = extractor.data.architecture, extractor.precision
        searches: dict[str, BranchSearch] = {}
        for p in self.prepared:
            name, folder = p.task.name, job.folder("branches", p)
            if name in job.todo or job.allocation.rule == "budget":
                searches[name] = grow(p, extractor, precision=precision, folder=folder, events=job.events)
                for line in grown_lines(searches[name]):
                    job.events.line(line)
            elif (known := kept_search(folder)) is not None:
                searches[name] = known
        others = {name for name, strategy in job.declared.items() if strategy.is_allocated}
        unsearched = others - {p.task.name for p in self.prepared}
        write_options(job.cache / "options.json", list(searches.values()), shape, unsearched)
        chosen = choose(list(searches.values()), job.allocation, shape)
        for p in self.todo:
            name, folder = p.task.name, job.folder("branches", p)
            trained = chosen_part(p, searches[name], chosen[name], extractor, precision=precision, folder=folder)
            job.commit([(p, trained)])


def check_affordable(
    prepared: Sequence[Prepared], paths: Mapping[str, Sequence[Path]], choice: AllocationRule, shape: Architecture
) -> None:
    """Raises ConfigError if the cheapest possible branches cost more than the budget."""
    if choice.rule != "budget" or choice.budget is None:
        return
    options = []
    for p in prepared:
        for path in paths[p.task.name]:
            deepest = len(private_layers(path))
            students = [layers for layers in as_branch(p.strategy).students if layers < deepest]
            options += [
                AllocationOption(
                    task=p.task.name, name=f"{tap_of(path)}-{layers}", tap=tap_of(path), layers=layers, score=0.0
                )
                for layers in (deepest, *students)
            ]
    least = frontier(options, price_of(choice.unit, shape))[0].cost
    if least > choice.budget:
        raise ConfigError(
            "no choice of branches can be within the budget, whatever is learned: nothing is trained",
            got=f"[allocation] budget = {choice.budget:,} ({choice.unit})",
            allowed=f"{least:,} or more",
            do="raise it, allow fewer private layers (least, most, students), or leave out a task",
        )


def depths_of(prepared: Prepared, shape: Architecture) -> list[int]:
    """The depths that a task's strategy tries; raises ConfigError if the trunk has no such depth."""
    strategy = as_branch(prepared.strategy)
    most = strategy.layers or strategy.most or max(strategy.least, shape.layers)
    least = strategy.layers or strategy.least
    if (strategy.tap or 0) + most > shape.layers:
        raise ConfigError(
            f"task '{prepared.task.name}': its branch is deeper than the trunk",
            got=f"{most} private layers" + (f" above tap {strategy.tap}" if strategy.tap is not None else ""),
            allowed=f"tap and layers together at most {shape.layers}",
        )
    return list(range(least, most + 1))


def grow(prepared: Prepared, extractor: Extractor, *, precision: str, folder: FilePath, events: Events) -> BranchSearch:
    """Trains the task's branches, or finds them in `folder`, where they are written once all are trained."""
    known = kept_search(folder)
    if known is not None:
        return known
    strategy = as_branch(prepared.strategy)
    branches = Branches(prepared, strategy, extractor, precision=precision, checkpoints=folder, events=events)
    depths, first = depths_of(prepared, extractor.data.architecture), prepared.training.seed
    seeds = range(first, first + strategy.seeds)
    candidates: tuple[DepthCandidate, ...] = ()
    others: tuple[TrainedBranch, ...] = ()
    if len(depths) == 1 and strategy.seeds == 1:
        teacher = branches.teacher(depths[0])
    else:
        find = halving if strategy.search == "halving" else grid
        result = find(branches, depths, seeds)
        teacher, candidates = result.best, result.candidates
        others = tuple(branch for branch in result.ended if branch.layers != teacher.layers)
    grown = {"teacher": teacher} | {f"branch-{branch.layers}": branch for branch in others}
    for layers in strategy.students:
        if layers < teacher.layers:
            students = (branches.student(teacher, layers, seed=seed) for seed in seeds)
            grown[f"student-{layers}"] = max(students, key=lambda student: student.fitted.score)
        else:
            reason = f"no student of {layers} layers: the teacher has {teacher.layers}"
            events.line(f"{prepared.task.name}: {reason}")
    search = BranchSearch(
        task=prepared.task.name,
        kept=tuple(
            ChosenBranch(name=name, path=branch.path, fitted=branch.fitted, arrays=arrays_digest(branch.arrays))
            for name, branch in grown.items()
        ),
        candidates=candidates,
    )
    _write(folder, search, grown)
    for checkpoint in folder.glob(f"*{SUFFIX}"):
        checkpoint.unlink(missing_ok=True)
    return search


def kept_search(folder: FilePath) -> BranchSearch | None:
    """The branches that `grow` left in `folder`, None if it is unfinished; raises TrainError if they are damaged."""
    file = folder / KEPT
    return _read(file) if file.exists() else None


def branch_paths(prepared: Prepared, extractor: Extractor) -> list[Path]:
    """The path of every depth that the task's strategy tries, the shortest branch first."""
    branches = Branches(prepared, as_branch(prepared.strategy), extractor, precision=extractor.precision)
    return [branches.path(layers) for layers in depths_of(prepared, extractor.data.architecture)]


def grown_lines(search: BranchSearch) -> list[str]:
    """Lines about a task's search: its branches and their validation scores."""
    depths = [
        f"{counted(layers, 'layer')} {of['max']:.4f}"
        + (f" (mean {of['mean']:.4f}, median {of['median']:.4f}, spread {of['spread']:.4f})" if many_seeds else "")
        for many_seeds in [len({branch.seed for branch in search.candidates}) > 1]
        for layers, of in seed_spread(search.candidates).items()
    ]
    searched = [f"{search.task}: depths searched: {', '.join(depths)}"] if depths else []
    branches = ", ".join(
        f"{branch.name} ({counted(len(private_layers(branch.path)), 'layer')} above tap {tap_of(branch.path)}) "
        f"{branch.fitted.score:.4f}"
        for branch in search.kept
    )
    return [*searched, f"{search.task}: {branches}, on validation"]


def write_options(
    file: FilePath, searches: Sequence[BranchSearch], shape: Architecture, unsearched: Collection[str] = ()
) -> None:
    """Writes every candidate branch in the form of `polyhead allocate`; for tasks in `unsearched`, as in the file."""
    options = tuple(option for search in searches for option in search.options())
    if unsearched and file.exists():
        with suppress(ConfigError):  # it is written again
            before = from_json(file.read_bytes(), OptionsFile, source=str(file))
            options += tuple(option for option in before.options if option.task in unsearched and before.trunk == shape)
    with _writing(f"cannot write what `polyhead allocate` reads, {file}"):
        file.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(file.parent, of=file.name)
        replace_file(file, msgspec.json.encode(OptionsFile(options=options, trunk=shape)))


def choose(
    searches: Sequence[BranchSearch], choice: AllocationRule, shape: Architecture
) -> dict[str, AllocationOption]:
    """The branch of each task that the project's `[allocation]` selects."""
    options = [option for search in searches for option in search.options()]
    if choice.rule == "budget":
        assert choice.budget is not None
        try:
            return best_under(options, choice.budget, price_of(choice.unit, shape)).chosen
        except ConfigError as error:
            again = "all branches are kept, so with a larger budget the same command trains nothing again"
            raise ConfigError(error.what, got=error.got, allowed=error.allowed, do=f"{error.do}; {again}") from None
    return (greedy if choice.rule == "greedy" else by_rule)(options, choice.c)


def chosen_part(
    prepared: Prepared,
    search: BranchSearch,
    option: AllocationOption,
    extractor: Extractor,
    *,
    precision: str,
    folder: FilePath,
) -> Trained:
    """The chosen branch with its scores; only this branch reads the test split, once."""
    kept = next(branch for branch in search.kept if branch.name == option.name)
    file = folder / f"{kept.name}.safetensors"
    arrays = _arrays(file)
    if arrays_digest(arrays) != kept.arrays:
        raise _damaged(file, "its bytes are not those that were written")
    branches = Branches(prepared, as_branch(prepared.strategy), extractor, precision=precision)
    grown = branches.restored(kept.path, arrays)
    outputs = {split.name: branches.outputs(grown, split) for split in prepared.splits[1:]}
    scale = best_scale(prepared.task, outputs["validation"], prepared.validation.examples.taught)
    outputs = {name: [row * np.float32(scale) for row in rows] for name, rows in outputs.items()}
    prepared = selection_rule.deciding(prepared, outputs["validation"])
    tried = {branch.name: branch.fitted.score for branch in search.kept}
    for branch in search.candidates:
        tried[f"{branch.layers} layers, seed {branch.seed}, {branch.epochs} epochs"] = branch.score
    return Trained(
        path=kept.path,
        arrays=scaled(arrays, scale),
        scores=prepared.scores(outputs),
        fitted=kept.fitted,
        tried=tried if len(tried) > 1 else {},
        held=HeldOutRows(examples=prepared.validation.examples, outputs=outputs["validation"]),
        task=prepared.task,
        scale=scale,
    )


def _write(folder: FilePath, search: BranchSearch, grown: Mapping[str, TrainedBranch]) -> None:
    """Writes the parts first, and their list last: after a kill training resumes from checkpoints."""
    with _writing(f"cannot keep the trained branches of task '{search.task}' in {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        remove_leftovers(folder)
        for name, branch in grown.items():
            replace_file(folder / f"{name}.safetensors", save(branch.arrays))
        replace_file(folder / KEPT, msgspec.json.encode(search))


@contextmanager
def _writing(failed: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise TrainError(failed, got=error.strerror, do="free some disk space and run the same command again") from None


def _read(file: FilePath) -> BranchSearch:
    try:
        return msgspec.json.decode(file.read_bytes(), type=BranchSearch)
    except msgspec.MsgspecError as error:
        raise _damaged(file, error) from None


def _arrays(file: FilePath) -> dict[str, np.ndarray]:
    try:
        return dict(load(file.read_bytes()))
    except Exception as error:  # the library raises its own error for a truncated file
        raise _damaged(file, error) from None


def _damaged(file: FilePath, error: object) -> TrainError:
    return TrainError(
        f"the kept branch {file} cannot be read", got=error, do=f"delete {file.parent}; its task then trains anew"
    )
