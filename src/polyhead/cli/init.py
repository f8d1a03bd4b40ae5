"""`polyhead init`."""

from __future__ import annotations

from pathlib import Path

import click

from polyhead.cli.output import Printer, json_option


@click.command("init")
@click.argument("data", type=click.Path(dir_okay=False))
@click.option("--task", "name", help="Name of the task (default: the file's name).")
@click.option(
    "--kind", type=click.Choice(["single_label", "multi_label", "regression", "tagging"]), required=True
)
@click.option("--text", default="text", show_default=True, help="Column of the text.")
@click.option("--text-b", help="Column of the second text, for pairs.")
@click.option("--label", help="Column of the label (tagging: of the tags).")
@click.option("--tokens", help="Column of the tokens, for tagging.")
@click.option("--spans", help="Column of labelled spans, for tagging.")
@click.option("--test", type=click.Path(dir_okay=False), help="File of the reported split.")
@click.option(
    "--output", "-o", default="polyhead.toml", show_default=True, help="Where to write the project file."
)
@json_option
def command(
    data: str,
    name: str | None,
    kind: str,
    text: str,
    text_b: str | None,
    label: str | None,
    tokens: str | None,
    spans: str | None,
    test: str | None,
    output: str,
    json_to: str | None,
) -> None:
    """Write a project file for DATA (JSONL, CSV, TSV or Parquet): the labels found are listed in it, for you to check.

    An existing file gets the task added at its end.
    """
    from polyhead.cli.declare import declared, project_text
    from polyhead.errors import ConfigError
    from polyhead.project import read_project

    printer, target = Printer(json_to), Path(output)
    entry = declared(
        Path(data), target.resolve().parent, name=name, kind=kind, text=text, text_b=text_b, label=label,
        tokens=tokens, spans=spans, test=test,
    )  # fmt: skip
    before = target.read_text(encoding="utf-8") if target.exists() else ""
    if before and entry["name"] in [known.name for known in read_project(target).tasks]:
        raise ConfigError(
            f"{output} declares a task '{entry['name']}' already", do="give --task another name"
        )
    after = (
        before.rstrip() + "\n\n" + project_text(entry, is_first=False)
        if before
        else project_text(entry, is_first=True)
    )
    temporary = target.with_name(target.name + ".tmp")
    temporary.write_text(after, encoding="utf-8")
    try:
        read_project(temporary)
    except Exception:
        temporary.unlink()
        raise
    temporary.replace(target)
    printer.line(f"{output}: task '{entry['name']}' ({kind})")
    for key in ("labels", "range"):
        if key in entry:
            printer.line(
                f"{key}: {entry[key]}  (found in {data}; check their order and that none is missing)"
            )
    printer.line(f"next: polyhead train {output}")
    printer.json({"file": output, "task": entry})
