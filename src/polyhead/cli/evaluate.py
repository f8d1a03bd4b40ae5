"""`polyhead evaluate`."""

from __future__ import annotations

from pathlib import Path

import click

from polyhead.cli.output import Printer, json_option, table


@click.command("evaluate")
@click.argument("project", type=click.Path(dir_okay=False), default="polyhead.toml")
@click.option("--task", "tasks", multiple=True, help="Evaluate this task only; may be repeated.")
@click.option("--bundle", help="Read this bundle instead of the project's.")
@click.option("--split", type=click.Choice(["test", "validation"]), default="test", show_default=True)
@click.option("--backend", default="torch", show_default=True, help="torch or reference.")
@json_option
def command(
    project: str, tasks: tuple[str, ...], bundle: str | None, split: str, backend: str, json_to: str | None
) -> None:
    """Score the bundle of PROJECT on whole splits, with live answers of the bundle (no kept features).

    Tasks without a test split are scored on their validation split, and the table says so.
    """
    from polyhead.engine.evaluate import evaluate_bundle
    from polyhead.engine.session import Session
    from polyhead.project import read_project

    printer = Printer(json_to)
    plan, folder = read_project(project), Path(project).resolve().parent
    session = Session(bundle or folder / plan.bundle, backend=backend)
    found = evaluate_bundle(session, plan, folder=folder, split=split, only=tasks, show=printer.show)
    printer.show("")
    rows: list[list[object]] = [["task", "split", "rows", "metric", "score", "other metrics"]]
    for score in found:
        others = ", ".join(f"{n} {v:.4f}" for n, v in score.scores.items() if n != score.metric)
        rows.append(
            [score.task, score.split, score.rows, score.metric, f"{score.scores[score.metric]:.4f}", others]
        )
    printer.lines(table(rows, left=2))
    printer.json({"backend": session.backend.name, "precision": session.backend.precision, "scores": found})
