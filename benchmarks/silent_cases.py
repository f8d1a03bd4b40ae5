"""Inputs that people have, kept beside the project: what `init` reads of each, against values worked by hand.

    python -m benchmarks.silent_cases

Each file is copied into a folder of its own, declared by the command line, and read as training reads it. Where the
right outcome is a refusal, its words count.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from polyhead.cli.main import main as polyhead
from polyhead.data.read import Examples, read
from polyhead.project.tables import read_project
from polyhead.tasks.task import Task
from polyhead.text.question import texts_of
from studies.results import Claim
from studies.settings import DATA, answer_help, command, report, say

CASES = DATA.parent / "cases"


class Declared(NamedTuple):
    """What `init` made of a file: its words and exit code, the task, and (text, gold) of every row that is used."""

    code: int
    words: str
    task: Any = None
    rows: tuple[tuple[Any, Any], ...] = ()

    @property
    def gold(self) -> list[Any]:
        return [gold for _, gold in self.rows]

    @property
    def kind(self) -> str:
        return "" if self.task is None else self.task.kind

    @property
    def labels(self) -> set[str]:
        return set() if self.task is None else set(self.task.labels)


def declared(file: Path, *options: str) -> Declared:
    """`polyhead init FILE`, and the rows of the task as training reads them."""
    with tempfile.TemporaryDirectory() as place:
        shutil.copy(file, Path(place, file.name))
        said, before, code = io.StringIO(), os.getcwd(), 0
        os.chdir(place)
        try:
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                polyhead(["init", file.name, *options])
        except SystemExit as end:
            code = int(end.code or 0)
        finally:
            os.chdir(before)
        if code:
            return Declared(code, said.getvalue())
        (entry,) = read_project(Path(place, "polyhead.toml")).tasks
        task = entry.task()
        examples = read(entry.source(entry.train, Path(place)), task)
        several = zip(examples.inputs, range(len(examples.inputs)), strict=True)
        return Declared(
            code, said.getvalue(), task, tuple((value, gold_of(task, examples, row)) for value, row in several)
        )


def gold_of(task: Task, examples: Examples, row: int) -> Any:
    """A label, a list of labels, (text, label) of spans or tagged words, or what is the answer of a question."""
    target = examples.targets[row]
    match task.kind:
        case "multi_label":
            return [label for label, has in zip(task.labels, target, strict=True) if has]
        case "single_label":
            return task.labels[int(target)]
        case "tagging" if examples.gold is not None:
            (text,) = texts_of(examples.inputs[row])
            return [(text[span.start : span.end], span.label) for span in examples.gold[row]]
        case "tagging":
            assert examples.words is not None
            (text,), tags = (
                texts_of(examples.inputs[row]),
                [task.labels[int(tag)] for tag in np.asarray(target).reshape(-1)],
            )
            words = [text[start:stop] for start, stop in examples.words[row].tolist()]
            return [pair for pair in zip(words, tags, strict=True) if pair[1] != "O"]
        case _:
            return target


class Case(NamedTuple):
    """A file, options of `init`, and whether what came of it is right."""

    file: str
    is_right: Callable[[Declared], bool]
    right: str
    options: tuple[str, ...] = ()


def labels_are(*labels: str) -> Callable[[Declared], bool]:
    return lambda made: made.kind == "single_label" and made.labels == set(labels)


def refused(*words: str) -> Callable[[Declared], bool]:
    return lambda made: made.code == 1 and all(word in made.words for word in words) and "/tmp" not in made.words


MOODS = ["good", "bad", "bad", "good", "bad", "good"]
PLACES = ["北京", "上海", "广州市", "深圳", "杭州", "成都"]
TAXONOMY = ("Hardware > Laptop", "Hardware > Other", "Software", "Software > Office", "Software > Other")


def is_mood(made: Declared) -> bool:
    return made.kind == "single_label" and made.gold == MOODS


def is_ner(made: Declared) -> bool:
    """24 sentences, each with a person first and a place fourth."""
    pairs = [[tag for _, tag in gold] for gold in made.gold]
    return made.kind == "tagging" and pairs == [["B-PER", "B-LOC"]] * 24


CASES_OF = (
    Case(
        "35-cjk-one/ner.jsonl",
        lambda made: made.kind == "tagging" and made.gold == [[(PLACES[i % 6], "LOC")] for i in range(30)],
        "places at the characters of the file",
    ),
    Case(
        "02-emoji-utf16/export.json",
        lambda made: made.gold[:3] == [[("annotation", "THING")], [("Oslo", "PLACE")], [("Bergen", "PLACE")]],
        "spans are what the export says that their text is",
    ),
    Case("23-taxonomy/export.json", labels_are(*TAXONOMY), "whole paths are labels", ("--label", "topic")),
    Case("23-taxonomy/paths.csv", labels_are(*TAXONOMY), "whole paths are labels"),
    Case(
        "17-prodigy/ner.jsonl",
        lambda made: (
            made.gold[:3] == [[("Ben", "PER"), ("Oslo", "LOC")], [("Ann", "PER")], []]
            and not any("Wrong" in str(value) for value, _ in made.rows)
            and "'reject'" in made.words
        ),
        "rejected rows are left out and counted, accepted ones without spans have none",
    ),
    Case(
        "17-prodigy/choice.jsonl",
        lambda made: (
            [sorted(gold) for gold in made.gold] == [["PRAISE"], ["DELIVERY", "PRAISE"], ["DELIVERY"], []]
            and "'reject'" in made.words
            and "'ignore'" in made.words
        ),
        "rejected and ignored rows are left out and counted",
    ),
    Case("10-codes/icd.csv", labels_are("007.1", "008.45", "038.11"), "codes are labels"),
    Case("10-codes/industry.csv", labels_are("01", "02", "12"), "codes are labels"),
    Case("10-codes/version.csv", labels_are("1.1", "1.10", "2.0"), "two spellings of one number are two labels"),
    Case(
        "21-classlabel/train-00000-of-00001.parquet",
        labels_are("World", "Sports", "Business", "Sci/Tech"),
        "classes have their names",
    ),
    Case("21-classlabel/cat.parquet", labels_are("biz", "sport"), "categories are labels"),
    Case("21-classlabel/ner.parquet", is_ner, "tags have their names"),
    Case("21-classlabel/ner_str.jsonl", is_ner, "`ner_tags` are tags of `tokens`"),
    Case(
        "19-squad/train-v2.0.json",
        lambda made: made.kind == "span" and len(made.rows) == 4 and made.task.null_answers,
        "nested questions are rows; one has no answer",
    ),
    *(
        Case(f"20-columns-json/{name}.json", is_mood, "a shape of pandas is read")
        for name in ("default", "records", "split", "table", "data")
    ),
    Case(
        "20-columns-json/splits.json",
        refused("several splits", "polyhead init train.json test.json"),
        "named with the way out",
    ),
    Case(
        "16-spacy-cats/cats.jsonl",
        lambda made: (
            made.kind == "multi_label"
            and [set(gold) for gold in made.gold[:2]] == [{"military"}, {"transport", "education"}]
            and made.gold[5] == []
        ),
        "`cats` are labels, none where all are 0",
    ),
    Case("15-nested/offers.jsonl", refused("offers.jsonl row 1", "overlaps = 'longest'", "'skip'"), "named by row"),
    Case(
        "15-nested/offers.jsonl",
        lambda made: made.gold[0] == [("EVERY 6 HOURS", "TIME")] and made.gold[1] == [("2 TIMES DAILY", "ORG")],
        "the longest of overlapping spans is kept",
        ("--overlaps", "longest"),
    ),
    Case(
        "15-nested/offers.jsonl",
        lambda made: len(made.rows) == 4 and "2 with overlapping spans, skipped" in made.words,
        "rows with overlapping spans are left out and counted",
        ("--overlaps", "skip"),
    ),
    Case("32-argilla/flat.jsonl", is_mood, "responses are labels"),
    Case("32-argilla/records.json", is_mood, "responses are labels"),
    Case("24-backslash-csv/mysql.csv", refused("mysql.csv row", "backslash"), "escapes are refused by row"),
    Case("29-decimal-comma/s.csv", refused("decimal comma"), "a decimal comma is named at the first try"),
)


def main() -> None:
    if not CASES.is_dir():
        raise SystemExit(f"no cases at {CASES}: set POLYHEAD_DATA to the folder of datasets beside them")
    rows = []
    for case in CASES_OF:
        made = declared(CASES / case.file, *case.options)
        try:
            is_right = case.is_right(made)
        except (IndexError, AttributeError):  # there are fewer rows, or there is no task
            is_right = False
        row = {"file": case.file, "options": " ".join(case.options), "right": case.right, "is_right": is_right}
        rows.append(row | {"kind": made.kind, "rows": len(made.rows)})
        say(str(rows[-1] if is_right else rows[-1] | {"said": made.words}))
    report("silent_cases", command=command(), rows=rows, claims=claims(rows), lacking=[])


def claims(rows: list[dict]) -> list[Claim]:
    """Every file is read as a person would, or refused with the way out."""
    right, wrong = sum(row["is_right"] for row in rows), [row["file"] for row in rows if not row["is_right"]]
    return [
        Claim(
            id="silent.cases",
            text="files of public bug reports that are read as their maker meant, or refused with what to do",
            target=len(rows),
            value=right,
            unit="files",
            holds=right == len(rows),
            note=f"Wrong: {', '.join(wrong)}." if wrong else "Thirteen kinds; values were worked by hand.",
        )
    ]


if __name__ == "__main__":
    answer_help(__doc__)
    main()
