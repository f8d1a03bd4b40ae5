"""Full fine-tuning and whole-model distillation, what branches are compared with: all moves, nothing is shared."""

import msgspec
import numpy as np
import pytest
import torch

from polyhead.deep.examples import TextExamples
from polyhead.deep.loop.loss import distilled
from polyhead.deep.nn.trunk import Trunk
from polyhead.deep.recipes.joint_model import JointModel
from polyhead.encoder.data import arrays_digest
from polyhead.plan import Embed, Head, Layers, Pool
from polyhead.project.pretrained import load_trunk
from polyhead.project.recipes import Joint
from polyhead.project.strategies import Branch
from polyhead.tasks.kinds import kind_of
from studies.wei2021.whole import lowest, restore_whole, train_whole, whole_path
from support.tiny_branches import DEPTH, TRAINING, extractor_of, home_in, prepared_of, seeded, untimed, weights_of

STRATEGY = Branch(hidden=8)
STILL = seeded(learning_rate=1e-30, epochs=1, batch=32, dropout=0.0)  # no float32 weight but zeros can move


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return home_in(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def extractor(home, tmp_path_factory):
    return extractor_of(home, tmp_path_factory.mktemp("kept"))


def trained(home, extractor, name="mood", *, layers=DEPTH, training=TRAINING, strategy=STRATEGY, **named):
    prepared = prepared_of(home, name, training=training)
    return train_whole(prepared, strategy, extractor, layers=layers, precision="float32", **named)


@pytest.fixture(scope="module")
def whole(home, extractor):
    return trained(home, extractor)


@pytest.fixture(scope="module")
def saved(whole, tmp_path_factory):
    file = tmp_path_factory.mktemp("saved") / "new" / "mood.checkpoint"
    whole.save(file)
    return file


def test_the_path_is_first_position_tanh_layer_output(home):
    prepared = prepared_of(home, "mood")
    assert whole_path(prepared, 2, 16).nodes == (
        Embed(trunk="fine-tuned on mood"),
        Layers(start=0, stop=2),
        Pool(layers="last", positions="first"),
        Head(kind="single_label", width=2, part="task:mood", hidden=16),
    )


def test_every_array_moves_the_embeddings_too_and_the_shared_trunk_does_not(home, extractor, whole):
    before = arrays_digest(load_trunk(str(home / "trunk")).arrays)
    assert arrays_digest(extractor.data.arrays) == before
    moved = {name: value.numpy() for name, value in whole.weights["trunk"].state_dict().items()}
    assert set(moved) == set(extractor.data.arrays)
    still = {name for name, array in moved.items() if np.array_equal(array, extractor.data.arrays[name])}
    assert not {name for name in still if not name.endswith("key.bias")}, still
    assert any(name.startswith("embeddings.word") for name in moved)
    assert all(p.requires_grad for p in whole.module.parameters())


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_a_model_of_fewer_layers_starts_as_the_lowest_of_the_trunk(home, extractor, layers):
    trunk = trained(home, extractor, layers=layers, training=STILL).weights["trunk"]
    assert len(trunk.layers) == layers
    for name, value in trunk.state_dict().items():
        np.testing.assert_allclose(value, extractor.data.arrays[name], rtol=0, atol=1e-25, err_msg=name)


@pytest.mark.parametrize("name", ["mood", "urgency", "topics", "same"])
def test_a_model_of_half_depth_starts_as_its_teachers_embeddings_bottommost_layers_and_head(
    home, extractor, tmp_path, name
):
    teacher = trained(home, extractor, name, training=seeded(epochs=1))
    teacher.save(tmp_path / "teacher.checkpoint")
    student = trained(
        home, extractor, name, layers=2, training=STILL, teacher=tmp_path / "teacher.checkpoint"
    ).weights.state_dict()
    known = teacher.weights.state_dict()
    assert set(student) == {n for n in known if not n.startswith("trunk.layers.2.")}
    for part, value in student.items():
        np.testing.assert_allclose(value, known[part], rtol=0, atol=1e-25, err_msg=part)


@pytest.mark.parametrize("name", ["mood", "urgency", "topics"])
def test_the_first_loss_of_a_student_is_the_distillation_of_its_teachers_outputs(home, extractor, tmp_path, name):
    strategy = Branch(hidden=8, dropout=0.0, temperature=3.0)
    teacher = trained(home, extractor, name, strategy=strategy, training=seeded(epochs=1))
    teacher.save(tmp_path / "teacher.checkpoint")
    student = trained(
        home, extractor, name, layers=1, strategy=strategy, training=STILL, teacher=tmp_path / "teacher.checkpoint"
    )
    split = student.prepared.train
    outputs, soft = (torch.from_numpy(np.stack(model.outputs(split))) for model in (student, teacher))
    targets = torch.from_numpy(np.stack(split.examples.targets))
    expected = distilled(kind_of(student.prepared.task).loss, 3.0)(outputs, targets, None, soft)
    assert student.fitted.history[0]["loss"] == pytest.approx(float(expected), rel=1e-4)


def test_what_is_saved_is_restored_with_the_same_answers(home, extractor, whole, saved):
    again = restore_whole(whole.prepared, STRATEGY, extractor, layers=DEPTH, precision="float32", file=saved)
    assert weights_of(again.module) == weights_of(whole.module) and not again.module.training
    for split in whole.prepared.splits:
        assert again.evaluate(split) == whole.evaluate(split)
    best = max(row["score"] for row in whole.fitted.history)
    assert whole.evaluate(whole.prepared.validation)["accuracy"] == whole.fitted.score == best


@pytest.mark.parametrize("teacher", [False, True], ids=["fine-tuned", "distilled"])
def test_same_seed_same_model_and_another_seed_another(home, extractor, saved, teacher):
    named = {"teacher": saved} if teacher else {}
    short = seeded(epochs=2)
    one, again = (trained(home, extractor, layers=2, training=short, **named) for _ in range(2))
    other = trained(home, extractor, layers=2, training=seeded(short, seed=2), **named)
    assert weights_of(one.module) == weights_of(again.module) != weights_of(other.module)
    assert untimed(one.fitted) == untimed(again.fitted)


def test_teaching_leaves_the_teachers_file_as_it_was(home, extractor, saved):
    before = saved.read_bytes()
    trained(home, extractor, layers=1, training=seeded(epochs=1), teacher=saved)
    assert saved.read_bytes() == before


def test_dropout_of_the_layers_is_the_strategys_and_acts_in_training_alone(home, extractor):
    found = []
    for share in (0.0, 0.5):
        strategy = msgspec.structs.replace(STRATEGY, dropout=share)
        found.append(trained(home, extractor, strategy=strategy, training=STILL))
    split = found[0].prepared.validation
    for one, other in zip(*(model.outputs(split) for model in found), strict=True):
        np.testing.assert_array_equal(one, other)
    losses = [model.fitted.history[0]["loss"] for model in found]
    assert losses[0] != pytest.approx(losses[1], rel=1e-6)


@pytest.mark.parametrize("positions", ["first", "mean"])
@pytest.mark.parametrize("layers", [1, 3])
def test_a_whole_model_is_its_trunk_its_pool_and_its_part_one_after_the_other(home, extractor, layers, positions):
    """The last layer computes one position where one is read; here all are computed, and pooled by hand."""
    prepared = prepared_of(home, "mood")
    path = whole_path(prepared, layers, 16)
    nodes = [Pool(positions=positions) if isinstance(node, Pool) else node for node in path.nodes]
    path = msgspec.structs.replace(path, nodes=tuple(nodes))
    module = JointModel(
        lowest(extractor.data, layers),
        {"mood": path},
        training=TRAINING,
        recipe=Joint(layer_dropout=0.5),
        bfloat16=False,
    ).eval()
    examples = TextExamples(extractor.tokenizer, prepared.train.examples.inputs, prepared.train.examples.targets)
    (batch,) = examples.batch(np.arange(32)).arguments
    with torch.inference_mode():
        trunk = Trunk.from_data(extractor.data).eval()
        states = trunk.start(batch.ids, batch.mask, segments=batch.segments)
        hidden, mask = trunk.go_on(states, stop=layers).last, batch.mask[..., None]
        pooled = hidden[:, 0] if positions == "first" else (hidden * mask).sum(dim=1) / mask.sum(dim=1)
        expected = module.model.parts["mood"](pooled[:, None, None], batch.mask[:, :1])
        torch.testing.assert_close(module("mood", batch), expected, atol=1e-5, rtol=0)
