"""`polyhead label`."""

from __future__ import annotations

import csv
import io
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec
import numpy as np

from polyhead.cli.command import OutputFile, option, verb
from polyhead.cli.options import Column, File, OptionalFolder, Output
from polyhead.cli.output import Printer, check_apart, counted, number, stoppable, writing_file
from polyhead.data.guess_kind import SINGLE_LABEL
from polyhead.data.guess_texts import TEXTS
from polyhead.data.rows import first_columns
from polyhead.errors import ConfigError, EmptyData
from polyhead.project.tables import Project, TaskEntry, TrunkChoice
from polyhead.values import Value

if TYPE_CHECKING:
    from polyhead.check.labelling import LabelFile, Text
    from polyhead.deep.heads.held_out import FewLabels, FewLabelsFit

SKIP, QUIT = "s", "q"


class LearningPoint(Value):
    """One point of the learning curve."""

    labels: int
    accuracy: float | None  # of five folds
    constant: float  # of always answering the label that most texts have


@verb("label")
def command(
    data: str = option(type=click.Path(dir_okay=False)),
    *,
    labels: str = option("The labels to choose from, with commas between them.", metavar="NAMES", required=True),
    text: Column = option("Column of the text [default: text, sentence, message, ...]."),
    label: Column = option("Column of labels that DATA has already; its empty cells are open."),
    output: str = option("File of the labels.", "labelled.jsonl", "--output", "-o", metavar="FILE", type=OutputFile()),
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
    from polyhead.check.labelling import LabelFile, answers_in, rows_with_text

    names = _names(labels)
    check_apart((output, ask, printer.json_to), {Path(data): "the texts"})
    texts = rows_with_text(data, text or _text_column(data), label)
    if not texts:
        raise EmptyData(f"{data} has no text to label", do="give a file with texts in its text column; see --text")
    by_row = {each.row: each.text for each in texts}
    file = LabelFile(Path(output))
    known = {each.row: each.label for each in texts if each.label in names} | file.read(by_row, names)
    for row, name in answers_in(answers, by_row, names) if answers else ():
        if known.get(row) != name:
            file.add(row, by_row[row], name)
            known[row] = name
    place = Path(cache) if cache else Path(f"{output}-cache")
    head = _encoded(texts, names, TrunkChoice(name=trunk, max_tokens=max_tokens), place, printer)
    session = _Labelling(texts, names, known, head, file, printer, count=count, seed=seed)
    session.learn()
    if ask is not None:
        chosen = session.chosen()
        _write_asked(ask, chosen)
        printer.line(f"{counted(len(chosen), 'text')} in {ask}: fill in 'label', then give it with --answers")
    elif answers is None:
        with stoppable(f"the labels so far are in {output}"):
            session.ask()
    return {"labelled": len(session.known), "texts": len(texts), "curve": session.curve, "output": output}


def _names(labels: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in labels.split(",") if name.strip()))
    if len(names) < 2:
        raise click.BadParameter("give two labels or more, with commas between them", param_hint="'--labels'")
    if taken := [name for name in names if name in (SKIP, QUIT) or name.isdigit()]:
        what = f"an answer {', '.join(taken)} would mean something else: s skips, q stops, a number chooses"
        raise click.BadParameter(what, param_hint="'--labels'")
    return names


def _text_column(data: str) -> str:
    there = first_columns(data)
    column = next((name for name in TEXTS if name in there), None)
    if column is None:
        raise ConfigError(f"no column of {data} looks like the text", got=list(there), do="name it with --text")
    return column


def _encoded(
    texts: Sequence[Text], names: Sequence[str], trunk: TrunkChoice, cache: Path, printer: Printer
) -> FewLabels:
    """Every text as a linear head reads it."""
    from polyhead.data.read import Examples, ReadReport
    from polyhead.deep.heads.held_out import FewLabels, features_for, linear_inputs, whole_of, words_prior
    from polyhead.train.events import Events

    entry = TaskEntry(name="label", kind=SINGLE_LABEL, labels=tuple(names), train="")
    project = Project(tasks=(entry,), trunk=trunk)
    examples = Examples(
        inputs=[(each.text,) for each in texts],
        targets=[np.zeros((), np.int64)] * len(texts),
        words=None,
        rows=[each.row for each in texts],
        report=ReadReport(rows=len(texts), used=len(texts)),
    )
    prepared = whole_of(project, entry, entry.task(), examples)
    printer.show(f"opening {trunk.name}")
    source = features_for(project, Path.cwd(), cache=cache.resolve())
    inputs = linear_inputs(prepared, source, Events(show=printer.show))
    prior = words_prior(prepared, source) if all(any(map(str.isalpha, name)) for name in names) else None
    return FewLabels(inputs.values, len(names), prior)


class _Labelling:
    """The labels so far, the head that learned from them, and the conversation."""

    def __init__(
        self,
        texts: Sequence[Text],
        names: Sequence[str],
        known: dict[int, Any],
        head: FewLabels,
        file: LabelFile,
        printer: Printer,
        *,
        count: int,
        seed: int,
    ) -> None:
        self.texts, self.names, self.known, self.head, self.file = texts, names, known, head, file
        self.printer, self.count, self.seed, self.curve = printer, count, seed, list[LearningPoint]()
        self.skipped = set[int]()
        self.learned: FewLabelsFit | None = None

    def learn(self) -> None:
        """Learns from all labels, and prints the next point of the curve."""
        rows = [index for index, each in enumerate(self.texts) if each.row in self.known]
        labels = [self.names.index(self.known[self.texts[index].row]) for index in rows]
        if len(set(labels)) < 2:
            self.printer.line(f"{counted(len(rows), 'label')}: a head learns from two different ones or more")
            return
        self.learned = self.head.learn(rows, labels, seed=self.seed)
        most, times = Counter(labels).most_common(1)[0]
        self.curve.append(LearningPoint(labels=len(rows), accuracy=self.learned.accuracy, constant=times / len(rows)))
        bar = "#" * round(40 * (self.learned.accuracy or 0))
        always = f"(always '{self.names[most]}': {times / len(rows):.1%})"
        right = f"{number(self.learned.accuracy, '.1%')} right {always} {bar}"
        self.printer.line(f"{counted(len(rows), 'label')}: {right}".rstrip())
        if few := [name for place, name in enumerate(self.names) if labels.count(place) < 2]:
            self.printer.line(f"no right answer can be shown of a label with fewer than two texts: {', '.join(few)}")

    def chosen(self) -> list[Text]:
        """The next texts to label."""
        from polyhead.check.labelling import first_texts, next_texts

        done = np.array([each.row in self.known or each.row in self.skipped for each in self.texts])
        generator = np.random.default_rng([self.seed, len(self.known)])
        values = self.head.values
        if self.learned is None:
            left = np.flatnonzero(~done)
            picked = [int(left[i]) for i in first_texts(values[left], self.count, generator)] if len(left) else []
        else:
            picked = next_texts(values, self.learned.probabilities, done, self.count, generator)
        return [self.texts[index] for index in picked]

    def ask(self) -> None:
        """Asks for labels until nothing is left or the user stops."""
        options = "  ".join(f"{place} {name}" for place, name in enumerate(self.names, start=1))
        while chosen := self.chosen():
            for each in chosen:
                self.printer.line()
                self.printer.line(each.text)
                answer = self._answer(f"{options}  s skip  q stop: ")
                if answer == QUIT:
                    self.learn()
                    return
                if answer == SKIP:
                    self.skipped.add(each.row)
                    continue
                self.file.add(each.row, each.text, answer)
                self.known[each.row] = answer
            self.learn()
        self.printer.line("every text is labelled or skipped")

    def _answer(self, prompt: str) -> str:
        while True:
            click.echo(prompt, nl=False, err=True)
            line = sys.stdin.readline()
            given = line.strip()
            if not line or given == QUIT:
                return QUIT
            if given.isdigit() and 1 <= int(given) <= len(self.names):
                return self.names[int(given) - 1]
            if given in self.names or given == SKIP:
                return given
            click.echo(f"give a number from 1 to {len(self.names)}, a label, s or q", err=True)


def _write_asked(path: str, chosen: Sequence[Text]) -> None:
    rows = [{"row": each.row, "text": each.text, "label": ""} for each in chosen]
    with writing_file(path) as file:
        if path.lower().endswith(".jsonl"):
            file.writelines(msgspec.json.encode(row) + b"\n" for row in rows)
            return
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, ["row", "text", "label"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        file.write(text.getvalue().encode("utf-8", "replace"))
