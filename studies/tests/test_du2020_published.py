"""The accuracies that Du et al. 2020 print, against their own means, counts and claims (papers.md 0.4, 1.d, B.1)."""

import msgspec
import pytest

from studies import du2020
from studies.du2020.table import Line, Printed

# The averages as they stand in papers.md 1.d, apart from the rows themselves
AVERAGES = {
    "a": {
        "DistilRoBERTa": 87.1,
        "RoBERTa": 90.5,
        "RoBERTa from leave-one-out encoder": 90.7,
        "BERT": 87.6,
        "XLNet": 89.5,
    },
    "b": {"LAST/CLS": 75.5, "LAST/POSAVG": 77.7, "LAST/MHA": 83.3, "AVG/MHA": 85.5, "COMB/MHA": 85.6},
    "c": {
        "LAST/CLS": 85.9,
        "LAST/POSAVG": 86.0,
        "LAST/MHA": 86.8,
        "AVG/MHA": 88.4,
        "COMB/MHA": 88.5,
        "AVG/MHA u8": 88.4,
        "AVG/MHA 1bit": 88.0,
    },
    "d": {"AVG/MHA": 86.6},
    "e": {"LAST/CLS": 89.3},
}


@pytest.fixture(scope="module")
def table():
    return du2020.published_table4()


def at(table, block, name):
    return next(line for line in table.lines if (line.block, line.name) == (block, name))


def test_every_row_is_there_with_fourteen_tasks_and_its_average(table):
    found = {block: {} for block in du2020.BLOCKS}
    for line in table.lines:
        assert len(line.scores) == len(table.tasks) == 14
        found[line.block][line.name] = line.printed.average
    assert found == AVERAGES
    assert len(table.lines) == 19


def test_printed_means_and_counts_follow_from_the_rows_but_for_the_known_misprints(table):
    looked_at = [line.printed for line in table.lines]
    assert sum(printed.average is not None for printed in looked_at) == 19
    assert sum(printed.gflops is not None for printed in looked_at) == 5
    assert sum(len(printed.groups) for printed in looked_at) == 2
    assert du2020.printed_otherwise(table) == [
        "a, RoBERTa from leave-one-out encoder: average printed 90.7, counted 90.76",
        "d, AVG/MHA: GFLOPs printed 31, counted 34.1",
    ]


def test_the_average_is_that_of_tasks_and_not_of_groups(table):
    """Of the 19 rows, the mean of the five groups is near the printed average in few."""
    near = [abs(sum(line.groups) / 5 - line.printed.average) <= 0.1 for line in table.lines]
    assert sum(near) < 5


def test_groups_hold_each_task_once():
    assert sorted(task for tasks in du2020.GROUPS.values() for task in tasks) == sorted(du2020.TASKS)
    assert [len(tasks) for tasks in du2020.GROUPS.values()] == [6, 3, 2, 2, 1]


def test_the_claims_of_the_paper_hold_in_its_rows(table):
    def average(block, name):
        return at(table, block, name).average

    assert average("b", "LAST/MHA") > average("b", "LAST/POSAVG") + 5 > average("b", "LAST/CLS") + 5
    for block in "bc":
        assert average(block, "AVG/MHA") > average(block, "LAST/MHA")
    for name in AVERAGES["b"]:
        assert average("c", name) > average("b", name)
    assert abs(average("c", "AVG/MHA u8") - average("c", "AVG/MHA")) < 0.05
    assert 0 < average("c", "AVG/MHA") - average("c", "AVG/MHA 1bit") < 0.5
    lost = [c - d for c, d in zip(at(table, "c", "AVG/MHA").groups, at(table, "d", "AVG/MHA").groups, strict=True)]
    assert max(lost) == lost[table.groups.index("NLI")] > 6 > 1 > sorted(lost)[-2]


def test_blocks_can_be_had_alone():
    assert {line.block for line in du2020.published_table4(["c", "e"]).lines} == {"c", "e"}


def test_a_table_of_fewer_tasks_has_the_means_that_it_can_have():
    lines = [Line(block="b", name="x", scores=(80.0, 90.0, 70.0)), Line(block="b", name="y", scores=(80.0, None, 70.0))]
    groups = {"SA": ("SST-2", "IMDB"), "LA": ("CoLA",), "DOC": ("AG News",)}
    table = du2020.table_of(("SST-2", "IMDB", "CoLA"), groups, lines)
    assert table.lines[0].groups == (85.0, 70.0, None) and table.lines[0].average == 80.0
    assert table.lines[1].groups == (None, 70.0, None) and table.lines[1].average is None
    assert du2020.printed_otherwise(table) == []


def test_a_misprint_in_any_column_would_be_said(table):
    line = msgspec.structs.replace(
        at(table, "b", "LAST/CLS"), printed=Printed(average=75.6, groups={"SA": 80.0, "LA": 69.1}, gflops=30)
    )
    said = du2020.printed_otherwise(msgspec.structs.replace(table, lines=(line,)))
    assert said == [
        "b, LAST/CLS: average printed 75.6, counted 75.46",
        "b, LAST/CLS: SA printed 80, counted 80.80",
        "b, LAST/CLS: GFLOPs printed 30, counted 31.1",
    ]


def weights(sizes, exponent):
    total = sum(size**exponent for size in sizes.values())
    return {task: size**exponent / total for task, size in sizes.items()}


def test_table_1_gives_the_weights_that_the_text_must_mean():
    """Size to the 0.1 is nearly even (papers.md 1.b); to the 10, as printed, twelve tasks would never train."""
    sizes = {size.task: size.printed_train or size.train for size in du2020.published_table1()}
    assert tuple(sizes) == du2020.TASKS
    even, literal = weights(sizes, 0.1), weights(sizes, 10)
    assert (round(even["RTE"], 3), round(even["Amazon-2"], 3)) == (0.047, 0.098)
    assert even["Amazon-2"] / even["RTE"] == pytest.approx(2.07, abs=0.005)
    assert (round(literal["Amazon-2"], 3), round(literal["Amazon-5"], 3)) == (0.861, 0.139)
    assert max(share for task, share in literal.items() if not task.startswith("Amazon")) < 4e-8


def test_what_table_1_prints_otherwise_is_said():
    said = du2020.sizes_printed_otherwise()
    assert [words.partition(":")[0] for words in said] == ["QQP", "RTE", "SST-2", "SST-2", "MRPC", "IMDB"]
    assert "SST-2: training rows printed 17,000, in the data 67,349" in said
