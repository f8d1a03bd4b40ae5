"""What the trunks had learned from before any study: sets that are neither new to them nor held out.

minilm and mpnet (all-MiniLM-L6-v2, all-mpnet-base-v2) learned from the same 1.17 billion pairs, listed on their model
cards; both compare texts by the mean of their states, so their first position never learned to stand for a text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from polyhead.values import Value

IN, NEAR = "‡", "†"
MEANS = {IN: "the trunk learned from this set", NEAR: "the trunk learned from texts of its source"}
TRUNKS = ("minilm", "mpnet")


class Seen(Value):
    """Why a set is neither new nor held out."""

    mark: str
    why: str


# by the set's folder, without "glue_" and the like
SETS: Mapping[str, Seen] = {
    "mnli": Seen(mark=IN, why="AllNLI on the card is SNLI and MultiNLI"),
    "snli": Seen(mark=IN, why="AllNLI on the card is SNLI and MultiNLI"),
    "qqp": Seen(mark=IN, why="Quora Question Triplets on the card, of the same release of question pairs"),
    "squad_v1": Seen(mark=IN, why="SQuAD2.0 on the card, as many pairs as SQuAD 1.1 has training questions"),
    "qnli": Seen(mark=NEAR, why="made of SQuAD's questions and sentences"),
    "stsb": Seen(mark=NEAR, why="38 of its 1,379 test rows hold a text of SNLI"),
    "sick_nli": Seen(mark=NEAR, why="57 of its test rows hold a text of SNLI"),
    "sick_relatedness": Seen(mark=NEAR, why="57 of its test rows hold a text of SNLI"),
    "boolq": Seen(mark=NEAR, why="its questions were gathered as those of Natural Questions were"),
    "wnut17": Seen(mark=NEAR, why="its test texts are of Reddit and Stack Exchange, both on the card"),
    "hellaswag": Seen(mark=NEAR, why="a part of it is of WikiHow"),
}
_ALIASES = {"squad": "squad_v1", "sts-b": "stsb", "hellaswag_val": "hellaswag"}


def seen(name: str) -> Seen | None:
    """What a set is to the trunks, by its folder's name or its task's; None: new, as far as the cards tell."""
    plain = name.lower().removeprefix("glue_").removeprefix("superglue_")
    return SETS.get(_ALIASES.get(plain, plain))


def marked(name: str) -> str:
    """The name with its mark."""
    found = seen(name)
    return name if found is None else f"{name}{found.mark}"


def seen_lines(names: Iterable[str]) -> list[str]:
    """What the marks of a table's sets mean; empty without one."""
    marks = {found.mark for name in names if (found := seen(name)) is not None}
    lines = [
        f"{mark} {MEANS[mark]} before this study: it is neither new nor held out" for mark in MEANS if mark in marks
    ]
    return ["", *lines, "(studies/README.md)"] if lines else []


def seen_table() -> list[str]:
    """The sets with their marks, for the page."""
    rows = [f"| `{name}` | {one.mark} | {one.why} |" for name, one in SETS.items()]
    return ["| set | mark | why |", "|---|---|---|", *rows]
