"""Held-out rows: the same for the same seed, in proportion, and never an input on both sides."""

import datetime
from collections import Counter

import msgspec
import numpy as np
import pytest

from polyhead.data.read import Examples, ReadReport, Source, read
from polyhead.data.split import TaskExamples, folds, hold_out, overlapping, split_together
from polyhead.errors import EmptyData
from polyhead.tasks.task import Task
from polyhead.text.question import Question
from support.cases import cases

OF_TEXTS = {"kind": "single_label", "labels": ("a", "b", "c")}
TASK = Task(name="t", **OF_TEXTS)


def examples(inputs, labels=None):
    labels = labels if labels is not None else [0] * len(inputs)
    return Examples(
        inputs=inputs,
        targets=[np.asarray(label) for label in labels],
        words=None,
        rows=list(range(1, len(inputs) + 1)),
        report=ReadReport(rows=len(inputs), used=len(inputs)),
    )


def many(seed, rows=400):
    rng = np.random.default_rng(seed)
    labels = rng.choice(3, rows, p=[0.8, 0.15, 0.05])
    return examples([(f"text {rng.integers(0, 3 * rows)}",) for _ in range(rows)], labels)


def sides(given, fraction=0.2, seed=1, task=TASK):
    kept, held = hold_out(given, fraction, seed, task)
    assert sorted(kept.rows + held.rows) == given.rows
    assert kept.rows == sorted(kept.rows)
    assert held.rows == sorted(held.rows)
    return kept, held


@cases("seed", range(10))
def test_each_label_gives_its_share(seed):
    given = many(seed)
    kept, held = sides(given)
    total = Counter(int(target) for target in given.targets)
    found = Counter(int(target) for target in held.targets)
    assert abs(len(held.rows) - 80) <= 4
    for label, count in total.items():
        assert abs(found[label] - 0.2 * count) <= 4
    assert {given.inputs[row - 1] for row in kept.rows} == set(kept.inputs)


def test_the_same_seed_gives_the_same_rows_and_another_does_not():
    assert sides(many(0))[1].rows == sides(many(0))[1].rows
    assert sides(many(0))[1].rows != sides(many(0), seed=2)[1].rows


@cases("seed", range(10))
def test_equal_inputs_never_land_on_both_sides(seed):
    rng = np.random.default_rng(seed)
    pairs = [tuple(rng.choice(["x y", "X  y", "z", "w ", "q"], 2)) for _ in range(60)]
    kept, held = sides(examples(pairs, rng.integers(0, 3, 60)), seed=seed)

    def keys(side):
        return {tuple(sorted(" ".join(text.lower().split()) for text in pair)) for pair in side.inputs}

    assert not keys(kept) & keys(held)


def in_groups(seed):
    """Rows of 60 people, some of which have texts in common, and rows of nobody, some of which have one text."""
    rng, given = np.random.default_rng(seed), many(seed)
    people = [str(person) if person % 6 else None for person in rng.integers(0, 60, len(given.inputs)).tolist()]
    return msgspec.structs.replace(given, groups=people)


def on_two_sides(given, several):
    """What is on more than one side: a person, or a text of rows without a person."""
    found = Counter(each for rows in several for each in {given.groups[row] or given.inputs[row] for row in rows})
    return [each for each, sides in found.items() if sides > 1]


@cases("seed", range(10))
def test_rows_of_a_group_are_on_one_side_and_in_one_fold(seed):
    given = in_groups(seed)
    kept, held = sides(given)
    assert not on_two_sides(given, [[row - 1 for row in side.rows] for side in (kept, held)])
    assert 0.1 * len(given.rows) < len(held.rows) < 0.3 * len(given.rows)
    parts = folds(given, 5, seed, TASK)
    assert sorted(row for part in parts for row in part) == list(range(len(given.rows)))
    assert len(parts) == 5 and not on_two_sides(given, parts)


@pytest.mark.parametrize("seed", range(3))
def test_tasks_that_hold_out_together_keep_groups_of_a_file_together(seed):
    given = in_groups(seed)
    several = [
        TaskExamples(task=msgspec.structs.replace(TASK, name=name), examples=given.take(rows), path="one.jsonl")
        for name, rows in (("t0", list(range(250))), ("t1", list(range(150, 400))))
    ]
    parts = split_together(several, 0.2, seed)
    kept, held = ({row - 1 for pair in parts for row in pair[side].rows} for side in (0, 1))
    assert kept and held and not on_two_sides(given, [kept, held])


def test_one_group_cannot_be_split():
    given = msgspec.structs.replace(many(0), groups=["ann"] * 400)
    with pytest.raises(EmptyData, match="too few different groups"):
        hold_out(given, 0.2, 1, TASK)


def over_contexts(kind, seed):
    """200 questions over about 50 contexts, each written in several ways."""
    rng = np.random.default_rng(seed)
    contexts = [
        rng.choice([f"Context {i}", f"CONTEXT  {i}", f" context {i}"]) for i in rng.integers(0, 50, 200).tolist()
    ]
    if kind == "span":
        return examples([(f"question {row}", context) for row, context in enumerate(contexts)])
    asked = [Question(text=f"question {row}", options=("a", "b"), context=of) for row, of in enumerate(contexts)]
    return examples(asked)


def contexts_of(side):
    found = (value.context if isinstance(value, Question) else value[1] for value in side.inputs)
    return {" ".join(context.lower().split()) for context in found}


@pytest.mark.parametrize("kind", ["span", "multiple_choice"])
def test_questions_over_one_context_are_on_one_side_and_in_one_fold(kind):
    """They were on both: what a head learned of a context helped it with the next question over it."""
    task = Task(name="t", kind=kind)
    for seed in range(5):
        given = over_contexts(kind, seed)
        kept, held = sides(given, seed=seed, task=task)
        assert not contexts_of(kept) & contexts_of(held)
        assert 20 < len(held.rows) < 60
        parts = [contexts_of(given.take(part)) for part in folds(given, 5, seed, task)]
        assert len(parts) == 5 and sum(map(len, parts)) == len(set().union(*parts))


def test_what_a_task_holds_out_of_a_context_no_other_keeps():
    """Also of one in another file, and of an equal question in another kind of task."""
    pairs = over_contexts("span", 1)
    whole, alone, joined = (
        Task(name="whole", kind="span"),
        Task(name="alone", **OF_TEXTS),
        Task(name="joined", pair="joined", **OF_TEXTS),
    )
    several = [
        TaskExamples(task=whole, examples=pairs, path="a"),
        TaskExamples(task=alone, examples=examples([(context,) for _, context in pairs.inputs]), path="b"),
        TaskExamples(task=joined, examples=pairs, path="c"),
    ]
    assert len(overlapping(several)) == 1
    halves = split_together(several, 0.2, 1)
    kept, held = (
        {" ".join(value[-1].lower().split()) for pair in halves for value in pair[side].inputs} for side in (0, 1)
    )
    assert kept and held and not kept & held


def test_questions_of_which_all_have_one_context_are_split_by_their_texts():
    task, given = Task(name="t", kind="span"), examples([(f"question {row}", "context") for row in range(20)])
    kept, held = sides(given, fraction=0.2, task=task)
    assert (len(kept.rows), len(held.rows)) == (16, 4)
    assert [len(part) for part in folds(given, 4, 1, task)] == [5] * 4


def test_a_label_with_one_input_is_kept():
    given = examples([(str(i),) for i in range(21)], [0] * 20 + [1])
    assert 21 in sides(given, fraction=0.5)[0].rows


@pytest.mark.parametrize("labels", [[0, 0, 1, 1], [0, 0, 1, 2]])
def test_a_share_below_one_row_holds_one_out_of_a_label_with_several(labels):
    held = sides(examples([(str(row),) for row in range(4)], labels), fraction=0.1)[1]
    assert len(held.rows) == 1
    assert labels.count(int(held.targets[0])) == 2


def test_labels_of_one_row_each_are_held_out_only_where_that_is_allowed():
    """A head over kept features learns from all rows in the end; layers learned by gradients would lack the label."""
    single = examples([(str(row),) for row in range(3)], [0, 1, 2])
    with pytest.raises(EmptyData, match="too few different inputs"):
        hold_out(single, 0.1, 1, TASK)
    kept, held = hold_out(single, 0.1, 1, TASK, even_single=True)
    assert (len(kept.rows), len(held.rows)) == (2, 1)


def test_words_and_targets_stay_with_their_rows():
    task = Task(name="t", kind="tagging", labels=("O", "B-x"))
    given = examples([(f"w{i}",) for i in range(10)], range(10))
    given = Examples(
        inputs=given.inputs,
        targets=given.targets,
        words=[np.array([[0, i]]) for i in range(10)],
        rows=given.rows,
        report=given.report,
    )
    for side in sides(given, task=task):
        assert [int(target) for target in side.targets] == [row - 1 for row in side.rows]
        assert [int(words[0, 1]) for words in side.words] == [row - 1 for row in side.rows]


@pytest.mark.parametrize("inputs", [[("a",)], [("a",), ("A ",)]], ids=["one", "equal"])
def test_too_few_inputs_are_refused(inputs):
    with pytest.raises(EmptyData, match="too few"):
        hold_out(examples(inputs), 0.5, 1, TASK)


def of_one_file(seed, rows=300, tasks=5):
    """Tasks that read some of the same rows of a file, with labels that are rare for some."""
    rng = np.random.default_rng(seed)
    texts = [(f"text {rng.integers(0, 2 * rows)}",) for _ in range(rows)]
    found = []
    for index in range(tasks):
        labels = rng.choice(3, rows, p=[0.8, 0.15, 0.05])
        there = sorted(rng.choice(rows, int(rng.integers(rows // 2, rows + 1)), replace=False).tolist())
        name = Task(name=f"t{index}", kind="single_label", labels=("a", "b", "c"))
        found.append(TaskExamples(task=name, examples=examples(texts, labels).take(there), path="one.jsonl"))
    return found


@pytest.mark.parametrize("seed", range(10))
def test_what_one_task_holds_out_no_other_keeps(seed):
    several = of_one_file(seed)
    sides = split_together(several, 0.2, seed)
    held = set().union(*(side[1].inputs for side in sides))
    kept = set().union(*(side[0].inputs for side in sides))
    assert held and kept and not held & kept
    for one, (left, chosen) in zip(several, sides, strict=True):
        assert sorted(left.rows + chosen.rows) == one.examples.rows
        assert left.rows == sorted(left.rows) and chosen.rows == sorted(chosen.rows)


@pytest.mark.parametrize("seed", range(10))
def test_labels_of_tasks_that_hold_out_together_give_about_their_shares(seed):
    """A random choice of groups would vary by sqrt(0.2 * 0.8 * rows) or more; rare labels are chosen first."""
    several = of_one_file(seed)
    for one, (_, chosen) in zip(several, split_together(several, 0.2, seed), strict=True):
        total = Counter(int(target) for target in one.examples.targets)
        found = Counter(int(target) for target in chosen.targets)
        assert abs(len(chosen.rows) / len(one.examples.rows) - 0.2) <= 0.04
        for label, count in total.items():
            assert abs(found[label] - 0.2 * count) <= 1.5 * np.sqrt(0.16 * count) + 1


def test_rows_of_a_file_stay_together_whatever_tasks_read_of_them():
    """One task reads a text, another the pair that it stands in, a third the same text in another file."""
    first = [(f"one {i}",) for i in range(40)]
    both = [(f"one {i}", f"two {i}") for i in range(40)]
    again = [(f"ONE  {i}",) for i in reversed(range(40))]
    several = [
        TaskExamples(task=TASK, examples=examples(given), path=path)
        for given, path in ((first, "a"), (both, "a"), (again, "b"))
    ]
    (_, one), (_, two), (_, three) = split_together(several, 0.25, 1)
    assert one.rows == two.rows == sorted(41 - row for row in three.rows) and len(one.rows) == 10


def test_rows_held_out_together_follow_from_seed_and_texts_alone():
    several = of_one_file(0)
    first = [side[1].rows for side in split_together(several, 0.2, 1)]
    assert first == [side[1].rows for side in split_together(of_one_file(0), 0.2, 1)]
    assert first != [side[1].rows for side in split_together(several, 0.2, 2)]
    moved = [msgspec.structs.replace(one, path="elsewhere.jsonl") for one in several]
    assert first == [side[1].rows for side in split_together(moved, 0.2, 1)]


def test_no_task_and_no_label_loses_its_last_input():
    several = [
        TaskExamples(task=TASK, examples=examples([(f"x {i}",) for i in range(12)], labels), path="a")
        for labels in ([0] * 11 + [1], [2] + [0] * 11, [0, 1] * 6)
    ]
    for one, (kept, _) in zip(several, split_together(several, 0.5, 1), strict=True):
        assert {int(t) for t in kept.targets} == {int(t) for t in one.examples.targets}


def test_a_task_that_cannot_hold_out_with_others_is_named():
    small = Task(name="small", kind="single_label", labels=("a", "b", "c"))
    several = [
        TaskExamples(task=TASK, examples=examples([(str(i),) for i in range(20)]), path="a"),
        TaskExamples(task=small, examples=examples([("0",)]), path="a"),
    ]
    with pytest.raises(EmptyData, match="'small': too few .* 1 different inputs"):
        split_together(several, 0.5, 1)


def test_tasks_overlap_by_rows_and_by_texts():
    def of(inputs, path):
        return TaskExamples(task=TASK, examples=examples([(text,) for text in inputs]), path=path)

    a, b, c, d = of("ab", "1"), of("cd", "1"), of("xD", "2"), of("yz", "3")
    assert overlapping([a, d, b, c]) == [[a, b, c], [d]]
    assert overlapping([a]) == [[a]] and overlapping([]) == []


def test_groups_may_be_dates_fractions_or_bytes(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    days = [datetime.date(2024, 1, 1 + number // 10) for number in range(100)]
    columns = {"day": days, "part": [number // 10 / 4 for number in range(100)], "key": [f"{d}".encode() for d in days]}
    table = {"text": [f"text {number}" for number in range(100)], "label": ["a", "b"] * 50, **columns}
    pq.write_table(pa.table(table), tmp_path / "rows.parquet")
    task = Task(name="t", kind="single_label", labels=("a", "b"))
    for column, values in columns.items():
        examples = read(Source(path=str(tmp_path / "rows.parquet"), group=column), task)
        kept, held = hold_out(examples, 0.2, 1, task)
        groups_kept, groups_held = ({values[row - 1] for row in side.rows} for side in (kept, held))
        assert groups_kept and groups_held and not groups_kept & groups_held, column
