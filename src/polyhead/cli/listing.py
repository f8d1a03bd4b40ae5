"""The tasks of a bundle as rows of a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from polyhead.cli.output import in_bytes, table

if TYPE_CHECKING:
    from polyhead.bundle.models import Models
    from polyhead.bundle.read import Bundle
    from polyhead.tasks.task import Task


def task_row(bundle: Bundle, name: str) -> dict[str, Any]:
    """The row of a task that reads the trunk."""
    from polyhead.plan import TRUNK

    record = bundle.tasks[name]
    own = [node for node in record.path.layers if node.weights != TRUNK]
    folder = bundle.root / "tasks" / name / bundle.version(name)
    return {
        **_row(bundle, name, record.task),
        "tap": max((node.stop for node in record.path.layers if node.weights == TRUNK), default=0),
        "own_layers": sum(node.stop - node.start for node in own),
        "bytes": sum(file.stat().st_size for file in folder.iterdir() if file.is_file()),
        "probes": len(bundle.probes(name)),
        "team": record.trained_with.get("team"),
    }


def model_row(models: Models, name: str) -> dict[str, Any]:
    """The row of a task that owns its model: all of its layers are its own."""
    return {
        **_row(models, name, models.record(name).task),
        "tap": None,
        "own_layers": None,
        "bytes": models.size(name),
        "probes": len(models.probes(name)),
        "team": None,
    }


def _row(bundle: Bundle | Models, name: str, task: Task) -> dict[str, Any]:
    metric, score = bundle.headline(name)
    return {
        "kind": task.kind,
        "labels": task.labels,
        "version": bundle.version(name),
        "pinned": bundle.lines[name].pinned,
        "versions": bundle.versions(name),
        "metric": metric,
        "score": score,
    }


def shown_version(version: str, pinned: bool) -> str:
    """`v0001`, or `v0001 (pinned)` where a person went back to it."""
    return f"{version} (pinned)" if pinned else version


def removed_lines(bundle: Bundle, models: Models) -> list[str]:
    """A line where tasks that training made were removed since."""
    names = [*bundle.removed, *models.removed]
    return [f"removed, so that `train` leaves them: {', '.join(names)}"] if names else []


def listed(tasks: dict[str, dict[str, Any]]) -> list[str]:
    """The rows as a table."""
    names = ("task", "kind", "metric", "live", "versions", "labels", "score", "tap", "own layers", "size")
    heading: list[object] = [*names]
    has_team = any(row["team"] for row in tasks.values())
    rows = [heading + (["team"] if has_team else [])]
    for name, row in tasks.items():
        score = "-" if row["score"] is None else f"{row['score']:.4f}"
        live = shown_version(row["version"], row["pinned"])
        cells: list[object] = [name, row["kind"], row["metric"], live, len(row["versions"])]
        depths = ["-" if row[key] is None else row[key] for key in ("tap", "own_layers")]
        cells += [len(row["labels"]) or "-", score, *depths, in_bytes(row["bytes"])]
        rows.append(cells + ([row["team"] or "-"] if has_team else []))
    return table(rows, left=4)
