"""Every kind passes one list of checks; then what is particular to each."""

import itertools
import json
import math
import sys

import msgspec
import numpy as np
import pytest
from sklearn.utils.class_weight import compute_class_weight

from polyhead.errors import BadValue, ConfigError, DataError, EmptyData, UnknownLabel
from polyhead.tasks.gold import TaggedSpan, tags_of
from polyhead.tasks.kinds import KINDS, kind_of
from polyhead.tasks.kinds.base import spelled
from polyhead.tasks.kinds.tagged import chosen
from polyhead.tasks.metrics import spans_of
from polyhead.tasks.task import Example, Task
from polyhead.text.question import Question
from polyhead.text.words import boundary_places, words_of
from support.cases import cases

BIO = ("O", "B-drug", "I-drug", "B-date")


class Case(msgspec.Struct):
    """A task of one kind, labels of its data, one label that is wrong, and what the labels are about."""

    task: Task
    labels: list
    wrong: object
    text: str = ""
    options: tuple = ()

    @property
    def words(self):
        """What the head gives one output each: (words, 2); None where it reads no words."""
        if not kind_of(self.task).per_word:
            return None
        return boundary_places(self.text) if self.task.kind == "span" else words_of(self.text)

    @property
    def count(self):
        """Rows of an output: words or options; None where it is one row."""
        return len(self.words) if self.words is not None else len(self.options) or None

    def example(self, **where):
        """What the labels are about: a text, for `span` beside a question, or a question with the options."""
        given = ("which?", self.text) if self.task.kind == "span" else (self.text,)
        return Example(input=Question(text="which?", options=self.options) if self.options else given, **where)

    def encoded(self, label, **where):
        return kind_of(self.task).encode(self.task, label, self.example(**where))

    def decoded(self, output):
        return kind_of(self.task).decode(self.task, output, self.example())

    def scores(self, outputs, targets):
        return kind_of(self.task).evaluate(self.task, outputs, targets, [self.example()] * len(outputs))


CASES = {
    "single_label": [Case(Task(name="t", kind="single_label", labels=("no", "yes")), ["yes", "no", "yes"], "maybe")],
    "multi_label": [Case(Task(name="t", kind="multi_label", labels=("x", "y", "z")), [["z", "x"], [], ["y"]], ["w"])],
    "regression": [Case(Task(name="t", kind="regression", range=(-1.0, 4.0)), [-1, 4, 0.25], 4.01)],
    "tagging": [
        Case(
            Task(name="t", kind="tagging", labels=BIO),
            [["O", "B-drug", "I-drug"], ["B-date", "O", "B-drug"]],
            ["O", "I-date"],
            text="take red pills",
        ),
        Case(Task(name="t", kind="tagging", labels=("NOUN", "VERB")), [["VERB", "NOUN"]], ["ADV"], text="take pills"),
    ],
    "multiple_choice": [Case(Task(name="t", kind="multiple_choice"), [2, 0, 1], 3, options=("red", "green", "blue"))],
    "span": [
        Case(
            Task(name="t", kind="span"),
            [[{"text": "red pills", "start": 5}], [{"text": "take", "start": 0}]],
            [{"text": "red pills", "start": 4}],
            text="take red pills",
        ),
        Case(
            Task(name="t", kind="span", null_answers=True),
            [[], [{"text": "pills", "start": 9}]],
            [{"text": " ", "start": 4}],
            text="take red pills",
        ),
    ],
}
ALL = [pytest.param(case, id=f"{name}-{i}") for name in CASES for i, case in enumerate(CASES[name])]


def perfect(case):
    """Outputs that say exactly what the targets say."""
    kind, outputs, targets = kind_of(case.task), [], []
    for label in case.labels:
        target = case.encoded(label)
        targets.append(target)
        if kind.loss == "squared_error":
            outputs.append(target.reshape(1))
        elif kind.loss == "binary_cross_entropy":
            outputs.append((40 * target - 20).astype(np.float32))
        elif kind.loss == "ranking":
            outputs.append((20 * np.eye(case.count)[target]).astype(np.float32))
        elif kind.loss == "span_cross_entropy":
            outputs.append((20 * np.eye(case.count)[:, target[0, :2]]).astype(np.float32))
        else:
            outputs.append((20 * np.eye(kind.width(case.task))[target]).astype(np.float32))
    return outputs, targets


def answered(answer):
    """What an answer says, in the form of a label of the data."""
    for key in ("label", "labels", "value"):
        if key in answer:
            return answer[key]
    return None


def test_every_kind_has_a_case():
    assert {case.values[0].task.kind for case in ALL} == set(KINDS) - {"summarization"}  # its outputs are texts


@cases("case", ALL)
def test_perfect_outputs_score_the_maximum_of_every_metric(case):
    kind = kind_of(case.task)
    scores = case.scores(*perfect(case))
    assert list(scores) == list(kind.metrics(case.task))
    assert kind.default_metric(case.task) == next(iter(scores))
    assert all(type(score) is float and score == pytest.approx(1.0) for score in scores.values()), scores


@cases("case", ALL)
def test_decoding_gives_back_what_was_encoded(case):
    for label, output in zip(case.labels, perfect(case)[0], strict=True):
        answer = case.decoded(output)
        if case.task.kind == "regression":
            assert answer["value"] == pytest.approx(label, abs=1e-6)
        elif case.task.kind == "multi_label":
            assert answer["labels"] == sorted(label)
        elif case.task.kind == "single_label":
            assert answered(answer) == label
        elif case.task.kind == "multiple_choice":
            assert (answer["index"], answer["option"]) == (label, case.options[label])
        elif case.task.kind == "span":
            assert [{name: answer[name] for name in ("text", "start")}] == (label or [{"text": None, "start": None}])
        elif "words" in answer:
            assert [word["label"] for word in answer["words"]] == label
        else:
            spans = [TaggedSpan(start=s["start"], end=s["end"], label=s["label"]) for s in answer["spans"]]
            assert tags_of(spans, words_of(case.text)) == label


@cases("case", ALL)
def test_answers_are_plain_and_the_same_every_time(case):
    kind = kind_of(case.task)
    output = np.sin(np.arange(kind.width(case.task) * (case.count or 1)) * 2.0)
    output = output.reshape((-1, kind.width(case.task)) if kind.per_word else (-1,)).astype(np.float32)
    first, second = (json.dumps(case.decoded(output)) for _ in range(2))
    assert first == second
    assert json.loads(first) == case.decoded(output)


@cases("case", ALL)
def test_a_wrong_label_names_task_file_and_row(case):
    with pytest.raises(BadValue, match=r"task 't', train\.jsonl row 17") as caught:
        case.encoded(case.wrong, row=17, source="data/train.jsonl")
    assert (caught.value.task, caught.value.source, caught.value.row) == ("t", "data/train.jsonl", 17)
    assert caught.value.allowed


@cases("case", ALL)
@cases("label", [{}, 1.5e9, math.nan, math.inf, [1.5], [None], [[]], object(), 10**400, True])
def test_a_label_of_the_wrong_type_is_refused(case, label):
    with pytest.raises(BadValue, match="row 3"):
        case.encoded(label, row=3, source="a.csv")


@cases("case", ALL)
def test_targets_and_weights_have_the_declared_form(case):
    kind = kind_of(case.task)
    outputs, targets = perfect(case)
    forms = {"cross_entropy": (np.int64, 0), "binary_cross_entropy": (np.float32, 1)}
    forms |= {"squared_error": (np.float32, 0), "word_cross_entropy": (np.int64, 1)}
    forms |= {"ranking": (np.int64, 0), "span_cross_entropy": (np.int64, 2)}
    for target in targets:
        assert (target.dtype, target.ndim) == forms[kind.loss]
    weights = kind.class_weights(case.task, targets)
    if case.task.kind in ("regression", "multiple_choice", "span"):
        assert weights is None
    else:
        assert (weights.dtype, weights.shape) == (np.float32, (kind.width(case.task),))
        assert np.all(weights > 0)
    assert outputs[0].shape[-1] == (len(case.options) or kind.width(case.task))


@cases("case", ALL)
def test_splits_that_do_not_match_or_are_empty_are_refused(case):
    outputs, targets = perfect(case)
    with pytest.raises(EmptyData):
        kind_of(case.task).evaluate(case.task, [], [], [])
    with pytest.raises(DataError):
        kind_of(case.task).evaluate(case.task, outputs, targets[:-1], [])


@cases("case", ALL)
def test_windows_that_agree_merge_to_what_they_say(case):
    output = perfect(case)[0][0]
    merged = kind_of(case.task).merge_windows(case.task, [output, output])
    assert merged.dtype == np.float32
    np.testing.assert_array_equal(merged, output)


@cases("case", ALL)
def test_an_unknown_metric_is_refused_with_the_known_ones(case):
    with pytest.raises(ConfigError, match="accuracy|pearson|exact_match"):
        msgspec.structs.replace(case.task, metric="bleu")


def test_labels_match_by_spelling_and_never_by_value():
    """But for whole numbers, which a frame writes as 1.0 where a cell of their column is empty."""
    task = Task(name="t", kind="single_label", labels=("0", "1", "true", "false"))
    given = ["0", 0, "1", 1, True, "true", False, 1.0, "1.0", 0.0]
    assert [int(kind_of(task).encode(task, label, Example())) for label in given] == [0, 0, 1, 1, 2, 2, 3, 1, 1, 0]
    for label in (1.5, "True", "01", "1 ", "1.00", "1.", float("nan"), 1e300, None):
        with pytest.raises(BadValue):
            kind_of(task).encode(task, label, Example())
    assert (spelled(1.0), spelled(-3.0), spelled(0.5)) == ("1", "-3", None)
    versions = Task(name="t", kind="single_label", labels=("1", "1.0", "2.0"))
    assert [int(kind_of(versions).encode(versions, label, Example())) for label in ("1", "1.0", 2, 1.0)] == [0, 1, 2, 0]


def test_labels_that_are_true_and_false_alone_match_as_programs_write_them():
    """A frame has true, its CSV file True, and a spreadsheet's TRUE: an evaluation on another file was refused."""
    for labels in (("false", "true"), ("False", "True"), ("TRUE", "FALSE")):
        task = Task(name="t", kind="single_label", labels=labels)
        target = labels[int(kind_of(task).encode(task, True, Example()))]
        assert target.lower() == "true"
        for label in ("true", "True", "TRUE", False, "FALSE"):
            place = int(kind_of(task).encode(task, label, Example()))
            assert labels[place].lower() == str(label).lower()
        with pytest.raises(UnknownLabel):
            kind_of(task).encode(task, "1", Example())


def test_unknown_label_holds_the_label_and_the_known_ones():
    task = Task(name="cola", kind="single_label", labels=("0", "1"))
    with pytest.raises(UnknownLabel, match="label 'yes' is not one of") as caught:
        kind_of(task).encode(task, "yes", Example(row=17, source="train.jsonl"))
    assert (caught.value.label, caught.value.allowed) == ("yes", ("0", "1"))


def test_equal_outputs_take_the_first_label():
    task = Task(name="t", kind="single_label", labels=("a", "b", "c"))
    assert kind_of(task).decode(task, np.array([0.0, 2.0, 2.0], np.float32), Example())["label"] == "b"


def test_scores_are_a_softmax_and_stay_finite_at_extremes():
    task = Task(name="t", kind="single_label", labels=("a", "b"))
    answer = kind_of(task).decode(task, np.array([1e30, -1e30], np.float32), Example())
    assert answer == {"label": "a", "scores": {"a": 1.0, "b": 0.0}}
    answer = kind_of(task).decode(task, np.array([0.0, math.log(3)], np.float32), Example())
    assert answer["scores"]["b"] == pytest.approx(0.75, abs=1e-7)


def test_multi_label_gives_labels_from_the_threshold_on():
    task = Task(name="t", kind="multi_label", labels=("a", "b"), threshold=0.8)
    output = np.array([math.log(3), math.log(9)], np.float32)  # 0.75 and 0.9
    assert kind_of(task).decode(task, output, Example())["labels"] == ["b"]
    even = msgspec.structs.replace(task, threshold=0.5)
    assert kind_of(even).decode(even, np.array([0.0, -1e30], np.float32), Example()) == {
        "labels": ["a"],
        "scores": {"a": 0.5, "b": 0.0},
    }


def test_zeros_and_ones_are_no_names_of_labels_where_a_list_repeats_them():
    """A list of marks, one for each label, would say both '0' and '1' of nearly every row."""
    task = Task(name="t", kind="multi_label", labels=("0", "1"))
    example = Example(source="train.jsonl", row=3)
    for marks in ([1, 0, 0], [0.0, 0.0], [True, True, False]):
        with pytest.raises(BadValue, match=r"train.jsonl row 3: a list of 0 and 1"):
            kind_of(task).encode(task, marks, example)
    for names, wanted in (([0], [1, 0]), ([1, 0], [1, 1]), (["1", "1"], [0, 1]), ([], [0, 0])):
        assert kind_of(task).encode(task, names, example).tolist() == wanted


def test_regression_answers_are_clipped_to_the_range():
    task = Task(name="t", kind="regression", range=(1.0, 5.0))
    kind = kind_of(task)
    answers = [kind.decode(task, np.array([x], np.float32), Example()) for x in (-0.3, 0.5, 7.0)]
    assert [answer["value"] for answer in answers] == [1.0, 3.0, 5.0]
    with pytest.raises(BadValue, match="Allowed: 1 to 5"):
        kind.encode(task, 0.99, Example(row=2))


def test_positive_label_makes_its_f1_the_default():
    task = Task(name="t", kind="single_label", labels=("a", "b"), positive="b")
    assert kind_of(task).default_metric(task) == "f1"
    outputs = [np.array(row, np.float32) for row in ([0, 1], [0, 1], [1, 0])]
    scores = kind_of(task).evaluate(task, outputs, [np.array(i) for i in (1, 0, 1)], [])
    assert scores["f1"] == pytest.approx(0.5)


@cases("seed", range(10))
def test_single_label_and_tagging_weights_equal_scikit_learn(seed):
    rng = np.random.default_rng(seed)
    targets = np.concatenate([np.arange(4), rng.choice(4, 50, p=[0.7, 0.1, 0.1, 0.1])])
    expected = compute_class_weight("balanced", classes=np.arange(4), y=targets)
    single = Task(name="t", kind="single_label", labels=("a", "b", "c", "d"))
    ours = kind_of(single).class_weights(single, [np.asarray(t) for t in targets])
    np.testing.assert_allclose(ours, expected, rtol=1e-6)
    words = Task(name="t", kind="tagging", labels=("a", "b", "c", "d"))
    np.testing.assert_allclose(kind_of(words).class_weights(words, np.split(targets, [3, 9, 9])), expected, rtol=1e-6)


@cases("seed", range(10))
def test_single_label_weights_balance_what_rows_count_for_each_label(seed):
    """Rows that count several times, and rows that say several labels, were one row of one label each."""
    rng = np.random.default_rng(seed)
    task = Task(name="t", kind="single_label", labels=("a", "b", "c", "d"))
    labels, times = np.concatenate([np.arange(3), rng.choice(3, 40, p=[0.8, 0.1, 0.1])]), rng.integers(1, 5, 43)
    expected = compute_class_weight("balanced", classes=np.arange(3), y=np.repeat(labels, times))
    counted = (np.eye(4)[labels] * (times / times.max())[:, None]).astype(np.float32)
    np.testing.assert_allclose(kind_of(task).class_weights(task, list(counted)), [*expected, 1.0], rtol=1e-5)
    said = rng.dirichlet([8, 1, 1, 1], size=60).astype(np.float32)
    weighted = said * kind_of(task).class_weights(task, list(said))
    np.testing.assert_allclose(weighted.sum(axis=0), 60 / 4, rtol=1e-5)


def test_a_label_that_no_row_says_for_sure_weighs_no_more_than_one_of_a_row():
    task = Task(name="t", kind="single_label", labels=("a", "b"))
    said = [np.array([0.999, 0.001], np.float32)] * 100
    np.testing.assert_allclose(kind_of(task).class_weights(task, said), [100 / 2 / 99.9, 50.0], rtol=1e-5)
    assert kind_of(task).class_weights(task, [np.zeros(2, np.float32)] * 3).tolist() == [1.0, 1.0]


def test_a_label_that_never_occurs_weighs_one():
    task = Task(name="t", kind="single_label", labels=("a", "b", "c"))
    weights = kind_of(task).class_weights(task, [np.asarray(i) for i in (0, 0, 0, 1)])
    np.testing.assert_allclose(weights, [4 / 6, 2.0, 1.0], rtol=1e-6)


def test_multi_label_weights_are_ratios_of_scikit_learns():
    rng = np.random.default_rng(0)
    rows = (rng.random((60, 3)) < [0.1, 0.5, 0.9]).astype(np.float32)
    task = Task(name="t", kind="multi_label", labels=("a", "b", "c"))
    for ours, column in zip(kind_of(task).class_weights(task, list(rows)), rows.T, strict=True):
        negative, positive = compute_class_weight("balanced", classes=np.array([0.0, 1.0]), y=column)
        assert ours == pytest.approx(positive / negative, rel=1e-6)
    np.testing.assert_array_equal(kind_of(task).class_weights(task, [np.array([1, 0, 1], np.float32)]), [1, 1, 1])


@cases("seed", range(12))
@cases("metric", ["micro_f1", "macro_f1", "accuracy"])
def test_no_set_of_labels_for_every_row_scores_above_the_constant_answer(metric, seed):
    """It gave the labels above the threshold, which is none of them: a score of 0 that anything beats."""
    rng = np.random.default_rng(seed)
    labels = tuple("abcde"[: 1 + seed % 5])
    task = Task(name="t", kind="multi_label", labels=labels, metric=metric, threshold=(0.5, 0.2, 0.9)[seed % 3])
    kind = kind_of(task)
    targets = [*(rng.random((17, len(labels))) < rng.random(len(labels)) / 2).astype(np.float32)]
    examples = [Example(input=("a",))] * len(targets)
    best = kind.evaluate(task, kind.constant(task, targets, examples), targets, examples)[metric]
    for several in itertools.product((-9.0, 9.0), repeat=len(labels)):
        outputs = [np.array(several, np.float32)] * len(targets)
        assert kind.evaluate(task, outputs, targets, examples)[metric] <= best + 1e-12


def test_the_constant_answer_of_a_task_scored_by_f1_is_its_positive_label():
    task = Task(name="t", kind="single_label", labels=("other", "danger"), positive="danger")
    targets = [np.asarray(index, np.int64) for index in (0, 0, 0, 1)]
    examples = [Example(input=("a",))] * 4
    kind = kind_of(task)
    assert kind.evaluate(task, kind.constant(task, targets, examples), targets, examples)["f1"] == pytest.approx(0.4)


def test_windows_of_a_label_are_averaged():
    task = Task(name="t", kind="single_label", labels=("a", "b"))
    merged = kind_of(task).merge_windows(task, [np.array([1, 0], np.float32), np.array([0, 2], np.float32)])
    np.testing.assert_array_equal(merged, np.array([0.5, 1.0], np.float32))


def tagged(tags):
    return (10 * np.eye(len(BIO))[[BIO.index(tag) for tag in tags]]).astype(np.float32)


def test_words_are_taken_from_the_window_that_read_them():
    task = Task(name="t", kind="tagging", labels=BIO)
    first, second = tagged(["O", "B-drug", "O"]), tagged(["B-date", "O", "B-date"])
    first[2], second[0] = np.nan, np.nan
    merged = kind_of(task).merge_windows(task, [first, second])
    spans = kind_of(task).decode(task, merged, Example(input=("take pills tomorrow",)))["spans"]
    assert [(span["text"], span["label"]) for span in spans] == [("pills", "drug"), ("tomorrow", "date")]


def test_spans_hold_offsets_text_and_the_mean_score():
    task = Task(name="t", kind="tagging", labels=("O", "B-x", "I-x"))
    output = np.log(np.array([[0.2, 0.7, 0.1], [0.2, 0.3, 0.5], [0.9, 0.05, 0.05]], np.float32))
    spans = kind_of(task).decode(task, output, Example(input=("São Paulo!",)))["spans"]
    assert [dict(span, score=round(span["score"], 5)) for span in spans] == [
        {"start": 0, "end": 9, "label": "x", "text": "São Paulo", "score": 0.6}
    ]


@cases("decoder", ["greedy", "constrained"])
@cases("seed", range(20))
def test_spans_of_many_texts_are_those_that_conlleval_reads_in_each(decoder, seed):
    """Also where words were not read, texts have no word, and an I-x stands behind another name or at the start."""
    labels, rng = ("O", "B-x", "I-x", "B-y", "I-y"), np.random.default_rng(seed)
    task = Task(name="t", kind="tagging", labels=labels, decoder=decoder)
    sizes = rng.integers(0, 9, size=7)
    outputs = [rng.standard_normal((size, 5)).astype(np.float32) * 3 for size in sizes]
    for row in outputs:
        row[rng.random(len(row)) < 0.1] = np.nan
    examples = [Example(input=(" ".join(f"w{i}" for i in range(size)),)) for size in sizes]
    kind = kind_of(task)
    together = kind.decode_all(task, outputs, examples)
    for row, example, answer in zip(outputs, examples, together, strict=True):
        assert answer == kind.decode(task, row, example)
        tags = ["O" if index == -1 else labels[index] for index in chosen(task, row)]
        wanted = [
            (*(int(example.places[i, end]) for i, end in ((span.start, 0), (span.stop - 1, 1))), span.label)
            for span in spans_of(tags)
        ]
        assert [(span["start"], span["end"], span["label"]) for span in answer["spans"]] == wanted
        shares = np.exp(row) / np.exp(row).sum(axis=-1, keepdims=True)
        for span, found in zip(answer["spans"], spans_of(tags), strict=True):
            own = [shares[i, labels.index(tags[i])] for i in range(found.start, found.stop)]
            assert span["score"] == pytest.approx(np.mean(own), abs=1e-6)
            assert span["text"] == example.text[span["start"] : span["end"]]


def test_a_text_without_words_has_no_spans():
    for labels, key in ((BIO, "spans"), (("N", "V"), "words")):
        task = Task(name="t", kind="tagging", labels=labels)
        outputs = np.zeros((0, len(labels)), np.float32)
        assert kind_of(task).decode(task, outputs, Example(input=(" ",))) == {key: []}


def test_unread_words_count_as_outside_or_as_wrong():
    task = Task(name="t", kind="tagging", labels=BIO)
    output = tagged(["B-drug", "B-date"])
    output[1] = np.nan
    target = kind_of(task).encode(task, ["B-drug", "B-date"], Example())
    assert kind_of(task).evaluate(task, [output], [target], []) == {"span_f1": pytest.approx(2 / 3), "accuracy": 0.5}
    assert len(kind_of(task).decode(task, output, Example(input=("a b",)))["spans"]) == 1
    plain = Task(name="t", kind="tagging", labels=("N", "V"))
    row = np.array([[1, 0], [np.nan, np.nan]], np.float32)
    found = kind_of(plain).evaluate(plain, [row], [np.array([0, 0])], [])
    assert found == {"accuracy": 0.5, "macro_f1": pytest.approx(2 / 3)}
    assert len(kind_of(plain).decode(plain, row, Example(input=("a b",)))["words"]) == 1


def test_words_that_nobody_read_are_missed_and_are_no_label_of_their_own():
    """One in a hundred cost a third of the macro F1: it stood in the mean as a label with none."""
    sklearn = pytest.importorskip("sklearn.metrics")
    plain, rng = Task(name="t", kind="tagging", labels=("N", "V")), np.random.default_rng(0)
    target, given = rng.integers(0, 2, 100), rng.integers(0, 2, 100)
    outputs = np.eye(2, dtype=np.float32)[given]
    outputs[7] = np.nan
    found = kind_of(plain).evaluate(plain, [outputs], [target], [])["macro_f1"]
    given[7] = -1
    assert found == pytest.approx(sklearn.f1_score(target, given, labels=[0, 1], average="macro"))


def test_as_many_outputs_as_words_are_needed():
    task = Task(name="t", kind="tagging", labels=BIO)
    with pytest.raises(DataError, match="one output a word"):
        kind_of(task).decode(task, tagged(["O"]), Example(input=("two words",)))
    with pytest.raises(DataError, match="row 0"):
        kind_of(task).evaluate(task, [tagged(["O"])], [np.array([0, 0])], [])


def test_spans_become_tags_of_the_words_they_touch():
    words = words_of("in New York, tomorrow")
    spans = [TaggedSpan(start=3, end=11, label="city"), TaggedSpan(start=13, end=21, label="date")]
    assert tags_of(spans, words) == ["O", "B-city", "I-city", "O", "B-date"]
    with pytest.raises(ValueError, match="no word"):
        tags_of([TaggedSpan(start=2, end=3, label="x")], words)
    with pytest.raises(ValueError, match="share"):
        tags_of([spans[0], TaggedSpan(start=7, end=8, label="x")], words)


def test_importing_the_kinds_first_works():
    import subprocess

    for name in ("polyhead.tasks.kinds", "polyhead.tasks.task", "polyhead.tasks.kinds.tagging"):
        subprocess.run([sys.executable, "-c", f"import {name}"], check=True)


@cases("labels", [2, 9, 150], ids=str)
@cases("name", ["single_label", "multi_label", "regression"])
def test_many_rows_are_answered_as_each_alone_to_the_bit(name, labels):
    names = tuple(f"l{i}" for i in range(labels))
    task = Task(name="t", kind=name, **({"range": (0.0, 3.0)} if name == "regression" else {"labels": names}))
    kind = kind_of(task)
    outputs = np.random.default_rng(labels).normal(0, 3, (40, kind.width(task))).astype(np.float32)
    answers = kind.answers(task, kind.decode_rows(task, outputs))
    assert answers == [kind.decode(task, row, Example()) for row in outputs]
    assert kind.answers(task, kind.decode_rows(task, outputs[:0])) == []


def test_tasks_that_are_decoded_at_once_have_the_bits_of_each_alone():
    rng, task = np.random.default_rng(0), CASES["single_label"][0].task
    tasks = [msgspec.structs.replace(task, labels=tuple(map(str, range(labels)))) for labels in (2, 150, 3, 9, 2, 17)]
    for rows in (0, 1, 5):
        outputs = [np.float32(8 * rng.standard_normal((rows, len(one.labels)))) for one in tasks]
        together = kind_of(task).decode_tasks(tasks, outputs)
        for one, raw, decoded in zip(tasks, outputs, together, strict=True):
            alone = kind_of(one).decode_rows(one, raw)
            assert decoded.label.tolist() == alone.label.tolist()
            assert decoded.scores.shape == alone.scores.shape and (decoded.scores == alone.scores).all()
        answers = [kind_of(one).answers(one, decoded) for one, decoded in zip(tasks, together, strict=True)]
        assert kind_of(task).answers_of_tasks(tasks, together) == answers
