"""What the paper prints in tables 1, 3 and 4, as data, and the means and counts that follow from it, made anew."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from polyhead.values import Value
from studies.du2020.counts import Scheme, scheme_flops
from studies.du2020.table import Line, Printed, Table, table_of

Block = Literal["a", "b", "c", "d", "e"]


def blocks_of(tasks: int) -> dict[Block, str]:
    """What each block is, for so many tasks."""
    return {
        "a": "an encoder fine-tuned for each task",
        "b": "frozen encoder, pre-trained only",
        "c": f"frozen encoder that learned from the other {tasks - 1} tasks",
        "d": "frozen encoder that learned from the tasks of other groups",
        "e": f"encoder that learned from all {tasks} tasks, with the heads that it learned with",
    }


TASKS = (
    "MNLI",
    "QNLI",
    "QQP",
    "RTE",
    "SST-2",
    "MRPC",
    "CoLA",
    "IMDB",
    "AG News",
    "Amazon-5",
    "Amazon-2",
    "Yelp-5",
    "Yelp-2",
    "DBpedia",
)
BLOCKS = blocks_of(len(TASKS))
GROUPS: dict[str, tuple[str, ...]] = {
    "SA": ("SST-2", "IMDB", "Amazon-5", "Amazon-2", "Yelp-5", "Yelp-2"),
    "NLI": ("MNLI", "QNLI", "RTE"),
    "PP": ("QQP", "MRPC"),
    "DOC": ("AG News", "DBpedia"),
    "LA": ("CoLA",),
}
GROUP_WORDS = {"SA": "sentiment", "NLI": "inference", "PP": "paraphrase", "DOC": "documents", "LA": "acceptability"}


class Size(Value):
    """Rows of a task's data that have labels, and what table 1 says of them where it says otherwise."""

    task: str
    train: int
    evaluated: int  # the dev split, or the test split where there is no other
    printed_train: int | None = None
    printed_evaluated: int | None = None
    printed: bool = True  # whether table 1 has the task at all


SIZES = (
    Size(task="MNLI", train=392_702, evaluated=19_647),  # matched and mismatched
    Size(task="QNLI", train=104_743, evaluated=5_463),
    Size(task="QQP", train=363_849, evaluated=40_430, printed_evaluated=391_000),
    Size(task="RTE", train=2_490, evaluated=277, printed_evaluated=3_000),
    Size(task="SST-2", train=67_349, evaluated=872, printed_train=17_000, printed_evaluated=1_800),
    Size(task="MRPC", train=3_668, evaluated=408, printed_evaluated=1_700),
    Size(task="CoLA", train=8_551, evaluated=1_043),
    Size(task="IMDB", train=25_000, evaluated=25_000, printed=False),
    Size(task="AG News", train=120_000, evaluated=7_600),
    Size(task="Amazon-5", train=3_000_000, evaluated=650_000),
    Size(task="Amazon-2", train=3_600_000, evaluated=400_000),
    Size(task="Yelp-5", train=650_000, evaluated=50_000),
    Size(task="Yelp-2", train=560_000, evaluated=38_000),
    Size(task="DBpedia", train=560_000, evaluated=70_000),
)

# Table 4: block, row, accuracy of each task, their mean as printed. Rows are poolers as layers/positions: the last
# layer, the mean of several (AVG) or a learned mix of all (COMB); the first position (CLS), the mean of all (POSAVG)
# or attention (MHA).
ROWS: tuple[tuple[Block, str, tuple[float, ...], float], ...] = (
    ("a", "BERT", (86.6, 92.3, 91.3, 70.4, 93.2, 88.0, 83.1, 95.5, 94.8, 65.8, 97.4, 70.7, 98.1, 99.4), 87.6),
    ("a", "XLNet", (89.8, 93.9, 91.8, 83.8, 95.6, 89.2, 84.5, 96.2, 95.5, 67.7, 97.4, 70.7, 98.1, 99.4), 89.5),
    ("a", "DistilRoBERTa", (83.9, 91.0, 91.2, 67.2, 93.5, 88.0, 84.3, 94.4, 94.9, 66.3, 97.1, 70.5, 97.9, 99.3), 87.1),
    ("a", "RoBERTa", (90.3, 94.6, 92.3, 88.9, 96.7, 91.3, 86.3, 96.4, 95.4, 67.9, 97.6, 71.9, 98.4, 99.3), 90.5),
    (
        "a",
        "RoBERTa from leave-one-out encoder",
        (90.3, 94.6, 92.2, 89.9, 96.7, 92.1, 87.2, 96.6, 95.5, 68.0, 97.6, 72.2, 98.4, 99.3),
        90.7,
    ),
    ("b", "LAST/CLS", (55.7, 67.4, 67.4, 53.3, 84.0, 69.0, 69.1, 89.1, 91.0, 58.2, 94.6, 62.7, 96.2, 98.7), 75.5),
    ("b", "LAST/POSAVG", (56.7, 72.7, 80.3, 59.7, 88.1, 70.9, 75.0, 87.2, 91.5, 57.3, 93.7, 60.6, 95.0, 98.4), 77.7),
    ("b", "LAST/MHA", (75.7, 81.6, 86.0, 60.7, 92.5, 71.9, 80.3, 94.3, 94.1, 65.1, 96.9, 69.9, 98.0, 99.3), 83.3),
    ("b", "AVG/MHA", (83.1, 87.3, 88.1, 62.8, 94.3, 77.9, 82.7, 95.5, 94.4, 65.9, 97.2, 70.6, 98.2, 99.3), 85.5),
    ("b", "COMB/MHA", (83.4, 87.4, 88.1, 63.1, 94.4, 77.4, 82.5, 95.5, 94.5, 66.0, 97.2, 70.8, 98.2, 99.3), 85.6),
    ("c", "LAST/CLS", (76.2, 84.3, 84.7, 87.8, 94.0, 78.8, 76.4, 96.7, 90.7, 66.4, 97.6, 71.2, 98.7, 99.1), 85.9),
    ("c", "LAST/POSAVG", (76.3, 84.6, 84.7, 88.2, 93.8, 79.1, 77.1, 96.7, 91.1, 66.3, 97.6, 71.0, 98.7, 99.0), 86.0),
    ("c", "LAST/MHA", (79.8, 87.6, 86.2, 86.5, 94.1, 80.8, 77.2, 96.7, 93.2, 66.5, 97.6, 71.5, 98.7, 99.2), 86.8),
    ("c", "AVG/MHA", (86.6, 91.6, 88.7, 85.1, 96.0, 82.7, 82.4, 96.7, 94.4, 66.8, 97.6, 71.7, 98.7, 99.3), 88.4),
    ("c", "COMB/MHA", (87.0, 91.7, 88.8, 85.1, 96.1, 82.7, 82.3, 96.7, 94.4, 66.8, 97.6, 71.8, 98.7, 99.3), 88.5),
    ("c", "AVG/MHA u8", (86.7, 91.5, 88.6, 85.1, 96.0, 82.7, 82.6, 96.7, 94.4, 66.7, 97.6, 71.6, 98.7, 99.3), 88.4),
    ("c", "AVG/MHA 1bit", (85.5, 90.8, 88.2, 85.1, 95.8, 81.0, 81.3, 96.5, 93.9, 66.6, 97.6, 71.4, 98.7, 99.3), 88.0),
    ("d", "AVG/MHA", (85.2, 90.4, 88.7, 68.3, 94.3, 82.0, 82.4, 95.6, 94.2, 65.8, 97.2, 70.6, 98.2, 99.3), 86.6),
    ("e", "LAST/CLS", (89.3, 93.7, 89.6, 85.9, 94.8, 89.0, 82.6, 96.7, 95.1, 66.5, 97.5, 71.9, 98.6, 99.3), 89.3),
)
QUOTED = "as others print it, not run by the paper"
NOTES = {
    "BERT": QUOTED,
    "XLNet": QUOTED,
    "RoBERTa from leave-one-out encoder": "scores of more digits may have the average printed",
}
# Table 3 has the GFLOPs of one text for all 14 tasks, and the means of the groups.
SCHEMES_OF: dict[str, Scheme] = {
    "DistilRoBERTa": "distilled",
    "RoBERTa": "full",
    "RoBERTa from leave-one-out encoder": "full",
    "LAST/CLS": "frozen_first",
    "LAST/POSAVG": "frozen_first",  # sums do not count
    "LAST/MHA": "frozen_attention",
    "AVG/MHA": "frozen_attention",
    "AVG/MHA u8": "frozen_attention",
    "AVG/MHA 1bit": "frozen_attention",
    "COMB/MHA": "frozen_learned",
}
PRINTED_GFLOPS: dict[tuple[Block, str], float] = {
    ("a", "DistilRoBERTa"): 61,
    ("a", "RoBERTa"): 430,
    ("b", "LAST/CLS"): 31,
    ("b", "LAST/MHA"): 34,
    ("d", "AVG/MHA"): 31,  # attention poolers as in block c: 34
}
PRINTED_GROUPS: dict[tuple[Block, str], dict[str, float]] = {
    ("c", "AVG/MHA"): {"NLI": 87.8},
    ("d", "AVG/MHA"): {"NLI": 81.3},
}


def published_table1() -> tuple[Size, ...]:
    """Table 1: rows of each task, with what it prints otherwise."""
    return SIZES


def sizes_printed_otherwise() -> list[str]:
    """Each number of table 1 that is not the size of the data, with that."""
    lines = []
    for size in SIZES:
        if not size.printed:
            lines.append(f"{size.task}: not in the table, though the others have it")
        for what, rows, printed in (
            ("training", size.train, size.printed_train),
            ("evaluation", size.evaluated, size.printed_evaluated),
        ):
            if printed is not None:
                lines.append(f"{size.task}: {what} rows printed {printed:,}, in the data {rows:,}")
    return lines


def published_table4(blocks: Sequence[Block] = tuple(BLOCKS)) -> Table:
    """Tables 3 and 4, which have the same rows: accuracies by task, and means and GFLOPs counted anew."""
    lines = [_line(*row) for row in ROWS if row[0] in blocks]
    return table_of(TASKS, GROUPS, lines)


def _line(block: Block, name: str, scores: tuple[float, ...], average: float) -> Line:
    scheme = SCHEMES_OF.get(name)
    return Line(
        block=block,
        name=name,
        scores=scores,
        gflops=None if scheme is None else scheme_flops(scheme, len(TASKS)) / 1e9,
        printed=Printed(
            average=average, groups=PRINTED_GROUPS.get((block, name), {}), gflops=PRINTED_GFLOPS.get((block, name))
        ),
        note=NOTES.get(name, ""),
    )
