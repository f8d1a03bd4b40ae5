"""`polyhead train`: a project file becomes one or several bundles; finished work is never repeated."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache as cached
from functools import partial
from pathlib import Path as FilePath

import msgspec

from polyhead.arguments import typed
from polyhead.encoder.data import TrunkData
from polyhead.errors import ConfigError, UnknownTask
from polyhead.project.encoders import unread_line
from polyhead.project.recipes import Donors, FineTune, Frozen, Joint, LeaveOut
from polyhead.project.tables import Project, check_strategies, strategy_of
from polyhead.train.data.encoder import load_any_trunk
from polyhead.train.data.prepare import prepare, with_decoders
from polyhead.train.data.stored import StoredScores, known_trunk
from polyhead.train.data.task_groups import check_budget, check_whole_groups
from polyhead.train.events import Events
from polyhead.train.job import FrozenTrunk, donors
from polyhead.train.record.lines import codec_lines, effort_lines
from polyhead.train.record.report import report_file, write_report
from polyhead.train.record.selection import TrainOptions
from polyhead.train.runs import ProcessRank, deep
from polyhead.train.training import BundleTraining, TrainingResult, TrainingRun, UsedStore

REPLACING = ("frozen", "donors")  # recipes that give tasks of a bundle new versions, over an unchanged trunk


@typed
def train_project(
    project: Project,
    *,
    folder: FilePath | str,
    cache: FilePath | str | None = None,
    events: Events | None = None,
    place: ProcessRank | None = None,
    only: tuple[str, ...] = (),
    retrain: tuple[str, ...] = (),
    if_better: bool = False,
    allow_lost_labels: bool = False,
    features: FilePath | str | None = None,
    actor: str = "",
    report: bool = False,
) -> TrainingResult:
    """Trains the declared tasks according to the project's recipe, and writes each bundle as soon as possible.

    `folder` is the base of relative paths. Features and checkpoints are kept in `cache` (default: next to the bundle),
    so an interrupted run resumes, and another task over the same texts encodes nothing. Foreseeable errors come before
    any training. Certificates name the `actor`. `report` writes a page of answers to held-out rows beside the bundle.

    Over a frozen trunk, rolled back or removed tasks stay so except those in `retrain`, which are trained in any case;
    with `if_better` a live version stays unless the new one scores better on the same rows. If labels of a live version
    have no row now, BundleError is raised unless `allow_lost_labels` permits it. A bundle whose trunk is trained is
    trained once. With several processes each calls this with its `place`; the first one writes and reports, and all
    return its outcome. Raises ConfigError for options that the recipe cannot use, UnknownTask for names that the
    project does not have.

    With `features`, the location of a corpus store, a frozen trunk's features come from there, no text is encoded, and
    tasks use the store's codec unless they name one. The trunk is then that of the bundle, if it exists. Raises
    StoreError for a store of another trunk or codec, and for one that lacks texts of the tasks.
    """
    folder, place = FilePath(folder), place or ProcessRank()
    options = TrainOptions(retrain=retrain, if_better=if_better, allow_lost_labels=allow_lost_labels, actor=actor)
    _check(project, place, only, options, from_store=features is not None)
    root = (folder / project.bundle).resolve()
    stored = None if features is None else StoredScores(str(features))
    prepared = prepare(_read(project, only), folder, stored=stored)
    load: Callable[[], TrunkData] = partial(load_any_trunk, project, folder)
    if features is None:
        load, store = cached(load), None
        prepared = with_decoders(prepared, load())
    else:
        store = UsedStore(location=str(features), facts=known_trunk(project, folder, root) or load().facts)
    run = TrainingRun(
        project=project,
        prepared=prepared,
        load=load,
        store=store,
        folder=folder,
        root=root,
        cache=FilePath(cache) if cache else root.with_name(root.name + "-cache"),
        events=events or Events(),
        place=place,
        only=only,
        options=options,
    )
    _tell(run)
    outcome = _bundle_training(run).train()
    return _with_report(run, outcome) if report and place.is_first else outcome


def _tell(run: TrainingRun) -> None:
    """How hard it tries, and which texts the encoder does not know."""
    chosen = [p for p in run.prepared if not run.only or p.task.name in run.only]
    if run.store is None:
        data = run.load()
        inputs = {p.task.name: p.train.examples.inputs for p in chosen}
        if line := unread_line(inputs, data.tokenizer, data.name):
            run.events.line(line)
    recipe = str(run.project.recipe.__struct_config__.tag)
    for line in (*effort_lines(chosen, recipe), *codec_lines(chosen, recipe)):
        run.events.line(line)


def _with_report(run: TrainingRun, outcome: TrainingResult) -> TrainingResult:
    """The outcome with the page of answers to rows held out, which is written where something was trained."""
    file = report_file(run.root)
    if not file.is_file() or outcome.trained or outcome.bundles or outcome.taught:
        if write_report(run) is None:
            return outcome
        run.events.line(f"report: {file}")
    return msgspec.structs.replace(outcome, report=str(file))


def _bundle_training(run: TrainingRun) -> BundleTraining:
    """The training that the project's recipe describes."""
    recipe = run.project.recipe
    chosen = [p for p in run.prepared if not run.only or p.task.name in run.only]
    of_recipe = f"recipe '{recipe.__struct_config__.tag}'"
    training: BundleTraining
    match recipe:
        case Frozen():
            training = FrozenTrunk(run, chosen)
        case Donors():
            training = donors(run)
        case Joint():
            training = deep("recipes.joint:LearnsTogether", of_recipe)(run, recipe, run.prepared)
        case LeaveOut():
            training = deep("recipes.leave_out:leaving_out", of_recipe)(run, recipe)
        case FineTune():
            training = deep("recipes.fine_tune:fine_tuning", of_recipe)(run, recipe, chosen)
    return training


def _read(project: Project, only: tuple[str, ...]) -> Project:
    """The project with the tasks whose files are read: only those to train, if nothing binds them to the others."""
    if not only or not isinstance(project.recipe, Frozen):
        return project
    check_budget(project, only)
    check_whole_groups({entry.name: strategy_of(project, entry) for entry in project.tasks}, only)
    if project.donors is not None:  # held out together, as for the donors
        return project
    return msgspec.structs.replace(project, tasks=tuple(entry for entry in project.tasks if entry.name in only))


def _check(
    project: Project, place: ProcessRank, only: tuple[str, ...], options: TrainOptions, *, from_store: bool
) -> None:
    """Raises ConfigError for options and settings without use, UnknownTask for names that are not in the project."""
    check_strategies(project)
    kind, names = str(project.recipe.__struct_config__.tag), [entry.name for entry in project.tasks]
    if place.world > 1 and kind != "joint":
        raise ConfigError(
            "several processes are for the joint recipe",
            got=f"recipe '{kind}'",
            do="start `polyhead train` by itself, or set recipe.kind = 'joint'",
        )
    if kind == "joint" and only:
        raise ConfigError(
            "a joint recipe trains all tasks of its project together",
            got=f"--tasks {','.join(only)}",
            do="leave --tasks out, or give those tasks a project file of their own",
        )
    if (options.retrain or options.if_better or options.allow_lost_labels) and kind not in REPLACING:
        raise ConfigError(
            "--retrain, --if-better and --allow-lost-labels are for recipes that replace tasks of a bundle one by one",
            got=f"recipe '{kind}', by which a bundle is trained once",
            allowed=list(REPLACING),
            do="leave them out; another bundle name trains anew",
        )
    if unknown := sorted(set(only) - set(names)):
        raise UnknownTask("the project declares no such task", got=unknown, allowed=names)
    options.check(names, only)
    if from_store and kind != "frozen":
        raise ConfigError(
            "features of a store are those of a frozen trunk", got=f"recipe '{kind}'", do="train without --features"
        )
