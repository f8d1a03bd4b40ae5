"""Polyhead: one shared encoder, every text task.

    from polyhead import Model
    model = Model("minilm").fit("topics", texts, labels)
    model.predict(["where is my parcel?"])

The names below are the public ones; they are loaded when first used, so that importing this package is cheap and
needs no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from polyhead._version import __version__ as __version__

_HOMES = {
    "Bundle": "polyhead.bundle.read",
    "CalibrationChoice": "polyhead.tasks.calibration",
    "Codec": "polyhead.plan",
    "DataFile": "polyhead.project.tables",
    "Model": "polyhead.api.model",
    "Passage": "polyhead.engine.inputs",
    "Path": "polyhead.plan",
    "Plan": "polyhead.plan",
    "PolyheadClassifier": "polyhead.api.estimators",
    "PolyheadError": "polyhead.errors",
    "PolyheadRegressor": "polyhead.api.estimators",
    "Project": "polyhead.project.tables",
    "Question": "polyhead.text.question",
    "Result": "polyhead.engine.session",
    "Session": "polyhead.engine.session",
    "SessionSet": "polyhead.engine.several",
    "Task": "polyhead.tasks.task",
    "TaskEntry": "polyhead.project.tables",
    "cost_of": "polyhead.plan.cost",
    "load_trunk": "polyhead.project.pretrained",
    "merge": "polyhead.plan",
    "read_project": "polyhead.project.tables",
}

__all__ = sorted([*_HOMES, "train_project"])

if TYPE_CHECKING:  # `as`: names that a type checker lets others import
    from collections.abc import Mapping
    from pathlib import Path as FilePath

    from polyhead.api.estimators import PolyheadClassifier as PolyheadClassifier
    from polyhead.api.estimators import PolyheadRegressor as PolyheadRegressor
    from polyhead.api.model import Model as Model
    from polyhead.bundle.read import Bundle as Bundle
    from polyhead.engine.inputs import Passage as Passage
    from polyhead.engine.session import Result as Result
    from polyhead.engine.session import Session as Session
    from polyhead.engine.several import SessionSet as SessionSet
    from polyhead.errors import PolyheadError as PolyheadError
    from polyhead.plan import Codec as Codec
    from polyhead.plan import Path as Path
    from polyhead.plan import Plan as Plan
    from polyhead.plan import merge as merge
    from polyhead.plan.cost import cost_of as cost_of
    from polyhead.project.pretrained import load_trunk as load_trunk
    from polyhead.project.tables import DataFile as DataFile
    from polyhead.project.tables import Project as Project
    from polyhead.project.tables import TaskEntry as TaskEntry
    from polyhead.project.tables import read_project as read_project
    from polyhead.tasks.calibration import CalibrationChoice as CalibrationChoice
    from polyhead.tasks.task import Task as Task
    from polyhead.text.question import Question as Question
    from polyhead.train.events import Events
    from polyhead.train.training import TrainingResult


def train_project(
    project: Project,
    *,
    folder: FilePath | str,
    cache: FilePath | str | None = None,
    events: Events | None = None,
    only: tuple[str, ...] = (),
    retrain: tuple[str, ...] = (),
    if_better: bool = False,
    allow_lost_labels: bool = False,
    data: Mapping[str, Mapping[str, Any]] | None = None,
) -> TrainingResult:
    """Trains every declared task over the frozen trunk, and says on standard error how far it is.

    `data` holds rows in memory, task -> split -> a list of dicts or a frame, in place of files. `events` says
    otherwise: `polyhead.train.events.Events()` is silent. See `polyhead.train.run.train_project`.
    """
    import sys
    from contextlib import ExitStack
    from pathlib import Path as FilePath

    from polyhead.progress import counted, progress_display
    from polyhead.project.tables import Project

    with ExitStack() as held:
        display = held.enter_context(progress_display(sys.stderr if events is None else None))
        if isinstance(project, Project):  # anything else is refused below
            several = counted(len(project.tasks), "task")
            display.line(f"training {several} into {FilePath(str(folder), str(project.bundle))}")
        from polyhead.api.rows import with_data
        from polyhead.train.events import Events
        from polyhead.train.run import train_project as train

        return train(
            project if data is None else held.enter_context(with_data(project, data)),
            folder=folder,
            cache=cache,
            events=events or Events(say=display.line, show=display.show),
            only=only,
            retrain=retrain,
            if_better=if_better,
            allow_lost_labels=allow_lost_labels,
        )


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"polyhead has no public name '{name}'; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(_HOMES[name]), name)
