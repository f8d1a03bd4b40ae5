"""Which task answers which question, with what probability, and what is refused: worked by hand."""

import math

import pytest

from polyhead.errors import BadValue
from polyhead.serve.questions import (
    DecisionQuestion,
    Option,
    choice_confidence,
    expectation,
    json_text,
    most_probable,
    reading_of,
    score_confidence,
    true_label,
)
from polyhead.serve.settings import Renamed
from polyhead.tasks.task import Task
from support.decision_server import TASKS

ALL = {task.name: task for task in TASKS}
YES_NO = (True, False)


def asked(name, form, values=YES_NO):
    return DecisionQuestion(
        name=name, form=form, instructions="", options=tuple(Option(value=value) for value in values)
    )


def shares(question, answer, renamed=None):
    return reading_of(question, ALL, renamed or {}).probabilities(answer)


MOOD = {"label": "good", "scores": {"bad": 0.25, "good": 0.75}}
BROKEN = {"label": "yes", "scores": {"no": 0.25, "yes": 0.75}}
TOPICS = {"labels": [], "scores": {"order": 0.5, "bill": 0.125, "person": 0.0}}
ANGER = {"label": "calm", "scores": {"calm": 0.5, "cross": 0.375, "furious": 0.125}}


@pytest.mark.parametrize(
    ("name", "answer", "wanted"),
    [
        ("broken", BROKEN, 0.75),  # "yes" of two labels says that it holds
        ("mood.good", MOOD, 0.75),  # TASK.LABEL
        ("mood.bad", MOOD, 0.25),
        ("anger.cross", ANGER, 0.375),  # of more than two labels too
        ("topics.bill", TOPICS, 0.125),
        ("urgency", {"value": 0.375}, 0.375),
    ],
    ids=["yes-or-no", "label", "other-label", "label-of-three", "one-of-several", "number"],
)
def test_predicate_is_the_probability_of_its_label(name, answer, wanted):
    assert shares(asked(name, "predicate"), answer) == (wanted, 1 - wanted)


@pytest.mark.parametrize(
    ("labels", "wanted"),
    [({"true": "good"}, 0.75), ({"true": "bad"}, 0.25), ({"false": "good"}, 0.25)],
    ids=["true", "true-of-other", "false"],
)
def test_predicate_of_a_mapping_file_is_that_of_its_label(labels, wanted):
    renamed = {"pleased": Renamed(task="mood", labels=labels)}
    assert shares(asked("pleased", "predicate"), MOOD, renamed) == (wanted, 1 - wanted)


@pytest.mark.parametrize(
    ("labels", "positive", "wanted"),
    [
        (("no", "yes"), None, "yes"),
        (("True", "False"), None, "True"),
        (("0", "1"), None, "1"),
        (("not-offensive", "offensive"), None, "offensive"),
        (("irony", "non_irony"), None, "irony"),
        (("spam", "ham"), None, None),
        (("spam", "ham"), "ham", "ham"),
        (("a", "b", "c"), None, None),
    ],
)
def test_true_label_is_told_by_words_or_by_positive(labels, positive, wanted):
    assert true_label(Task(name="t", kind="single_label", labels=labels, positive=positive)) == wanted


def test_choice_gives_each_option_its_label_whatever_their_order():
    assert shares(asked("anger", "choice", ("furious", "calm", "cross")), ANGER) == (0.125, 0.5, 0.375)


def test_choice_of_booleans_is_answered_by_labels_that_say_yes_and_no():
    assert shares(asked("broken", "choice", (False, True)), BROKEN) == (0.25, 0.75)


def test_choice_of_a_boolean_and_a_string_of_equal_text_is_no_set_of_labels():
    """True and "true" differ, so a task with the label "true" answers only the string."""
    task = Task(name="holds", kind="single_label", labels=("true", "maybe"))
    answer = {"scores": {"true": 0.75, "maybe": 0.25}}
    assert reading_of(asked("holds", "choice", ("true", "maybe")), {"holds": task}, {}).probabilities(answer)[0] == 0.75
    with pytest.raises(BadValue, match="not the labels of task 'holds'"):
        reading_of(asked("holds", "choice", (True, "maybe")), {"holds": task}, {})


def test_choice_by_a_mapping_file_reads_other_words():
    renamed = {"tone": Renamed(task="anger", labels={"Relaxed": "calm", "Angry": "furious"})}
    assert shares(asked("tone", "choice", ("Angry", "cross", "Relaxed")), ANGER, renamed) == (0.125, 0.375, 0.5)


def test_score_by_labels_follows_the_order_of_the_levels():
    up = shares(asked("anger", "score", ("calm", "cross", "furious")), ANGER)
    assert up == (0.5, 0.375, 0.125) and expectation(up) == 0.375 + 0.25
    assert shares(asked("anger", "score", ("furious", "cross", "calm")), ANGER) == up[::-1]


def test_score_by_a_mapping_file_may_name_levels_by_number():
    renamed = {"heat": Renamed(task="anger", labels={"0": "calm", "1": "cross", "hot": "furious"})}
    assert shares(asked("heat", "score", ("It is cold", "It is warm", "hot")), ANGER, renamed) == (0.5, 0.375, 0.125)


@pytest.mark.parametrize(
    ("name", "levels", "value", "wanted"),
    [
        ("stars", 5, 1.0, (1, 0, 0, 0, 0)),
        ("stars", 5, 3.25, (0, 0, 0.75, 0.25, 0)),
        ("stars", 5, 5.0, (0, 0, 0, 0, 1)),
        ("urgency", 3, 0.25, (0.5, 0.5, 0)),
        ("urgency", 2, 0.75, (0.25, 0.75)),
    ],
)
def test_score_by_a_number_lies_between_two_levels(name, levels, value, wanted):
    """1 to 5 are five levels that are 1 apart; 0 to 1 is the way from the first level to the last."""
    found = shares(asked(name, "score", tuple(map(str, range(levels)))), {"value": value})
    assert found == wanted
    low, high = ALL[name].range
    assert expectation(found) == pytest.approx((value - low) / (high - low) * (levels - 1))


@pytest.mark.parametrize(
    ("question", "says"),
    [
        (asked("moods", "predicate"), "no task answers this question"),
        (asked("", "predicate"), "without a name"),
        (asked("mood", "predicate"), "which label of task 'mood'"),
        (asked("topics", "predicate"), "which label of task 'topics'"),
        (asked("anger", "predicate"), "which label of task 'anger'"),
        (asked("stars", "predicate"), "no probabilities"),
        (asked("mood.great", "predicate"), "no task answers"),
        (asked("mood.good", "choice", ("a", "b")), "no task answers"),
        (asked("names", "choice", ("O", "B-product")), "kind 'tagging'"),
        (asked("same", "predicate"), "pair of texts"),
        (asked("mood", "choice", ("good", "bad", "fair")), "not the labels of task 'mood'"),
        (asked("mood", "choice", ("good", "Bad")), "not the labels of task 'mood'"),
        (asked("anger", "choice", ("calm", "cross")), "not the labels of task 'anger'"),
        (asked("mood", "choice", (True, False)), "not the labels of task 'mood'"),
        (asked("topics", "choice", ("order", "bill", "person")), "does not choose one"),
        (asked("urgency", "choice", ("0", "1")), "does not choose one"),
        (asked("stars", "score", ("a", "b", "c")), "does not fit the levels"),
        (asked("topics", "score", ("order", "bill", "person")), "does not choose one"),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else f"{value.name or 'none'}-{value.form}",
)
def test_question_that_no_task_answers_is_refused_with_the_reason(question, says):
    with pytest.raises(BadValue, match=says):
        reading_of(question, ALL, {})


def test_mapping_cannot_tell_a_boolean_from_its_text():
    renamed = {"q": Renamed(task="mood", labels={"true": "good", "false": "bad"})}
    with pytest.raises(BadValue, match="tell the options"):
        reading_of(asked("q", "choice", (True, "true")), ALL, renamed)
    assert shares(asked("q", "choice", (True, False)), MOOD, renamed) == (0.75, 0.25)


def test_task_of_a_mapping_file_that_was_removed_answers_no_longer():
    with pytest.raises(BadValue, match="no longer in the bundle"):
        reading_of(asked("q", "predicate"), ALL, {"q": Renamed(task="gone")})


@pytest.mark.parametrize("option", ["true", "false"])
@pytest.mark.parametrize("task", ["mood", "urgency"], ids=["other labels", "no labels"])
def test_label_of_a_mapping_file_that_the_task_lost_answers_no_longer(option, task):
    renamed = {"q": Renamed(task=task, labels={option: "gone"})}
    with pytest.raises(BadValue, match=f"question 'q' .* task '{task}'") as refused:
        reading_of(asked("q", "predicate"), ALL, renamed)
    assert refused.value.got == "gone"


def test_confidence_follows_the_formulas_of_the_conformance_suite():
    pytest.importorskip("jevcompat")
    from jevcompat import validate

    for spread in ((0.5, 0.5), (1.0, 0.0), (0.2, 0.5, 0.3), (0.25,) * 4, (0.7, 0.0, 0.0, 0.1, 0.2), (0.1, 0.9)):
        assert choice_confidence(spread) == pytest.approx(validate.choice_confidence(list(spread)), abs=1e-12)
        assert score_confidence(spread) == pytest.approx(validate.score_confidence(list(spread)), abs=1e-12)
    assert choice_confidence((0.5, 0.5)) == 0 and score_confidence((1.0, 0.0, 0.0)) == 1
    assert most_probable((0.25, 0.5, 0.5)) == 1


def test_words_of_json_are_lines():
    value = {"subject": "Late", "tags": ["a", None, "b"], "by": {"vip": True, "age": 3}, "none": None}
    assert json_text(value) == "subject: Late\ntags: a\nb\nby: vip: true\nage: 3"
    assert json_text([1.5, False, []]) == "1.5\nfalse\n"


def test_words_of_deep_json_are_refused():
    deep = "x"
    for _ in range(33):
        deep = [deep]
    assert json_text(deep[0]) == "x"
    with pytest.raises(BadValue, match="nested too deeply"):
        json_text(deep)


def test_probabilities_of_a_number_sum_to_one_at_any_place():
    for step in range(101):
        found = shares(asked("stars", "score", tuple("abcde")), {"value": 1 + step / 25})
        assert math.fsum(found) == pytest.approx(1, abs=1e-12) and min(found) >= 0
