"""What the paper prints in tables 1 and 3 to 6, as data, with what follows from it counted anew.

Figures 1 to 3 are drawings without numbers; what they draw is here. Appendix A.2, the hyper-parameters, is an empty
heading in the paper.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from polyhead.values import Value
from studies.aghajanyan2021.table import Line, Table, before_and_after, table_of

FamilyName = Literal["classification", "commonsense", "reading comprehension", "summarization"]

# Appendix A.1. Its heading "SuperGLUE" is none of them; MultiNLI is MNLI again.
DATASETS: dict[FamilyName, tuple[str, ...]] = {
    "classification": (
        *("CoLA", "SST-2", "MRPC", "QQP", "MNLI", "QNLI", "RTE", "WNLI"),
        *("BoolQ", "MultiRC", "WiC", "WSC", "CB", "COPA"),
        *("AG News", "IMDB", "MultiNLI", "SNLI", "HANS", "Rotten Tomatoes", "Yelp Polarity"),
        *("ERASER MultiRC", "WikiQA", "TREC", "SciTail"),
    ),
    "summarization": ("CNN/DailyMail", "BillSum", "XSum", "AESLC", "Multi-News"),
    "commonsense": (
        *("MathQA", "OpenBookQA", "SWAG", "HellaSwag", "RACE", "CommonsenseQA"),
        *("CosmosQA", "ARC-Easy", "ARC-Challenge", "SciQ"),
    ),
    "reading comprehension": (*("SQuAD", "Natural Questions", "DROP", "ReCoRD", "HotpotQA", "TriviaQA"),),
}


class Family(Value):
    """Tasks of one kind: how many sets, and their rows in thousands."""

    name: FamilyName
    sets: int
    train: int
    evaluated: int
    printed_evaluated: int | None = None  # where table 1 says otherwise


FAMILIES = (
    Family(name="classification", sets=26, train=2_900, evaluated=188),
    Family(name="commonsense", sets=10, train=360, evaluated=49),
    Family(name="reading comprehension", sets=6, train=1_050, evaluated=123, printed_evaluated=123_000),
    Family(name="summarization", sets=4, train=524, evaluated=30),
)

# Table 3, dev scores before and after; SQuAD has one number
SENTENCES = ("MNLI", "QQP", "RTE", "QNLI", "MRPC", "SST-2", "SQuAD")
TABLE3 = {
    "RoBERTa-base": ((87.6, 91.9, 78.7, 92.8, 90.2, 94.8, 82.6), (88.1, 91.9, 87.8, 93.3, 91.7, 96.7, 86.6)),
    "RoBERTa-large": ((90.2, 92.2, 88.1, 94.7, 90.9, 96.4, 88.7), (90.8, 92.2, 92.8, 94.9, 91.4, 97.4, 89.4)),
    "BART": ((89.9, 92.5, 87.0, 94.9, 90.4, 96.6, None), (89.9, 92.7, 92.4, 94.6, 92.2, 96.9, None)),
}
# Table 4, of BART with summaries: ROUGE-1, -2 and -L of each set
CHOICES = ("BoolQ", "CommonsenseQA", "HellaSwag", "OpenBookQA")
SUMMARIES = ("CNN/DailyMail", "Gigaword", "Reddit TIFU")
TABLE4 = {
    "RoBERTa-base": ((82.0, 66.2, 65.1, 63.8), (83.8, 69.4, 69.0, 64.6)),
    "RoBERTa-large": ((86.4, 78.1, 83.4, 73.6), (87.5, 79.2, 86.4, 74.4)),
    "BART": ((86.2, 78.1, 84.1, 71.4), (86.9, 74.8, 75.9, 70.8)),
}
TABLE4_ROUGE = (
    (44.16, 21.28, 40.90, 39.29, 20.09, 35.65, 24.19, 8.12, 21.31),
    (44.45, 21.25, 41.4, 40.40, 20.54, 36.21, 30.30, 11.25, 24.92),
)
# Table 5, tasks of sets that pre-finetuning did not have
UNSEEN = ("Hyperpartisan", "chunking", "parsing", "part of speech")
UNSEEN_SUMMARIES = ("arXiv", "PubMed", "BigPatent")
TABLE5 = {
    "RoBERTa-base": ((84.2, 93.4, 95.1, 93.7), (85.8, 95.5, 94.5, 93.2)),
    "RoBERTa-large": ((90.4, 95.1, 94.5, 93.4), (92.5, 96.9, 95.7, 97.9)),
    "BART": ((85.1, 92.1, 91.1, 91.8), (87.2, 96.1, 94.5, 97.2)),
}
TABLE5_ROUGE = (
    (41.20, 9.20, 32.45, 39.87, 16.43, 35.56, 48.54, 29.35, 39.42),
    (43.90, 14.50, 40.10, 45.13, 19.80, 39.90, 52.34, 33.50, 42.80),
)
# Table 6, ANLI by what is trained on: S and M are SNLI and MNLI, F is FEVER, A1 to A3 the rounds of ANLI
ROUNDS = ("A1", "A2", "A3", "all")
ROUND_ROWS = {"A1": 1000, "A2": 1000, "A3": 1200}  # Nie et al. 2020, of dev and of test
TABLE6 = {
    "S, M": ((47.6, 25.4, 22.1, 31.1), (49.9, 28.2, 24.2, 33.3)),
    "S, M, F": ((54.0, 24.2, 22.4, 32.8), (55.2, 26.8, 24.6, 33.9)),
    "S, M, F, A1": ((68.7, 19.3, 22.0, 35.8), (70.9, 22.5, 25.1, 36.7)),
    "S, M, F, A1, A2": ((71.2, 44.3, 20.4, 43.7), (74.3, 48.2, 22.8, 45.9)),
    "S, M, F, A1, A2, A3": ((73.8, 48.9, 44.4, 53.7), (76.9, 52.3, 44.2, 56.9)),
}
# Figures 1 and 2: RoBERTa-base pre-finetuned on nested sets (0: not at all), then on one of these tasks
FIGURE1_SETS = (0, 10, 16, 22, 28, 34, 40, 46)  # the steps between 10 and 40 are read off the drawing
FIGURE_TASKS = ("RTE", "BoolQ", "RACE", "SQuAD", "MNLI")
BATCHINGS = ("dataset homogeneous", "batch homogeneous", "heterogeneous")


def published_table1() -> tuple[Family, ...]:
    """Table 1: sets and rows of each family."""
    return FAMILIES


def families_printed_otherwise() -> list[str]:
    """Each number of table 1 and appendix A.1 that does not fit the others."""
    lines = []
    for family in FAMILIES:
        listed = len(DATASETS[family.name])
        if listed != family.sets:
            lines.append(f"{family.name}: {family.sets} sets in table 1, {listed} in appendix A.1")
        if family.printed_evaluated is not None:
            lines.append(
                f"{family.name}: evaluation rows printed {family.printed_evaluated // 1000} million, "
                f"{family.evaluated} thousand make the total"
            )
    return lines


def published_table3() -> Table:
    """Table 3: sentence prediction and SQuAD, dev scores."""
    metrics = ("accuracy",) * (len(SENTENCES) - 1) + ("",)  # of SQuAD one number, of which two is not said
    return table_of(SENTENCES, metrics, _pairs(TABLE3))


def published_table4() -> Table:
    """Table 4: commonsense by every model, summaries by BART."""
    notes = ("BART is worse at all three commonsense tasks after pre-finetuning; the paper does not say why",)
    return _with_summaries(CHOICES, ("accuracy",) * 4, SUMMARIES, TABLE4, TABLE4_ROUGE, notes)


def published_table5() -> Table:
    """Table 5: tasks of other sets than those of pre-finetuning."""
    return _with_summaries(UNSEEN, ("accuracy", "F1", "F1", "accuracy"), UNSEEN_SUMMARIES, TABLE5, TABLE5_ROUGE)


def published_table6() -> Table:
    """Table 6: ANLI by training sets; `all` counted anew as the mean over the rows of the rounds."""
    return table_of(ROUNDS, ("accuracy",) * 4, _pairs(TABLE6), means={"all": ROUND_ROWS})


_Scores = tuple[float | None, ...]


def _pairs(rows: Mapping[str, tuple[_Scores, _Scores]]) -> list[Line]:
    return [line for name, (before, after) in rows.items() for line in before_and_after(name, before, after)]


def _with_summaries(
    columns: Sequence[str],
    metrics: Sequence[str],
    summaries: Sequence[str],
    rows: Mapping[str, tuple[_Scores, _Scores]],
    rouge: tuple[_Scores, _Scores],
    notes: Sequence[str] = (),
) -> Table:
    """Only BART writes summaries: three ROUGE numbers a set."""
    none: _Scores = (None,) * len(rouge[0])
    wider = {
        name: tuple((*scores, *(more if name == "BART" else none)) for scores, more in zip(pair, rouge, strict=True))
        for name, pair in rows.items()
    }
    kinds = ("ROUGE-1", "ROUGE-2", "ROUGE-L")
    return table_of(
        (*columns, *(f"{name} {kind}" for name in summaries for kind in kinds)),
        (*metrics, *kinds * len(summaries)),
        _pairs({name: (pair[0], pair[1]) for name, pair in wider.items()}),
        notes=notes,
    )
