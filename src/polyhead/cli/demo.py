"""`polyhead demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from polyhead.cli.output import Printer, json_option, table
from polyhead.text.tokenise import Input

MESSAGES = [
    "Hi, my AeroBrew kettle from order PH-20931 arrived yesterday with a cracked lid. Can Maria send me a new one?",
    "just wanted to say the desk lamp is lovely, thank you!",
    "You charged my card twice for order #48213!! Refund me today or I call my bank",
]
PAIR = ("How can I send these headphones back?", "I would like to return the headphones, what do I do?")


@click.command("demo")
@click.option("--folder", default="demo-bundle", show_default=True, help="Where to write the bundle.")
@json_option
def command(folder: str, json_to: str | None) -> None:
    """Check, train, evaluate and answer six tasks on the packaged sample, in one pass of one encoder.

    Works without a network once the packages are installed.
    """
    import importlib.resources

    import msgspec

    from polyhead.engine.evaluate import evaluate_bundle
    from polyhead.engine.session import Session
    from polyhead.project import read_project
    from polyhead.train.events import Events
    from polyhead.train.run import train_project

    printer, bundle = Printer(json_to), Path(folder).resolve()
    with importlib.resources.as_file(importlib.resources.files("polyhead.sample")) as sample:
        project = msgspec.structs.replace(read_project(sample / "polyhead.toml"), bundle=str(bundle))
        printer.lines(["1. Train six tasks on 300 customer-support messages, over one frozen encoder", ""])
        told = Events(say=printer.line, show=printer.show)
        outcome = train_project(project, folder=sample, events=told)
        printer.lines(["", "2. Evaluate on the whole test split, with live answers", ""])
        session = Session(bundle)
        scores = evaluate_bundle(session, project, folder=sample, show=printer.show)
        printer.show("")
        rows: list[list[object]] = [["task", "test rows", "metric", "score"]]
        rows += [[s.task, s.rows, s.metric, f"{s.scores[s.metric]:.3f}"] for s in scores]
        printer.lines(table(rows))
    printer.lines(["", "3. Answer all tasks of a message with one pass", ""])
    inputs: list[Input] = [*((message,) for message in MESSAGES), PAIR]
    results = session.predict(inputs)
    for text, result in zip(inputs, results, strict=True):
        printer.lines([*_shown(text, result), ""])
    printer.line(f"next: polyhead inspect {folder}    or    echo 'your text' | polyhead predict {folder}")
    printer.json({"training": outcome, "scores": scores, "answers": results})


def _shown(text: tuple[str, ...], result: Any) -> list[str]:
    lines = ["   " + "  +  ".join(text)]
    for task, answer in result.answers.items():
        lines.append(f"      {task:<14} {_answer(answer)}")
    receipt = result.receipt
    lines.append(
        f"      receipt: {receipt.passes} encoder pass{'es' if receipt.passes > 1 else ''}, "
        f"{receipt.layers} layers, {receipt.tokens} tokens, {len(result.answers)} tasks answered"
    )
    return lines


def _answer(answer: dict[str, Any]) -> str:
    if "label" in answer:
        return f"{answer['label']} ({answer['scores'][answer['label']]:.2f})"
    if "labels" in answer:
        return ", ".join(f"{name} ({answer['scores'][name]:.2f})" for name in answer["labels"]) or "none"
    if "value" in answer:
        return f"{answer['value']:.2f}"
    return (
        ", ".join(
            f"{span['label']}={span['text']!r} [{span['start']}:{span['end']}]" for span in answer["spans"]
        )
        or "none"
    )
