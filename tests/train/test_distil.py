"""What a student learns from its teacher: the loss against plain numpy, its limits, and how students are trained."""

import msgspec
import numpy as np
import pytest
import torch
from scipy.special import expit, log_expit, log_softmax, softmax

from polyhead.deep.branch.run import _noisy
from polyhead.deep.examples import module_outputs
from polyhead.deep.features import tap_examples
from polyhead.deep.loop.loss import LOSSES, UNLABELLED, distilled
from polyhead.deep.sharing.make import arrays_of_part
from polyhead.errors import TrainError
from polyhead.project.strategies import Branch
from polyhead.tasks.kinds import kind_of
from support import tiny_project
from support.cases import cases
from support.tiers import first_of
from support.tiny_branches import DEPTH, branches_of, bytes_of, extractor_of, home_in, seeded, untimed, weights_of

TEMPERATURES = (0.5, 1.0, 2.0, 7.0)
SHAPES = {
    "cross_entropy": (6, 3),
    "binary_cross_entropy": (6, 3),
    "squared_error": (6, 1),
    "word_cross_entropy": (3, 4, 3),
    "ranking": (7, 1),
    "span_cross_entropy": (3, 4, 2),
}
CUT = UNLABELLED
TARGETS = {
    "cross_entropy": np.array([0, 2, 1, 1, 0, 2]),
    "binary_cross_entropy": np.array([[0, 1, 1], [1, 0, 0], [0, 0, 0], [1, 1, 1], [0, 0, 1], [1, 0, 1]], np.float64),
    "squared_error": np.array([0.1, 0.9, 0.4, 0.0, 1.0, 0.3]),
    "word_cross_entropy": np.array(
        [[0, 2, UNLABELLED, UNLABELLED], [1, UNLABELLED, 2, 0], [UNLABELLED, 1, 1, UNLABELLED]]
    ),
    # three questions with 2, 3 and 2 options
    "ranking": np.array([[0, 1], [0, 0], [1, 0], [1, 0], [1, 1], [2, 0], [2, 1]]),
    # an answer, one that was cut away, none: the places of each text
    "span_cross_entropy": np.array(
        [
            [[0, 0], [1, 0], [0, 1], [CUT, CUT]],
            [[0, 0], [0, 0], [CUT, CUT], [CUT, CUT]],
            [[1, 1], [0, 0], [0, 0], [0, 0]],
        ]
    ),
}


def drawn(name, seed):
    return 2.0 * np.random.default_rng(seed).normal(size=SHAPES[name])


def by_hand(name, student, teacher, targets, tau):
    """`L(y, z_s) + tau^2 CE(softmax(z_t / tau), z_s / tau)`, each written out in numpy."""
    if name == "cross_entropy":
        hard = -log_softmax(student, axis=1)[np.arange(len(targets)), targets].mean()
        soft = -(softmax(teacher / tau, axis=1) * log_softmax(student / tau, axis=1)).sum(axis=1).mean()
        return hard + tau**2 * soft
    if name == "binary_cross_entropy":
        hard = -(targets * log_expit(student) + (1 - targets) * log_expit(-student)).mean()
        p = expit(teacher / tau)
        soft = -(p * log_expit(student / tau) + (1 - p) * log_expit(-student / tau)).mean()
        return hard + tau**2 * soft
    if name == "squared_error":
        return ((student[:, 0] - targets) ** 2).mean() + ((student - teacher) ** 2).mean()
    if name == "ranking":
        rows = [np.flatnonzero(targets[:, 0] == i) for i in range(3)]
        several = [(student[r, 0][None], teacher[r, 0][None], targets[r, 1].argmax()[None]) for r in rows]
        return np.mean([by_hand("cross_entropy", *one, tau) for one in several])
    if name == "span_cross_entropy":
        several = []
        for row, read in ((0, [0, 1, 2]), (2, [0, 1, 2, 3])):
            for end in (0, 1):
                one = [z[row, read, end][None] for z in (student, teacher)]
                several.append((*one, targets[row, read, end].argmax()[None]))
        return np.mean([by_hand("cross_entropy", *one, tau) for one in several])
    read = targets != UNLABELLED
    return by_hand("cross_entropy", student[read], teacher[read], targets[read], tau)


def loss_of(name, student, teacher, *, tau=2.0, weights=None, targets=None):
    """Its value and its gradient with respect to the student's outputs."""
    outputs = torch.from_numpy(student).requires_grad_()
    given = torch.from_numpy(TARGETS[name] if targets is None else targets)
    value = distilled(name, tau)(outputs, given, weights, torch.from_numpy(teacher))
    value.backward()
    return float(value.detach()), outputs.grad.numpy()


def hard_gradient(name, student):
    outputs = torch.from_numpy(student).requires_grad_()
    LOSSES[name](outputs, torch.from_numpy(TARGETS[name]), None).backward()
    return outputs.grad.numpy()


def test_every_loss_has_a_teachers_term():
    assert set(SHAPES) == set(TARGETS) == set(LOSSES) - {"token_cross_entropy"}  # no branch writes texts


@cases("tau", TEMPERATURES)
@cases("name", SHAPES)
def test_the_loss_is_the_labels_term_and_the_teachers(name, tau):
    student, teacher = drawn(name, 1), drawn(name, 2)
    found, _ = loss_of(name, student, teacher, tau=tau)
    assert found == pytest.approx(by_hand(name, student, teacher, TARGETS[name], tau), rel=1e-9)


@pytest.mark.parametrize("name", ["cross_entropy", "word_cross_entropy"])
def test_the_teachers_term_pulls_by_tau_times_the_difference_of_probabilities(name):
    """d/dz_s of tau^2 CE = tau (softmax(z_s / tau) - softmax(z_t / tau)) / n, n the rows or labelled words."""
    student, teacher, tau = drawn(name, 1), drawn(name, 2), 2.0
    _, gradient = loss_of(name, student, teacher, tau=tau)
    read = TARGETS[name] != UNLABELLED
    expected = tau * (softmax(student / tau, axis=-1) - softmax(teacher / tau, axis=-1)) / read.sum()
    np.testing.assert_allclose((gradient - hard_gradient(name, student))[read], expected[read], atol=1e-12)


@cases("tau", TEMPERATURES)
@cases("name", SHAPES)
def test_a_student_that_answers_as_its_teacher_learns_from_the_labels_alone(name, tau):
    student = drawn(name, 1)
    _, gradient = loss_of(name, student, student.copy(), tau=tau)
    np.testing.assert_allclose(gradient, hard_gradient(name, student), atol=1e-12)


def test_a_very_warm_teacher_is_matched_in_its_centred_outputs():
    """The limit of Hinton et al. (2015): the pull becomes (z_s - z_t) / (n C), each row's means taken out."""
    student, teacher = drawn("cross_entropy", 1), drawn("cross_entropy", 2)
    _, gradient = loss_of("cross_entropy", student, teacher, tau=1e5)
    centred = [z - z.mean(axis=1, keepdims=True) for z in (student, teacher)]
    expected = (centred[0] - centred[1]) / student.size
    np.testing.assert_allclose(gradient - hard_gradient("cross_entropy", student), expected, atol=1e-5)


def test_words_without_a_label_have_no_gradient_and_a_batch_without_any_has_no_loss():
    student, teacher = drawn("word_cross_entropy", 1), drawn("word_cross_entropy", 2)
    _, gradient = loss_of("word_cross_entropy", student, teacher)
    assert ((np.abs(gradient).sum(axis=2) > 0) == (TARGETS["word_cross_entropy"] != UNLABELLED)).all()
    nothing = np.full((3, 4), UNLABELLED)
    value, gradient = loss_of("word_cross_entropy", student, teacher, targets=nothing)
    assert value == 0.0 and not gradient.any()


@pytest.mark.parametrize("name", ["cross_entropy", "binary_cross_entropy", "word_cross_entropy"])
def test_class_weights_act_on_the_labels_term_alone(name):
    student, teacher = drawn(name, 1), drawn(name, 2)
    weights = torch.tensor([0.5, 2.0, 9.0], dtype=torch.float64)
    outputs, targets = torch.from_numpy(student), torch.from_numpy(TARGETS[name])
    hard = [float(LOSSES[name](outputs, targets, w)) for w in (weights, None)]
    whole = [loss_of(name, student, teacher, weights=w)[0] for w in (weights, None)]
    assert hard[0] != pytest.approx(hard[1], rel=0.01)
    assert whole[0] - whole[1] == pytest.approx(hard[0] - hard[1], rel=1e-9)


@pytest.mark.parametrize("name", SHAPES)
def test_no_gradient_reaches_the_teacher(name):
    teacher = torch.from_numpy(drawn(name, 2)).requires_grad_()
    student = torch.from_numpy(drawn(name, 1)).requires_grad_()
    distilled(name, 2.0)(student, torch.from_numpy(TARGETS[name]), None, teacher).backward()
    assert teacher.grad is None and student.grad.abs().sum() > 0


# students


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return home_in(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def kept(home, tmp_path_factory):
    """An extractor whose stores hold every tap of every tiny task."""
    extractor = extractor_of(home, tmp_path_factory.mktemp("kept"))
    for name in tiny_project.ENTRIES:
        branches_of(home, extractor, name, depths=range(1, DEPTH + 1))
    return extractor


TEACHERS = {}  # trained so far
OF_STUDENTS = {"noisy_teacher", "temperature", "init"}  # settings that no teacher reads


def with_teacher(home, kept, name="mood", *, depth=2, training=None, **strategy):
    """The task's branches under this strategy, and their teacher, which nothing may change."""
    training = training or seeded()
    branches = branches_of(
        home, kept, name, strategy=Branch(layers=depth, hidden=8, **strategy), training=training, depths=()
    )
    own = {setting: value for setting, value in strategy.items() if setting not in OF_STUDENTS}
    key = repr((home, name, depth, training, own))
    if key not in TEACHERS:
        TEACHERS[key] = branches.teacher(depth)
    return branches, TEACHERS[key]


@pytest.mark.parametrize("name", tiny_project.ENTRIES)
@pytest.mark.parametrize("noisy", first_of([False, True]), ids=["calm", "noisy"])
def test_a_student_of_every_kind_sits_above_its_teachers_tap_and_leaves_the_teacher_alone(home, kept, name, noisy):
    branches, teacher = with_teacher(home, kept, name, depth=3, noisy_teacher=noisy)
    before = weights_of(teacher.module)
    student = branches.student(teacher, 1)
    assert (student.layers, student.path.layers[0].start, len(student.path.layers)) == (1, 0, 1)
    assert {n.split(".")[1] for n in student.arrays if n.startswith("layers.")} == {"0"}
    assert weights_of(teacher.module) == before
    assert before == {f"part.{n}": b for n, b in bytes_of(teacher.arrays).items()}
    assert not teacher.module.training
    assert np.isfinite([row["loss"] for row in student.fitted.history]).all()


def unmoved(branches, **changes):
    """The same branches with steps too small to move a float32 weight, so that one sees where training starts."""
    training = seeded(learning_rate=1e-30, epochs=1, batch=32, dropout=0.0, **changes)
    branches.prepared = msgspec.structs.replace(branches.prepared, training=training)
    return branches


def test_a_student_starts_as_its_teachers_lower_layers_pooler_and_head(home, kept):
    branches, teacher = with_teacher(home, kept, depth=3, positions="attention")
    student = unmoved(branches).student(teacher, 2)
    assert {name.split(".")[0] for name in student.arrays} == {"layers", "pool", "head"}
    for name, array in student.arrays.items():
        assert np.array_equal(array, teacher.arrays[name]), name


def test_a_student_of_pretrained_layers_starts_as_a_branch_of_its_own_at_the_same_tap(home, kept):
    branches, teacher = with_teacher(home, kept, depth=3, init="pretrained", positions="attention")
    student = unmoved(branches).student(teacher, 2)
    module, _ = branches.loop(branches.path(2, tap=0))
    for name, array in arrays_of_part(module.part).items():
        np.testing.assert_allclose(student.arrays[name], array, rtol=0, atol=1e-25, err_msg=name)
    assert student.arrays["layers.1.attention.query.weight"].tobytes() == (
        kept.data.arrays["layers.1.attention.query.weight"].astype(np.float32).tobytes()
    )
    assert not np.array_equal(student.arrays["head.output.weight"], teacher.arrays["head.output.weight"])


def test_a_student_no_deeper_than_its_teacher_is_allowed_and_a_deeper_one_refused(home, kept):
    branches, teacher = with_teacher(home, kept, depth=2)
    assert branches.student(teacher, 2).layers == 2
    with pytest.raises(TrainError, match="no deeper than its teacher") as caught:
        branches.student(teacher, 3)
    assert (caught.value.got, caught.value.allowed) == (3, 2)


@pytest.mark.parametrize("name", tiny_project.ENTRIES)
def test_the_first_loss_of_a_student_is_the_formula_on_both_models_outputs(home, kept, name):
    """The whole way: states, teacher's answers by example, targets, and the loss, against numpy."""
    branches, teacher = with_teacher(home, kept, name, depth=3, dropout=0.0, temperature=3.0)
    examples = tap_examples(branches.prepared, branches.prepared.train, teacher.path, kept, precision="float32")
    soft = module_outputs(teacher.module, examples)
    path = branches.path(1, tap=0)
    start = branches._module(path, None, teacher.arrays, head=True).eval()
    hard = module_outputs(start, examples)
    targets = branches.prepared.train.examples.targets
    kind = kind_of(branches.prepared.task)
    if kind.per_word:
        read = [~np.isnan(one).any(axis=1) for one in hard]
        both = [
            np.concatenate([o[r] for o, r in zip(side, read, strict=True)]).astype(np.float64) for side in (hard, soft)
        ]
        wanted = np.concatenate([t[r] for t, r in zip(targets, read, strict=True)])
        expected = by_hand("cross_entropy", *both, wanted, 3.0)
    else:
        both = [np.stack(side).astype(np.float64) for side in (hard, soft)]
        expected = by_hand(kind.loss, *both, np.stack(targets), 3.0)
    found = unmoved(branches).student(teacher, 1).fitted.history[0]["loss"]
    assert found == pytest.approx(expected, rel=1e-4)


def test_a_noisy_teacher_answers_with_its_dropout_on_and_is_as_it_was_afterwards(home, kept):
    branches, teacher = with_teacher(home, kept, dropout=0.3)
    batch = next(
        iter(
            tap_examples(branches.prepared, branches.prepared.train, teacher.path, kept, precision="float32").in_order(
                8
            )
        )
    )
    before = weights_of(teacher.module)
    answer = _noisy(teacher.module)
    torch.manual_seed(0)
    first, second = answer(*batch.arguments), answer(*batch.arguments)
    torch.manual_seed(0)
    again = answer(*batch.arguments)
    assert torch.equal(first, again) and not torch.equal(first, second)
    assert not first.requires_grad and not teacher.module.training
    assert weights_of(teacher.module) == before
    with torch.inference_mode():
        calm = teacher.module(*batch.arguments)
    assert not torch.equal(first, calm)


def test_students_of_a_noisy_and_of_a_calm_teacher_are_equal_where_nothing_is_dropped(home, kept):
    found = []
    for noisy in (False, True):
        branches, teacher = with_teacher(home, kept, dropout=0.0, noisy_teacher=noisy, training=seeded(dropout=0.0))
        found.append(branches.student(teacher, 1).arrays)
    for name, array in found[0].items():
        if not name.endswith("key.bias"):  # it cancels in the softmax, so that its steps are rounding
            np.testing.assert_allclose(array, found[1][name], atol=1e-4, err_msg=name)


def test_a_noisy_teacher_teaches_another_student_than_a_calm_one(home, kept):
    found = []
    for noisy in (False, True):
        branches, teacher = with_teacher(home, kept, noisy_teacher=noisy, dropout=0.3)
        found.append(bytes_of(branches.student(teacher, 1).arrays))
    assert found[0] != found[1]


@pytest.mark.parametrize("noisy", [False, True], ids=["calm", "noisy"])
def test_same_seed_same_student_and_another_seed_another(home, kept, noisy):
    branches, teacher = with_teacher(home, kept, noisy_teacher=noisy)
    one, again = branches.student(teacher, 1), branches.student(teacher, 1)
    other = branches.student(teacher, 1, seed=9)
    assert bytes_of(one.arrays) == bytes_of(again.arrays) != bytes_of(other.arrays)
    assert untimed(one.fitted) == untimed(again.fitted)


def test_a_student_of_a_restored_teacher_is_that_of_the_trained_one(home, kept):
    branches, teacher = with_teacher(home, kept, noisy_teacher=True)
    again = branches.restored(teacher.path, teacher.arrays)
    assert bytes_of(branches.student(again, 1).arrays) == bytes_of(branches.student(teacher, 1).arrays)
