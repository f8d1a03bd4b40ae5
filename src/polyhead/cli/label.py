"""`polyhead label`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from polyhead.check.active_learning import LabelFile, rows_with_text
from polyhead.cli.command import OutputFile, option, verb
from polyhead.cli.options import Column, File, OptionalFolder, Output, comma_names
from polyhead.cli.output import Printer, check_apart, counted, number, stoppable, write_rows
from polyhead.data.guess_texts import TEXTS
from polyhead.data.rows import first_columns
from polyhead.errors import ConfigError, EmptyData
from polyhead.project.tables import TrunkChoice

if TYPE_CHECKING:
    from polyhead.train.heads.active_learning import Labelling

SKIP, QUIT = "s", "q"


@verb("label")
def command(
    data: str = option(type=click.Path(dir_okay=False)),
    *,
    labels: str = option("The labels to choose from, with commas between them.", metavar="NAMES", required=True),
    text: Column = option("Column of the text [default: text, sentence, message, ...]."),
    label: Column = option("Column of labels that DATA has already; its empty cells are open."),
    output: str = option(
        "File of the labels (.jsonl).", "labelled.jsonl", "--output", "-o", metavar="FILE", type=OutputFile(".jsonl")
    ),
    answers: File = option("Take labels from this file, which --ask wrote and you filled in."),
    ask: Output = option(
        "Write the next texts to FILE (.csv or .jsonl), and ask nothing here.", type=OutputFile(".csv", ".jsonl")
    ),
    count: int = option("Texts until it learns again.", 10, ge=1),
    trunk: str = option("Encoder, as in a project file.", "minilm"),
    max_tokens: int | None = option("Tokens of a text that the encoder reads.", ge=8),
    cache: OptionalFolder = option("Folder for features [default: OUTPUT-cache]."),
    seed: int = option("Seed of the choice.", 1),
    printer: Printer,
) -> Any:
    """Label the texts of DATA that teach most, one after the other; a head learns again after every few.

    \b
    polyhead label texts.csv --labels good,bad                              in the terminal
    polyhead label texts.csv --labels good,bad --ask next.csv               the next texts as a file
    polyhead label texts.csv --labels good,bad --answers next.csv           your labels back

    All texts are encoded once. At first typical texts are chosen, then those whose answer is unsure, of each sort one.
    An answer is the number of a label, its name, s to skip or q to stop; each is written to OUTPUT at once, and the
    same command goes on from there. After each round you see how often heads are right on labels that they did not
    learn from. OUTPUT is a file that `polyhead init` and `polyhead train` read.
    """
    from polyhead.train.heads.active_learning import Labelling

    names = _names(labels)
    check_apart((output, ask, printer.json_to), {Path(data): "the texts"})
    texts = rows_with_text(data, text or _text_column(data), label)
    if not texts:
        raise EmptyData(f"{data} has no text to label", do="give a file with texts in its text column; see --text")
    labelling = Labelling(texts, names, LabelFile(Path(output)), answers=answers)
    labelling.encode(TrunkChoice(name=trunk, max_tokens=max_tokens), Path(cache or f"{output}-cache"), printer.show)
    if labelling.unread:
        printer.line(
            f"{len(labelling.texts):,} of {len(texts):,} texts are read, {labelling.counts().total():,} of "
            f"{len(labelling.known):,} labelled ones among them: the limit of what is read at once, on any machine"
        )
    _learn(labelling, printer, seed)
    if unwritten := len(labelling.unwritten):
        are = "is learned from here, and is" if unwritten == 1 else "are learned from here, and are"
        printer.line(f"{counted(unwritten, 'label')} of {data} {are} not in {output}")
    if ask is not None:
        rows = [{"row": each.row, "text": each.text, "label": ""} for each in labelling.chosen(count, seed=seed)]
        write_rows(ask, ("row", "text", "label"), rows)
        printer.line(f"{counted(len(rows), 'text')} in {ask}: fill in 'label', then give it with --answers")
    elif answers is None:
        with stoppable(f"the labels so far are in {output}"):
            _ask(labelling, printer, count, seed)
    return {"labelled": len(labelling.known), "texts": len(texts), "curve": labelling.curve, "output": output}


def _names(labels: str) -> tuple[str, ...]:
    names = comma_names(labels)
    if len(names) < 2:
        raise click.BadParameter("give two labels or more, with commas between them", param_hint="'--labels'")
    if taken := [name for name in names if name in (SKIP, QUIT) or name.isdecimal()]:
        problem = f"an answer {', '.join(taken)} would mean something else: s skips, q stops, a number chooses"
        raise click.BadParameter(problem, param_hint="'--labels'")
    return names


def _text_column(data: str) -> str:
    columns = first_columns(data)
    column = next((name for name in TEXTS if name in columns), None)
    if column is None:
        raise ConfigError(f"no column of {data} looks like the text", got=list(columns), do="name it with --text")
    return column


def _learn(labelling: Labelling, printer: Printer, seed: int) -> None:
    """Learns from all labels, and prints the next point of the curve."""
    counts, point = labelling.counts(), labelling.learn(seed=seed)
    learned = counted(counts.total(), "label")
    if point is None:
        printer.line(f"{learned}: a head learns from two different ones or more")
        return
    ((most, _),) = counts.most_common(1)
    bar = "#" * round(40 * (point.accuracy or 0))
    right = f"{number(point.accuracy, '.1%')} right (always '{most}': {point.constant:.1%}) {bar}"
    printer.line(f"{learned}: {right}".rstrip())
    if few := [name for name in labelling.names if counts[name] < 2]:
        printer.line(f"no right answer can be shown of a label with fewer than two texts: {', '.join(few)}")


def _ask(labelling: Labelling, printer: Printer, count: int, seed: int) -> None:
    """Asks for labels until nothing is left or the user stops."""
    options = "  ".join(f"{place} {name}" for place, name in enumerate(labelling.names, start=1))
    while chosen := labelling.chosen(count, seed=seed):
        for each in chosen:
            printer.lines(["", each.text])
            answer = _answer(f"{options}  s skip  q stop: ", labelling.names)
            if answer == QUIT:
                _learn(labelling, printer, seed)
                return
            if answer == SKIP:
                labelling.skipped.add(each.row)
            else:
                labelling.add(each, answer)
        _learn(labelling, printer, seed)
    printer.line(f"every text{' that was read' if labelling.unread else ''} is labelled or skipped")


def _answer(prompt: str, names: Sequence[str]) -> str:
    while True:
        click.echo(prompt, nl=False, err=True)
        line = sys.stdin.readline()
        reply = line.strip()
        if not line or reply == QUIT:
            return QUIT
        if reply.isdecimal() and 1 <= int(reply) <= len(names):
            return names[int(reply) - 1]
        if reply in names or reply == SKIP:
            return reply
        click.echo(f"give a number from 1 to {len(names)}, a label, s or q", err=True)
