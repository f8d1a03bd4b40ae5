"""What the paper prints, as data, and the counts that follow from it, made anew.

Tables 1, 2 and 5; figure 2 is a drawing without numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

from polyhead.plan.cost.allocate import AllocationOption, allocation_of, best_under, by_rule, greedy
from studies.shared.tables import mean
from studies.wei2021.table import FULL, ONE_A_LAYER, Line, Printed, Table, table_of

TASKS = ("QNLI", "RTE", "QQP", "MNLI", "SST-2", "MRPC", "CoLA", "STS-B")
LAYERS = 12
WHOLE = LAYERS * len(TASKS)  # evaluated by one fine-tuned encoder a task
CANDIDATES = range(4, 11)  # depths that a teacher may have
COSTS = (1.0, 2.0, 3.0)
TEACHER = "teacher"

# Table 1: layers fine-tuned -> dev score, the largest of 5 seeds
DEPTHS = {
    1: (85.9, 60.3, 86.1, 77.1, 91.6, 77.2, 38.7, 84.8),
    2: (88.3, 63.5, 88.3, 80.8, 91.9, 80.6, 40.0, 86.1),
    3: (89.9, 65.3, 89.0, 82.5, 91.2, 84.6, 45.3, 87.3),
    4: (90.7, 69.0, 89.7, 83.3, 92.0, 84.3, 48.6, 88.2),
    5: (91.0, 71.5, 90.1, 84.0, 92.2, 89.7, 51.3, 88.3),
    6: (91.2, 71.1, 90.3, 84.2, 93.1, 86.8, 53.1, 86.4),
    7: (91.3, 70.0, 90.5, 83.9, 93.0, 87.5, 51.5, 88.6),
    8: (91.5, 70.8, 90.6, 84.5, 92.8, 88.0, 55.2, 88.9),
    9: (91.6, 70.8, 90.7, 84.0, 92.5, 87.7, 54.7, 88.8),
    10: (91.7, 69.7, 91.1, 84.5, 93.0, 87.3, 55.0, 88.7),
    11: (91.7, 70.4, 91.1, 84.5, 93.1, 88.2, 54.7, 89.1),
    12: (91.6, 69.7, 91.1, 84.6, 93.4, 88.2, 54.7, 88.8),
}
# Table 2: private layers of a student -> dev score
STUDENTS = {
    1: (86.4, 66.1, 91.0, 77.5, 90.7, 85.1, 36.4, 88.3),
    2: (88.6, 64.6, 91.3, 81.7, 92.7, 86.3, 44.0, 88.6),
    3: (90.2, 66.8, 91.2, 82.9, 92.7, 88.0, 50.0, 88.9),
}
# Table 2, rows of others: scores, average as printed, layers
OTHERS: dict[str, tuple[tuple[float | None, ...], float | None, int | None]] = {
    FULL: (DEPTHS[12], 82.8, 96),
    "DistillBERT": ((89.2, 59.9, 88.5, 82.2, 91.3, 87.5, 51.3, 86.9), 79.6, 48),
    "Vanilla-KD": ((88.0, 64.9, 88.1, 80.1, 90.5, 86.2, 45.1, 84.9), 78.5, 48),
    "PD-BERT": ((89.0, 66.7, 89.1, 83.0, 91.1, 87.2, None, None), None, 48),
    "BERT-PKD": ((88.4, 66.5, 88.4, 81.3, 91.3, 85.7, 45.5, 86.2), 79.2, 48),
    "BERT-of-Theseus": ((89.5, 68.2, 89.6, 82.3, 91.5, 89.0, 51.1, 88.7), 81.2, 48),
    "TinyBERT": ((90.5, 72.2, 90.6, 83.5, 91.6, 88.4, 42.8, None), None, 48),
    "MiniLM": ((88.4, 66.5, 88.4, 81.3, 91.3, 85.7, 45.5, 86.2), 79.2, 48),
    "MT-DNN (full)": ((91.1, 80.9, 87.6, 84.4, 93.5, 87.4, 51.3, 86.8), 82.9, 12),
    "MT-DNN (leave-one-out)": ((69.7, 60.6, 66.5, 56.7, 79.2, 74.2, 10.2, 72.9), None, None),
}
PRINTED = {
    "KD-1": Printed(average=77.4, layers=15),  # its scores average 77.7
    "KD-2": Printed(average=79.7, layers=23),
    "KD-3": Printed(average=81.3, layers=31),
    "without distillation": Printed(average=83.2, layers=67),
    "mixed, c = 1": Printed(average=82.5, layers=33),
}
NOTES = {"MiniLM": "digit for digit the row BERT-PKD: a copying error of the paper, no baseline"}
# Table 5. The overheads of c = 1 and 2 are printed thus; 33 and 20 of 96 layers are 34.4 and 20.8 %.
PRINTED_BY_COST = {
    1.0: Printed(average=82.5, layers=33, overhead=34.3),
    2.0: Printed(average=80.4, layers=20, overhead=20.2),
    3.0: Printed(average=79.9, layers=18),
}


def teacher_depths() -> dict[str, int]:
    """Layers of each task's teacher: the best of table 1 among 4 to 10, of equals the fewest."""
    depths = {}
    for index, task in enumerate(TASKS):
        depths[task] = max(CANDIDATES, key=lambda depth: (DEPTHS[depth][index], -depth))
    return depths


def published_options() -> list[AllocationOption]:
    """What the paper chooses from: of each task three students and their teacher, all at the teacher's tap."""
    options = []
    for index, (task, depth) in enumerate(teacher_depths().items()):
        for layers, scores in STUDENTS.items():
            options.append(
                AllocationOption(task=task, name=f"KD-{layers}", tap=LAYERS - depth, layers=layers, score=scores[index])
            )
        options.append(_branch(index, depth, name=TEACHER))
    return options


def more_options() -> list[AllocationOption]:
    """Those, and a branch of every other depth in table 1."""
    teachers = teacher_depths()
    others = [
        _branch(index, depth, name=f"branch of {depth}")
        for index, task in enumerate(TASKS)
        for depth in DEPTHS
        if depth != teachers[task]
    ]
    return [*published_options(), *others]


def _branch(index: int, depth: int, *, name: str) -> AllocationOption:
    return AllocationOption(task=TASKS[index], name=name, tap=LAYERS - depth, layers=depth, score=DEPTHS[depth][index])


def published_table1() -> Table:
    """Table 1, with the depths that its numbers choose for the teachers."""
    lines = [Line(name=f"L = {depth}", scores=scores) for depth, scores in DEPTHS.items()]
    lines.append(Line(name=FULL, scores=DEPTHS[LAYERS], average=mean(DEPTHS[LAYERS])))
    return table_of(TASKS, WHOLE, lines, depths=teacher_depths())


def published_table2(c: float = 1.0) -> Table:
    """Table 2: averages, layers and the mixed row counted anew, what is printed beside them."""
    lines = [_other(name) for name in OTHERS]
    options = published_options()
    for layers in STUDENTS:
        lines.append(_line(f"KD-{layers}", {o.task: o for o in options if o.name == f"KD-{layers}"}))
    lines.append(_line("without distillation", {o.task: o for o in options if o.name == TEACHER}))
    lines.append(_line(f"mixed, c = {c:g}", by_rule(options, c)))
    return table_of(TASKS, WHOLE, lines)


def published_table5(costs: Sequence[float] = COSTS) -> Table:
    """Table 5, the paper's wording of its rule, and the best of all depths within equally many layers."""
    options, more = published_options(), more_options()
    lines = [_other(FULL)]
    for c in costs:
        rule = by_rule(options, c)
        lines.append(_line(f"rule, c = {c:g}", rule, PRINTED_BY_COST.get(c)))
        lines.append(_line(f"greedy, c = {c:g}", greedy(options, c)))
        count = allocation_of(rule, ONE_A_LAYER).layers
        lines.append(_line(f"best within {count} layers", best_under(more, count, ONE_A_LAYER).chosen))
    return table_of(TASKS, WHOLE, lines)


def _other(name: str) -> Line:
    scores, printed, layers = OTHERS[name]
    return Line(
        name=name,
        scores=scores,
        average=mean(scores),
        layers=layers,
        printed=Printed(average=printed, layers=layers),
        note=NOTES.get(name, ""),
    )


def _line(name: str, chosen: dict[str, AllocationOption], printed: Printed | None = None) -> Line:
    scores = tuple(chosen[task].score for task in TASKS)
    return Line(
        name=name,
        scores=scores,
        average=mean(scores),
        layers=allocation_of(chosen, ONE_A_LAYER).layers,
        chosen=tuple(chosen[task] for task in TASKS),
        printed=printed or PRINTED.get(name),
    )
