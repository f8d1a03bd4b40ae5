"""Which head is kept: the simplest, unless another is better by more than chance."""

import msgspec
import numpy as np
import pytest

from polyhead.data.read import Examples, ReadReport
from polyhead.tasks.kinds import tagged
from polyhead.tasks.task import Task
from polyhead.train.heads.selection_rule import best_of, choosing_score, of_best_rounds, paired_error

TASK = Task(name="t", kind="single_label", labels=("no", "yes"))


def examples(targets):
    return Examples(
        inputs=[(f"text {i}",) for i in range(len(targets))],
        targets=[np.asarray(target) for target in targets],
        words=None,
        rows=list(range(len(targets))),
        report=ReadReport(),
    )


def outputs(answers):
    return [np.eye(2, dtype=np.float32)[answer] for answer in answers]


def right_in(targets, count):
    """Answers of which so many are right, anywhere."""
    wrong = set(np.random.default_rng(count).permutation(len(targets))[count:].tolist())
    return outputs([1 - t if i in wrong else t for i, t in enumerate(targets)])


def test_a_clearly_better_one_takes_the_place_of_the_simplest():
    targets = [i % 2 for i in range(100)]
    several = [right_in(targets, 70), right_in(targets, 90)]
    assert best_of(TASK, examples(targets), several) == 1


def test_one_output_answered_in_two_ways_is_two_candidates():
    """Of one label that every row has, at a probability of 0.3, a threshold below it gives all and 0.5 none."""
    task = Task(name="t", kind="multi_label", labels=("a",))
    lower, rows = msgspec.structs.replace(task, threshold=0.2), examples([[1.0]] * 100)
    same = [np.log(np.float32([0.3 / 0.7]))] * 100
    assert best_of(task, rows, [same, same], tasks=[task, lower]) == 1
    assert best_of(task, rows, [same, same], tasks=[lower, task]) == best_of(task, rows, [same, same]) == 0


def test_one_row_more_is_chance():
    targets = [i % 2 for i in range(100)]
    several = [right_in(targets, 70), right_in(targets, 71)]
    assert choosing_score(TASK, examples(targets), several[1]) > choosing_score(TASK, examples(targets), several[0])
    assert best_of(TASK, examples(targets), several) == 0


def test_equal_outputs_differ_by_no_error_and_the_first_is_kept():
    targets = [0, 1] * 10
    same = right_in(targets, 15)
    assert paired_error(TASK, examples(targets), same, same) == 0.0
    assert best_of(TASK, examples(targets), [same, list(same), list(same)]) == 0


@pytest.mark.parametrize("rows", [1, 2, 7])
def test_few_rows_are_no_error(rows):
    targets = [i % 2 for i in range(rows)]
    assert best_of(TASK, examples(targets), [right_in(targets, 0), right_in(targets, rows)]) in (0, 1)


def test_the_standard_error_is_about_that_of_a_paired_difference():
    """Of independent rows: the standard deviation of the rows' differences over the root of their number."""
    rng = np.random.default_rng(0)
    targets = rng.integers(0, 2, 2000)
    first, second = ((rng.random(2000) < share).astype(int) for share in (0.7, 0.75))
    answers = [np.where(side, targets, 1 - targets) for side in (first, second)]
    estimated = paired_error(TASK, examples(targets), *map(outputs, answers))
    expected = np.std(second - first) / np.sqrt(2000)
    assert 0.4 * expected < estimated < 2 * expected


@pytest.mark.slow
def test_the_best_of_many_rounds_of_chance_is_no_better_than_chance():
    """Of 16 rows the best of 30 rounds is right in seven of ten."""
    targets, generator, found, best = [i % 2 for i in range(16)], np.random.default_rng(1), [], []
    for _ in range(40):
        rounds = [outputs(generator.integers(0, 2, 16).tolist()) for _ in range(30)]
        unseen = of_best_rounds(TASK, examples(targets), rounds, [4, 3, 3, 3, 3])
        found.append(choosing_score(TASK, examples(targets), unseen))
        best.append(max(choosing_score(TASK, examples(targets), one) for one in rounds))
    assert np.mean(best) > 0.7
    assert abs(np.mean(found) - 0.5) < 0.08


def test_each_fold_takes_the_round_that_is_the_best_for_the_others():
    targets = [0, 1, 0, 1]
    rounds = [outputs([0, 1, 1, 0]), outputs([1, 0, 0, 1])]  # right for the first two rows, for the last two
    unseen = of_best_rounds(TASK, examples(targets), rounds, [2, 2])
    assert [int(one.argmax()) for one in unseen] == [1, 0, 1, 0]


def test_the_standard_error_is_the_jackknife_of_scores_of_the_rows_that_are_kept():
    """The formula itself, with rows taken out one group after the other, of spans with learned transitions."""
    task = Task(name="t", kind="tagging", labels=("O", "B-a", "I-a"), decoder="constrained")
    task = msgspec.structs.replace(
        task, transitions=((0.3, 0.1, 0.0), (0.2, -0.4, 0.0), (0.0, 0.1, 0.9), (0.5, 0.0, 1.0))
    )
    rng, rows = np.random.default_rng(3), 25
    lengths = rng.integers(1, 7, rows)
    whole = examples([rng.integers(0, 3, length) for length in lengths])
    first, second = ([rng.normal(size=(length, 3)).astype(np.float32) for length in lengths] for _ in range(2))
    gains = []
    for group in range(10):
        kept = [row for row in range(rows) if row % 10 != group]
        scores = [choosing_score(task, whole.take(kept), [side[row] for row in kept]) for side in (first, second)]
        gains.append(scores[1] - scores[0])
    expected = np.sqrt(9 / 10 * np.sum((gains - np.mean(gains)) ** 2))
    assert expected > 0
    assert paired_error(task, whole, first, second) == pytest.approx(expected, rel=1e-9)


def test_a_candidate_is_decoded_once_however_many_rows_are_left_out(monkeypatch):
    task = Task(name="t", kind="tagging", labels=("O", "B-a", "I-a"), decoder="constrained")
    rng, decoded, chosen = np.random.default_rng(4), [], tagged.chosen
    targets = [rng.integers(0, 3, 5) for _ in range(40)]
    sides = [[rng.normal(size=(5, 3)).astype(np.float32) for _ in targets] for _ in range(3)]
    monkeypatch.setattr(tagged, "chosen", lambda *a: decoded.append(len(a[1])) or chosen(*a))
    best_of(task, examples(targets), sides)
    of_best_rounds(task, examples(targets), sides, [10] * 4)
    assert decoded == [40 * 5] * 6
