"""Settings of a task as arguments of `Model.fit`: keys of a `[[tasks]]` table, whose sub-tables may be dicts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec

from polyhead.data.columns import Columns
from polyhead.errors import ConfigError, suggestion
from polyhead.project.generation import DecoderChoice
from polyhead.project.names import MEANT, other_name
from polyhead.project.recipes import Training
from polyhead.project.strategies import Strategy
from polyhead.project.tables import TaskEntry
from polyhead.values import Value, to_value

OTHERWISE = ("name", "kind", "labels", "train", "validation", "test")  # separate arguments
COLUMNS = set(Columns.__struct_fields__) - {"empty", "overlaps", "separator"}
SETTINGS = tuple(name for name in TaskEntry.__struct_fields__ if name not in {*OTHERWISE, *COLUMNS})


class Tables(Value):
    """The settings that are tables."""

    strategy: Strategy | None = None
    training: Training | None = None
    generation: DecoderChoice | None = None

    meant: ClassVar[Mapping[str, str]] = MEANT


def settings_of(task: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings, with dicts and a strategy's name converted to values; `effort` and `minutes` are of training.

    Raises ConfigError for an unknown setting, with the name that was probably intended.
    """
    if tried := {name: settings[name] for name in ("effort", "minutes") if name in settings}:
        others = {name: value for name, value in settings.items() if name not in tried}
        training = others.pop("training", None) or {}
        table = msgspec.structs.asdict(training) if isinstance(training, Training) else dict(training)
        return settings_of(task, others | {"training": table | tried})
    for name in settings:
        if name not in SETTINGS:
            problem, do = f"task '{task}' has no setting '{name}'", _meant(name) or suggestion(name, SETTINGS)
            raise ConfigError(problem, got=settings[name], allowed=SETTINGS, do=do)
    spelled = {name: value for name, value in settings.items() if name in Tables.__struct_fields__}
    if isinstance(spelled.get("strategy"), str):
        spelled["strategy"] = {"kind": spelled["strategy"]}
    spelled = {name: dict(value) for name, value in spelled.items() if isinstance(value, Mapping)}
    if not spelled:
        return dict(settings)
    read = to_value(spelled, Tables, source=f"task '{task}'")
    return {**settings, **{name: getattr(read, name) for name in spelled}}


def _meant(name: str) -> str | None:
    """Advice for a name that other libraries use for one of these settings; None for an unknown name."""
    key = "training." + name if name in Training.__struct_fields__ else MEANT.get(other_name(name), "")
    table, _, setting = key.rpartition(".")
    if table == "training":
        return f"give training={{'{setting}': ...}}" + ("" if setting == name else f": {setting} is meant by {name}")
    if key == "tasks.labels":
        return f"give classes=: it is meant by {name}"
    if table == "tasks" and setting in (*SETTINGS, "kind", "text", "text_b", "test", "validation"):
        return f"give {setting}=: it is meant by {name}"
    return None
