"""The decoder that keeps to BIO, against every sequence of labels that there is."""

import itertools

import msgspec
import numpy as np
import pytest

from polyhead.errors import ConfigError
from polyhead.project.tables import TaskEntry
from polyhead.tasks.kinds import kind_of, tagged
from polyhead.tasks.kinds.tagged import (
    UNREAD,
    allowed_transitions,
    best,
    best_path,
    best_paths,
    chosen,
    log_transitions,
    parts_marked,
)
from polyhead.tasks.metrics import spans_of
from polyhead.tasks.task import Example, Task

LABELS = ("O", "B-drug", "I-drug", "B-date", "I-date")
LAST_O = ("I-x", "B-y", "B-x", "O")  # any order is a task's right; y has no I-


def valid(tags):
    before = "O"
    for tag in tags:
        if tag.startswith("I-") and before not in (f"B-{tag[2:]}", tag):
            return False
        before = tag
    return True


def log_softmax(outputs):
    return outputs - np.log(np.exp(outputs).sum(axis=-1, keepdims=True))


def by_hand(outputs, labels, learned=None):
    """The best of all sequences, and its sum of log-probabilities; a row of NaN costs nothing, whatever it gets."""
    scores = np.nan_to_num(log_softmax(outputs.astype(np.float64)))
    learned = np.zeros((len(labels) + 1, len(labels))) if learned is None else learned
    found = (
        (sum(scores[word, label] + learned[row, label] for word, (row, label) in enumerate(steps(path))), path)
        for path in itertools.product(range(len(labels)), repeat=len(outputs))
        if valid([labels[label] for label in path])
    )
    return max(found)


def steps(path):
    """For each word the row of the transitions, 0 at the beginning, and its label."""
    return list(zip([0, *(label + 1 for label in path[:-1])], path, strict=True))


def test_with_learned_transitions_too_the_path_is_the_best_of_all():
    chance, changed = np.random.default_rng(7), 0
    for _ in range(40):
        outputs = chance.normal(size=(chance.integers(1, 6), len(LABELS)))
        learned = chance.normal(size=(len(LABELS) + 1, len(LABELS)))
        found = best_path(outputs, LABELS, tuple(map(tuple, learned.tolist())))
        assert found.tolist() == list(by_hand(outputs, LABELS, learned)[1])
        changed += found.tolist() != best_path(outputs, LABELS).tolist()
    assert changed > 5


def test_texts_that_are_not_searched_have_the_best_path_of_all_too(monkeypatch):
    """Sure outputs beside unsure ones; the search of every text gives the same."""
    chance, several = np.random.default_rng(17), []
    learned = chance.normal(size=(len(LABELS) + 1, len(LABELS)))
    rows = [
        chance.normal(scale=scale, size=(length, len(LABELS))) for scale in (1, 4, 9, 30) for length in (1, 2, 4) * 6
    ]
    transitions = tuple(map(tuple, learned.tolist()))
    paths = best_paths(rows, LABELS, transitions)
    assert [path.tolist() for path in paths] == [list(by_hand(row, LABELS, learned)[1]) for row in rows]
    are_settled = tagged._are_settled

    def none_settled(*values):
        several.append(are_settled(*values))
        return np.zeros_like(several[0])

    monkeypatch.setattr(tagged, "_are_settled", none_settled)
    searched = best_paths(rows, LABELS, transitions)
    assert 10 < several[0].sum() < 60  # of 72
    assert [path.tolist() for path in searched] == [path.tolist() for path in paths]


def test_transitions_say_how_much_more_often_a_label_follows_another():
    """Without smoothing's half word and one word it is log p(to | from) / p(to), counted one by one."""
    chance = np.random.default_rng(9)
    rows = [chance.choice(3, size=chance.integers(1, 9), p=[0.6, 0.3, 0.1]) for _ in range(3000)]
    pairs = [(row, label) for each in rows for row, label in steps(each.tolist())]
    labels = [label for _, label in pairs]
    found = log_transitions(rows, 3)
    for before, label in itertools.product(range(4), range(3)):
        after = [to for row, to in pairs if row == before]
        expected = np.log(after.count(label) / len(after) / (labels.count(label) / len(labels)))
        assert found[before, label] == pytest.approx(expected, abs=0.02)
    assert np.isfinite(log_transitions([np.array([0, -100, 2])], 4)).all()  # labels that no row has


@pytest.mark.parametrize("labels", [LABELS, LAST_O])
@pytest.mark.parametrize("unread", [0.0, 0.3])
def test_the_path_is_the_best_of_all_that_are_allowed(labels, unread):
    chance, corrected = np.random.default_rng(3), 0
    for _ in range(40):
        outputs = chance.normal(scale=2, size=(chance.integers(1, 6), len(labels))).astype(np.float32)
        outputs[chance.random(len(outputs)) < unread] = np.nan
        found = best_path(outputs, labels)
        score, path = by_hand(outputs, labels)
        assert found.dtype == np.int64 and valid([labels[i] for i in found])
        scores = np.nan_to_num(log_softmax(outputs.astype(np.float64)))
        assert scores[np.arange(len(found)), found].sum() == pytest.approx(score, abs=1e-9)
        read = ~np.isnan(outputs).any(axis=-1)
        assert found[read].tolist() == np.array(path)[read].tolist()
        corrected += (found != best(outputs))[read].any()
    assert corrected > 5


def test_no_path_is_ever_wrong_and_right_ones_are_left_alone():
    chance, left, labels = np.random.default_rng(5), 0, LABELS
    for _ in range(300):
        outputs = chance.normal(scale=3, size=(chance.integers(0, 12), len(labels)))
        outputs = np.round(outputs, 0)  # with ties
        found, greedy = best_path(outputs, labels), best(outputs)
        assert valid([labels[i] for i in found])
        if valid([labels[i] for i in greedy]):
            assert found.tolist() == greedy.tolist()
            left += 1
    assert 30 < left < 270


@pytest.mark.parametrize("is_learned", [False, True])
def test_texts_together_have_the_paths_of_each(is_learned, monkeypatch):
    """More than stand together, of many lengths, some without words; `chosen` reads them end to end, parts included."""
    monkeypatch.setattr("polyhead.tasks.kinds.tagged.AT_ONCE", 5)
    monkeypatch.setattr("polyhead.tasks.kinds.tagged.CHECKED_AT_ONCE", 4)
    chance = np.random.default_rng(11)
    rows = [chance.normal(scale=2, size=(length, len(LABELS))) for length in (3, 0, 7, 1, 7, 2, 12, 0, 5, 1, 4, 4, 9)]
    learned = tuple(map(tuple, chance.normal(size=(len(LABELS) + 1, len(LABELS))).tolist())) if is_learned else ()
    for row, path in zip(rows, best_paths(rows, LABELS, learned), strict=True):
        alone = best_path(row, LABELS, learned)
        assert path.dtype == np.int64 and path.tolist() == alone.tolist()
        if 0 < len(row) < 6:
            assert path.tolist() == list(by_hand(row, LABELS, np.array(learned) if learned else None)[1])
    for row in rows[2:]:
        row[chance.random(len(row)) < 0.2] = np.nan
        parts_marked(row, np.array([place > 0 and chance.random() < 0.2 for place in range(len(row))], bool))
    tagger = msgspec.structs.replace(task("constrained"), transitions=learned)
    together = chosen(tagger, np.concatenate(rows), np.cumsum([0, *map(len, rows)]))
    assert together.tolist() == [label for row in rows for label in chosen(tagger, row).tolist()]
    assert UNREAD in together


def test_what_may_follow_what():
    first, follows = allowed_transitions(LABELS)
    assert first.tolist() == [True, True, False, True, False]
    for i, before in enumerate(LABELS):
        assert follows[i].tolist() == [
            valid([*(["B-" + before[2:]] if before[0] == "I" else []), before, one]) for one in LABELS
        ]


def outputs_of(*rows):
    return np.array(rows, np.float32)


# "take red pills": alone, the words say O, I-drug, I-drug; B-drug is nearly as good for the second
OUTPUTS = outputs_of([5, 0, 0, 0, 0], [0, 2, 3, 0, 0], [0, 0, 5, 0, 0])


def task(decoder):
    return Task(name="t", kind="tagging", labels=LABELS, decoder=decoder)


def test_answers_and_scores_use_the_decoder():
    target = np.array([0, 1, 2])
    kind = kind_of(task("greedy"))
    assert kind.evaluate(task("greedy"), [OUTPUTS], [target], [])["accuracy"] == pytest.approx(2 / 3)
    assert kind.evaluate(task("constrained"), [OUTPUTS], [target], []) == {"span_f1": 1.0, "accuracy": 1.0}
    (greedy,) = kind.decode(task("greedy"), OUTPUTS, Example(input=("take red pills",)))["spans"]
    (found,) = kind.decode(task("constrained"), OUTPUTS, Example(input=("take red pills",)))["spans"]
    assert (found["label"], found["text"]) == (greedy["label"], greedy["text"]) == ("drug", "red pills")
    second, third = (np.exp(log_softmax(OUTPUTS[i].astype(np.float64))) for i in (1, 2))
    assert found["score"] == pytest.approx((second[1] + third[2]) / 2)
    assert greedy["score"] == pytest.approx((second[2] + third[2]) / 2)


def test_a_span_of_another_label_is_not_gone_on_with():
    """Alone: B-drug, I-date. `span_f1` would read the second as a span of its own."""
    outputs = outputs_of([0, 5, 0, 0, 0], [0, 0, 2, 0, 3])
    kind = kind_of(task("greedy"))
    spans = [
        kind.decode(task(name), outputs, Example(input=("red pills",)))["spans"] for name in ("greedy", "constrained")
    ]
    assert [[span["label"] for span in found] for found in spans] == [["drug", "date"], ["drug"]]


def test_words_that_were_not_read_let_a_span_through():
    outputs = outputs_of([0, 5, 0, 0, 0], [np.nan] * 5, [0, 0, 5, 0, 0])
    assert best_path(outputs, LABELS)[[0, 2]].tolist() == [1, 2]
    kind = kind_of(task("constrained"))
    assert kind.evaluate(task("constrained"), [outputs], [np.array([1, 0, 2])], [])["accuracy"] == 1.0
    assert kind.evaluate(task("constrained"), [outputs * np.nan], [np.array([0, 0, 0])], [])["accuracy"] == 1.0
    assert UNREAD not in best_path(outputs, LABELS)


def test_plain_labels_and_other_kinds_have_no_such_decoder():
    with pytest.raises(ConfigError, match="BIO labels"):
        Task(name="t", kind="tagging", labels=("NOUN", "VERB"), decoder="constrained")
    with pytest.raises(ConfigError, match="decoder"):
        Task(name="t", kind="single_label", labels=("no", "yes"), decoder="constrained")


def test_a_project_says_which_decoder():
    def decoder_of(labels, **keys):
        return TaskEntry(name="t", kind="tagging", train="a.jsonl", labels=labels, **keys).task().decoder

    assert decoder_of(LABELS) == "constrained"
    assert decoder_of(LABELS, decoder="greedy") == "greedy"
    assert decoder_of(("NOUN", "VERB")) == "greedy"


@pytest.mark.parametrize("labels", [LABELS, LAST_O])
def test_labels_of_any_begin_become_bio_with_the_same_spans(labels):
    one = Task(name="t", kind="tagging", labels=labels)
    for given in itertools.product(labels, repeat=4):
        if any(label.startswith("I-") and f"B{label[1:]}" not in labels for label in given):
            continue
        learned = [labels[i] for i in kind_of(one).encode(one, list(given), Example(input=("a b c d",)))]
        assert valid(learned) and spans_of(learned) == spans_of(list(given))
        assert not valid(given) or learned == list(given)


def test_transitions_of_other_labels_are_refused():
    several = ((0.0,) * len(LABELS),) * (len(LABELS) + 1)
    Task(name="t", kind="tagging", labels=LABELS, decoder="constrained", transitions=several)
    for wrong in ({"transitions": several[1:]}, {"decoder": "greedy"}):
        given = {"decoder": "constrained", "transitions": several} | wrong
        with pytest.raises(ConfigError, match="train the task again"):
            Task(name="t", kind="tagging", labels=LABELS, **given)


def test_words_that_were_not_read_add_no_learned_transitions():
    """The best of all sequences, where transitions count between two words with outputs, and else what is allowed."""
    chance, changed = np.random.default_rng(11), 0
    for _ in range(40):
        outputs = chance.normal(size=(chance.integers(2, 6), len(LABELS)))
        outputs[chance.random(len(outputs)) < 0.4] = np.nan
        learned = chance.normal(size=(len(LABELS) + 1, len(LABELS)))
        is_read = [True, *(~np.isnan(outputs).any(axis=1)).tolist()]  # the beginning counts as read

        def score(path, outputs=outputs, learned=learned, is_read=is_read):
            numbers = np.nan_to_num(log_softmax(outputs))
            return sum(
                numbers[word, label] + learned[row, label] * (is_read[word] and is_read[word + 1])
                for word, (row, label) in enumerate(steps(path))
            )

        paths = itertools.product(range(len(LABELS)), repeat=len(outputs))
        most = max(score(path) for path in paths if valid([LABELS[label] for label in path]))
        answer = best_path(outputs, LABELS, tuple(map(tuple, learned.tolist()))).tolist()
        assert valid([LABELS[label] for label in answer]) and score(answer) == pytest.approx(most)
        changed += answer != best_path(outputs, LABELS).tolist()
    assert changed > 5


def test_unread_words_after_a_text_change_none_of_its_labels():
    sentence = np.array([0] * 20 + [1, 2, 2] + [0] * 20)
    task = Task(name="t", kind="tagging", labels=("O", "B-x", "I-x"), decoder="constrained")
    learned = tuple(map(tuple, (0.6 * log_transitions([sentence] * 50, 3)).tolist()))
    task = msgspec.structs.replace(task, transitions=learned)
    read = np.array([[2.0, 0, 0]] * 4 + [[1.0, 0, 0]], np.float32)
    cut = np.concatenate([read, np.full((3, 3), np.nan, np.float32)])
    assert chosen(task, read).tolist() == chosen(task, cut)[:5].tolist() == [0] * 5
