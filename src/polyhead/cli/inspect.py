"""`polyhead inspect`."""

from __future__ import annotations

import click

from polyhead.cli.output import Printer, json_option, table


@click.command("inspect")
@click.argument("bundle", type=click.Path(file_okay=False))
@click.option("--tokens", default=32, show_default=True, help="Length of the text that the costs are for.")
@click.option("--verify", is_flag=True, help="Hash every file and name one that was touched.")
@json_option
def command(bundle: str, tokens: int, verify: bool, json_to: str | None) -> None:
    """Show the plan of BUNDLE as a tree, its tasks with their scores, and what each costs."""
    from polyhead import cost
    from polyhead.bundle.read import Bundle
    from polyhead.plan import merge
    from polyhead.report.tree import tree

    printer = Printer(json_to)
    opened = Bundle.open(bundle)
    if verify:
        opened.verify()
    shape, plan = opened.architecture, merge({name: record.path for name, record in opened.tasks.items()})
    printer.line(
        f"bundle {bundle}: trunk {opened.trunk_name}, digest {opened.digest[:16]}, {len(opened.tasks)} tasks"
    )
    if verify:
        printer.line("every file is as it was written")
    printer.lines(["", *tree(plan)])
    rows: list[list[object]] = [
        [
            "task",
            "kind",
            "version",
            "metric",
            "test",
            "parameters",
            "part bytes",
            "MFLOP added",
            "of the pass",
        ]
    ]
    total = cost.cost_of(plan, shape, tokens)
    shared = total.flops - sum(cost.added(plan, name, shape, tokens).flops for name in opened.tasks)
    costs = {}
    for name, record in opened.tasks.items():
        added = cost.added(plan, name, shape, tokens)
        metric, score = opened.headline(name)
        value = "-" if score is None else f"{score:.4f}"
        share = f"{100 * added.flops / shared:.2f} %" if shared else "-"
        size = added.parameters * 4
        rows.append(
            [name, record.task.kind, opened.version(name), metric, value, f"{added.parameters:,}", f"{size:,}",
             f"{added.flops / 1e6:.2f}", share]
        )  # fmt: skip
        costs[name] = added
    printer.lines(["", *table(rows, left=4)])
    printer.line(
        f"\none text of {tokens} tokens, all tasks: {total.flops / 1e6:,.0f} MFLOP, "
        f"{total.layer_evaluations} layer evaluations, {total.parameters:,} parameters"
    )
    printer.json({"digest": opened.digest, "plan": plan, "total": total, "added": costs})
