"""`polyhead advise`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from polyhead.cli.command import option, verb
from polyhead.cli.options import File, OptionalFolder, names_of, trunk_name
from polyhead.cli.output import Printer, check_apart, check_writable, text_table, writing_file
from polyhead.project.tables import data_files
from polyhead.train.events import Events

if TYPE_CHECKING:
    from polyhead.advise.choice import Advice, Budget


@verb("advise", again="the same command goes on from there")
def command(
    project: str = option(default="polyhead.toml", type=click.Path(dir_okay=False)),
    *,
    layers: int | None = option("Layers that may run on one text, for all tasks together.", ge=1),
    ms: float | None = option("Milliseconds that one text may take here.", gt=0),
    size: float | None = option("Bytes of weights (float32), the encoder's included.", "--bytes", ge=1),
    minutes: float | None = option("Minutes of work to spend: what would take longer is left out.", gt=0),
    epochs: int | None = option("Passes at most where layers run as they learn.", ge=1),
    trunks: tuple[str, ...] = option(
        "Other encoders to choose from, with commas between them.", "--trunk", metavar="NAMES", callback=names_of
    ),
    frozen: bool = option("Try no encoder that learns, to which all tasks would be bound."),
    output: File = option("The project file to write; by default NAME-advised.toml."),
    folder: OptionalFolder = option(
        "Folder for features, states and trained parts; by default NAME-advise, next to the project file."
    ),
    printer: Printer,
) -> Any:
    """Choose a way of sharing for each task of PROJECT (polyhead.toml) within a budget, from its own data.

    Tries pooled heads on kept features, branches of every depth by successive halving on kept states, and an encoder
    that learns with all tasks. Prints the choice for each task, why, what the next better one would cost, and whether
    more labels would help more than more layers. Then writes a project file for `polyhead train`.

    With --trunk each task's default is tried over every encoder first. The rest stands on the one that is taken: over
    which all tasks gain, or which is worth its work.

    Choices are made on validation rows; the test split is not looked at to choose. Without a budget a layer must be
    worth one point. Give at most one of --layers, --ms and --bytes. `polyhead allocate` chooses depths from scores that
    you have already.
    """
    import msgspec

    from polyhead.advise.sharing_ways import read_task_set
    from polyhead.advise.trunks import advised

    file = Path(project).resolve()
    target = Path(output).resolve() if output else file.with_name(f"{file.stem}-advised.toml")
    check_writable(str(target))
    tasks = read_task_set(project)
    check_apart((str(target),), data_files(tasks.project, file.parent))
    home = Path(folder).resolve() if folder else file.with_name(f"{file.stem}-advise")
    budget = budget_of(layers, ms, size)
    budget = msgspec.structs.replace(budget, minutes=minutes, epochs=epochs, frozen=frozen)
    names = [trunk_name(name, file.parent) for name in trunks]
    ladder, advice = advised(tasks, home, budget, Events(say=printer.line, show=printer.show), trunks=names)
    with writing_file(str(target)) as out:
        out.write(ladder.project_text(advice, f"{target.stem}-bundle").encode())
    printer.lines(["", *advice_lines(advice), "", f"project file: {target}"])
    return advice


def budget_of(layers: int | None, ms: float | None, size: float | None) -> Budget:
    """The budget of one amount, or of none; raises click.UsageError for several."""
    from polyhead.advise.choice import Budget, Unit

    by_unit: dict[Unit, float | None] = {"layers": layers, "ms": ms, "bytes": size}
    amounts = [(unit, amount) for unit, amount in by_unit.items() if amount is not None]
    if len(amounts) > 1:
        raise click.UsageError("give one of --layers, --ms and --bytes")
    return Budget(amount=amounts[0][1], unit=amounts[0][0]) if amounts else Budget()


def advice_lines(advice: Advice) -> list[str]:
    """The choices, their cost, and what would be better."""
    from polyhead.advise.choice import UNITS

    lines = list[str]()
    if advice.trunks:
        names = list(advice.tasks)
        head = ["encoder", *names, "mean", "MFLOP a text", "layers"]
        trials = [
            [t.name, *(f"{t.tasks[name]:.2f}" for name in names), f"{t.score:.2f}", f"{t.flops / 1e6:,.0f}", t.layers]
            for t in advice.trunks
        ]
        lines += [*text_table([head, *trials]), "", *advice.why_trunk, ""]
    rows = [["task", "choice", "points"], *([n, t.chosen, f"{t.score:.2f}"] for n, t in advice.tasks.items())]
    unit = UNITS[advice.unit]
    within = "" if advice.budget is None else f" of {advice.budget:,g}"
    lines += [
        *text_table(rows, left=2),
        "",
        f"mean {advice.score:.2f} points on validation, {advice.cost:,g}{within} {unit}",
    ]
    for name, task in advice.tasks.items():
        lines += ["", f"{name}: {task.chosen}, since {task.why}"]
        lines += [f"  {task.says}"] if task.says else []
    better = "no choice that was tried is better"
    if (step := advice.next) is not None:
        changes = ", ".join(f"{task} {name}" for task, name in step.changes.items()) or "another choice"
        better = f"next better: {changes}: {step.score:.2f} points for {step.cost:,g} {unit} more"
    lines += ["", better, f"when a task is added, what is retrained: {advice.retrained}"]
    return lines + [f"not tried: {reason}" for reason in advice.left_out]
