"""Texts that one task is evaluated on and another trains on: found, reported, and dropped from training."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from polyhead.data.read import Examples, ReadReport, Source, read
from polyhead.errors import EmptyData
from polyhead.project.recipes import Training
from polyhead.project.strategies import Pooled
from polyhead.tasks.task import Task
from polyhead.text.question import Question
from polyhead.train.data.leaks import Dropped, Leak, LeakReport, Reason, without_leaks
from polyhead.train.data.prepared import Prepared, Split
from support.tiers import first_of

LAMP = "The lamp on the left desk is broken again"
KETTLE = "A kettle that never boils is of no use"
PHONE = "My phone was late, and so was the box"
BILL = "Nobody has paid the bill of last monday"


def split(name, inputs):
    inputs = [(given,) if isinstance(given, str) else given for given in inputs]
    return Split(
        name=name,
        examples=Examples(
            inputs=inputs,
            targets=[np.array(i % 2) for i in range(len(inputs))],
            words=None,
            rows=list(range(1, len(inputs) + 1)),
            report=ReadReport(rows=len(inputs), used=len(inputs)),
        ),
    )


def prepared(name, train, validation, test=None):
    return Prepared(
        task=Task(name=name, kind="single_label", labels=("no", "yes")),
        strategy=Pooled(),
        training=Training(),
        team=None,
        train=split("train", train),
        validation=split("validation", validation),
        test=None if test is None else split("test", test),
    )


def trained_on(one):
    return one.train.examples.inputs


def other(number):
    return f"text number {number} that stands nowhere else"


def test_training_rows_go_and_evaluation_rows_stay():
    a = prepared("a", [LAMP, other(1), KETTLE, other(2)], [PHONE, other(3)], [other(4), other(5)])
    b = prepared("b", [PHONE, other(6)], [KETTLE, other(7), KETTLE], [LAMP])
    c = prepared("c", [other(8)], [other(9)])
    kept, report = without_leaks([a, b, c])
    assert [trained_on(one) for one in kept] == [[(other(1),), (other(2),)], [(other(6),)], [(other(8),)]]
    assert kept[0].train.examples.rows == [2, 4]
    assert [int(target) for target in kept[0].train.examples.targets] == [1, 1]
    assert kept[2] is c
    for before, after in zip((a, b, c), kept, strict=True):
        assert after.splits[1:] == before.splits[1:]
    of_a = (Reason(evaluated="b", split="validation", rows=1), Reason(evaluated="b", split="test", rows=1))
    of_b = (Reason(evaluated="a", split="validation", rows=1),)
    assert report.dropped == (
        Dropped(task="a", rows=2, of=4, reasons=of_a),
        Dropped(task="b", rows=1, of=2, reasons=of_b),
    )
    assert report.leaks == (
        Leak(evaluated="b", split="test", trained="a", rows=1, share=1.0),
        Leak(evaluated="b", split="validation", trained="a", rows=2, share=2 / 3),
        Leak(evaluated="a", split="validation", trained="b", rows=1, share=0.5),
    )


def test_after_dropping_nothing_is_found():
    a = prepared("a", [LAMP, other(1)], [PHONE])
    b = prepared("b", [PHONE, other(2)], [LAMP])
    kept, report = without_leaks([a, b])
    assert len(report.leaks) == 2
    again, clean = without_leaks(kept)
    assert again == kept and clean == LeakReport()
    assert clean.lines() == ["no text that a task is evaluated on is among the training texts of another task"]


@pytest.mark.parametrize(
    "text",
    [
        LAMP.upper(),
        "  the lamp, on the left (desk) -- is BROKEN_again!\n",
        LAMP.replace(" ", "\u00a0"),
        f"\u00ab{LAMP}\u00bb",
    ],
    ids=["case", "punctuation", "spaces", "quotes"],
)
def test_case_spaces_and_punctuation_do_not_matter(text):
    kept, _ = without_leaks([prepared("a", [text, other(1)], [other(2)]), prepared("b", [other(3)], [LAMP])])
    assert trained_on(kept[0]) == [(other(1),)]


def test_letters_of_any_writing_count():
    text = "Stra\u00dfe und \u00dcbung: das ist ein Satz"
    a = prepared("a", [text.upper(), text.replace("ist", "war")], [other(1)])
    kept, _ = without_leaks([a, prepared("b", [other(2)], [text])])
    assert trained_on(kept[0]) == [(text.replace("ist", "war"),)]


@pytest.mark.parametrize(("text", "left"), [("a" * 24, 2), ("a" * 25, 1), ("7" * 25, 1), ("a b " * 12 + ".", 2)])
def test_texts_of_less_than_25_letters_and_digits_are_not_looked_for(text, left):
    a = prepared("a", [text, other(1)], [other(2)])
    kept, _ = without_leaks([a, prepared("b", [other(3)], [text])])
    assert len(trained_on(kept[0])) == left


def test_a_text_within_a_longer_one_is_another_text():
    a = prepared("a", [f"{LAMP} today", other(1)], [other(2)])
    assert without_leaks([a, prepared("b", [other(3)], [LAMP])])[1] == LeakReport()


def test_every_text_of_pairs_and_questions_is_looked_for():
    rows = [
        (other(1), LAMP),
        (LAMP, other(2)),
        Question(text="why?", options=("no", "yes"), context=KETTLE),
        Question(text=PHONE, options=("no", "yes")),
        Question(text="which?", options=("no", BILL)),
        Question(text="which one?", options=("no", "yes"), context=other(3)),
    ]
    seen = [
        Question(text="who?", options=(LAMP, "none")),
        (KETTLE, "no"),
        PHONE,
        Question(text=BILL, options=("a", "b")),
    ]
    kept, report = without_leaks([prepared("a", rows, [other(4)]), prepared("b", [other(5)], seen, [(other(9), "no")])])
    assert trained_on(kept[0]) == rows[5:]
    assert report.leaks == (Leak(evaluated="b", split="validation", trained="a", rows=4, share=1.0),)


def test_a_task_is_not_compared_with_itself():
    a, b = prepared("a", [LAMP, other(1)], [LAMP]), prepared("b", [other(2)], [other(3)])
    kept, report = without_leaks([a, b])
    assert kept[0] is a and kept[1] is b and report == LeakReport()


PAIRS = [(f"the first member of pair {i} here", f"the second member of pair {i} here") for i in range(20)]


def test_parallel_tasks_keep_the_rows_that_both_train_on():
    """Members of evaluated pairs stand in other pairs of the training rows, as in SICK."""
    train, evaluated = PAIRS, [(PAIRS[0][0], PAIRS[1][1])]
    a, b = prepared("a", train, evaluated), prepared("b", train, evaluated)
    kept, report = without_leaks([a, b])
    assert kept[0] is a and kept[1] is b
    assert report == LeakReport(parallel=(("a", "b"),))
    alone = prepared("c", [PAIRS[0], (other(1), other(2))], [other(3)])
    assert [trained_on(one) for one in without_leaks([a, alone])[0]] == [train, [(other(1), other(2))]]


def test_parallel_tasks_lose_what_the_other_is_evaluated_on():
    """The same file, another random part of it held out; of what `a` evaluates, pairs 18 and 19, `b` trains on 18."""
    a = prepared("a", PAIRS[:18], PAIRS[18:])
    b = prepared("b", PAIRS[1:19], [PAIRS[0], PAIRS[19]])
    kept, report = without_leaks([a, b])
    assert report.parallel == (("a", "b"),)
    assert trained_on(kept[0]) == PAIRS[1:18] and trained_on(kept[1]) == PAIRS[1:18]


def test_a_pair_is_found_among_parallel_tasks_though_both_members_are_trained_on():
    mixed = (PAIRS[0][0], PAIRS[1][1])
    a, b = prepared("a", PAIRS, [mixed]), prepared("b", [*PAIRS, mixed], [(other(1), other(2))])
    kept, report = without_leaks([a, b])
    assert report.parallel == (("a", "b"),)
    assert kept[0] is a and trained_on(kept[1]) == PAIRS


def test_tasks_that_train_elsewhere_are_kept_clean_too():
    a, held_out = prepared("a", [LAMP, other(1)], [KETTLE]), prepared("b", [KETTLE], [PHONE], [LAMP])
    kept, report = without_leaks([a], others=[held_out])
    assert [trained_on(one) for one in kept] == [[(other(1),)]]
    assert report.leaks == (Leak(evaluated="b", split="test", trained="a", rows=1, share=1.0),)


def test_a_task_with_nothing_left_is_refused_by_name():
    a = prepared("a", [LAMP, KETTLE], [other(1)])
    b, c = prepared("b", [other(2)], [LAMP]), prepared("c", [other(3)], [KETTLE])
    with pytest.raises(EmptyData, match="task 'a': every training row .* 'b' or 'c' is evaluated.* 2 training rows"):
        without_leaks([a, b, c])


def test_the_report_says_rows_and_shares():
    a = prepared("a", [LAMP, KETTLE, other(1)], [other(2)])
    b = prepared("b", [other(3)], [LAMP, LAMP, other(4)], [KETTLE])
    assert without_leaks([a, b])[1].lines() == [
        "b test: 1 row (100.0%) with a text that a trains on",
        "b validation: 2 rows (66.7%) with a text that a trains on",
        "a: 2 of 3 training rows dropped, with texts of b validation (1), b test (1)",
    ]


def test_a_line_names_the_splits_that_cost_most_rows():
    texts = [f"{LAMP} number {i}" for i in range(20)]
    a = prepared("a", [*texts, other(1)], [other(2)])
    rest = [prepared(f"b{i}", [other(3 + i)], texts[: 3 + i]) for i in range(6)]
    (_, report) = without_leaks([a, *rest])
    assert report.lines()[-1] == (
        "a: 8 of 21 training rows dropped, with texts of "
        "b5 validation (8), b4 validation (7), b3 validation (6), b2 validation (5) and 2 more"
    )


def test_what_parallel_tasks_train_on_themselves_is_no_reason():
    """Row 18 goes since `b` is evaluated on that pair; members of it that `b` trains on too do not count for it."""
    mixed = (PAIRS[0][0], PAIRS[1][1])
    a, b = (prepared("a", [*PAIRS, mixed], [other(1)]), prepared("b", PAIRS, [mixed], [(PAIRS[2][0], other(2))]))
    (dropped,) = without_leaks([a, b])[1].dropped
    assert dropped.reasons == (Reason(evaluated="b", split="validation", rows=1),)


DATA = Path(os.environ.get("POLYHEAD_DATA", Path(__file__).parents[3] / "shared" / "data"))
PAIR = {"pair": "joined"}, {"text": "text_a", "text_b": "text_b"}
# evaluated, split, trained on; and how the two are read
KNOWN = [
    ("glue_sst2", "test", "mr_rotten_tomatoes", ({}, {})),
    ("mr_rotten_tomatoes", "validation", "sst5", ({}, {})),
    ("glue_wnli", "validation", "superglue_wsc", PAIR),
    ("superglue_wsc", "validation", "glue_wnli", PAIR),
    ("sick_nli", "test", "snli", PAIR),
]


@pytest.mark.data
@pytest.mark.parametrize(("evaluated", "part", "trained", "form"), first_of(KNOWN))
def test_known_overlaps_are_counted_as_they_are_listed(evaluated, part, trained, form):
    for name in (evaluated, trained):
        if not (DATA / name).is_dir() or not (DATA / "CROSS_OVERLAP.json").is_file():
            pytest.skip(f"no data set in {DATA / name}; set POLYHEAD_DATA to where they are")
    listed = json.loads((DATA / "CROSS_OVERLAP.json").read_text())["rows"]
    (expected,) = [
        row for row in listed if (row["evaluation_set"], row["split"], row["train_set"]) == (evaluated, part, trained)
    ]
    fields, columns = form
    tasks = []
    for name, files in ((evaluated, ("validation", part)), (trained, ("train", "validation"))):
        labels = tuple(json.loads((DATA / name / "meta.json").read_text())["labels"])
        task = Task(name=name, kind="single_label", labels=labels, **fields)
        first, second = (
            Split(name=file, examples=read(Source(path=str(DATA / name / f"{file}.jsonl.gz"), **columns), task))
            for file in files
        )
        tasks.append(
            Prepared(
                task=task, strategy=Pooled(), training=Training(), team=None, train=first, validation=second, test=None
            )
        )
    kept, report = without_leaks(tasks[1:], others=tasks[:1])
    (found,) = report.leaks
    assert (found.rows, round(found.share, 4)) == (
        expected["rows_with_a_text_seen_in_that_train_set"],
        expected["share"],
    )
    assert len(trained_on(kept[0])) == len(trained_on(tasks[1])) - report.dropped[0].rows
    assert without_leaks(kept, others=tasks[:1])[1] == LeakReport()


def test_a_pair_of_short_texts_is_found_as_a_whole():
    """Each sentence alone is too short to be looked for; the two together are not there by chance."""
    guitar, trumpet, flute = ("A man is playing a guitar.", "A man plays a trumpet.", "A man plays a flute.")
    a = prepared("a", [(guitar, trumpet), (guitar, flute), (flute, trumpet)], [other(1)])
    b = prepared("b", [other(2)], [other(3)], [("a man is playing a guitar", "A man plays a trumpet!")])
    kept, report = without_leaks([a, b])
    assert trained_on(kept[0]) == [(guitar, flute), (flute, trumpet)]
    assert [(leak.evaluated, leak.trained, leak.rows) for leak in report.leaks] == [("b", "a", 1)]
