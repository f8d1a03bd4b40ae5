"""The baseline CA-MTL: the trunk when its conditions say nothing, else its equations computed by hand."""

import math

import msgspec
import numpy as np
import pytest
import torch
from torch.nn import functional

from polyhead.deep.model import TextBatch
from polyhead.deep.nn.trunk import Trunk
from polyhead.deep.recipes.paths import joint_paths
from polyhead.errors import TrainError
from polyhead.project.pretrained import load_trunk
from polyhead.project.recipes import Joint
from polyhead.testing import tiny_trunk
from polyhead.train.data.prepare import prepare
from studies.huang2022.ca_mtl import BLOCK, BlockBias, Conditional, ConditionedCourse, Film, count_of
from studies.huang2022.methods import FIRST
from studies.huang2022.uncertain import entropies, most_uncertain
from support import tiny_project

TASKS = ("a", "b")
DATA = tiny_trunk(max_tokens=40)
SHAPE = DATA.architecture


def conditional(*, drawn=False):
    """As it starts, or with every array drawn at random, so that every condition says something."""
    made = Conditional(TASKS, SHAPE, tokens=40, generator=torch.Generator().manual_seed(1))
    if drawn:
        chance = torch.Generator().manual_seed(2)
        for value in made.parameters():
            torch.nn.init.normal_(value, std=0.3, generator=chance)
    return made.eval()


def batch(lengths=(37, 20, 3)):
    chance, longest = np.random.default_rng(3), max(lengths)
    ids = torch.from_numpy(chance.integers(5, SHAPE.vocabulary, (len(lengths), longest)))
    mask = torch.arange(longest) < torch.tensor(lengths)[:, None]
    return TextBatch(ids=ids, mask=mask, segments=torch.zeros_like(ids))


@torch.no_grad()
def states(made, task, texts):
    return made(Trunk.from_data(DATA), task, texts).last


def test_without_a_word_from_its_conditions_it_is_the_trunk():
    texts = batch()
    plain = Trunk.from_data(DATA)(texts.ids, texts.mask, segments=texts.segments).last
    for task in TASKS:
        assert torch.allclose(states(conditional(), task, texts), plain, atol=1e-5)


def test_small_gains_count_in_bfloat16_too():
    """1 + 0.001 is 1 in bfloat16, and so would the gain be."""
    film, vector = Film(8, 16), torch.ones(8)
    torch.nn.init.constant_(film.maps.weight, 0.001 / 8)
    values = torch.full((3, 16), 100.0)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        out = film(values, vector)
    assert torch.allclose(out, torch.full((3, 16), 100.0 * 1.001 + 0.001), rtol=1e-6)


def norm(values, gain, shift):
    mean, deviation = values.mean(-1, keepdim=True), values.var(-1, correction=0, keepdim=True)
    return (values - mean) / torch.sqrt(deviation + SHAPE.norm_epsilon) * gain + shift


def by_hand(made, task, ids):
    """One text without padding, from the equations: head by head, block by block, over the plain arrays."""
    own = {name: torch.tensor(np.asarray(value)) for name, value in DATA.arrays.items()}
    new = {name: value.detach() for name, value in made.state_dict().items()}
    z, length = new[f"tasks.{TASKS.index(task)}"], len(ids)

    def film(name):
        return (new[f"{name}.maps.weight"] @ z + new[f"{name}.maps.bias"]).chunk(2)

    def dense(name, values):
        return values @ own[f"{name}.weight"].T + own[f"{name}.bias"]

    def conditioned(index, half, values):
        name = f"layers.{index}.{half}.norm"
        gain, shift = own[f"{name}.weight"], own[f"{name}.bias"]
        if index >= SHAPE.layers // 2:
            more, added = film(f"norms.{index}_{half}")
            gain, shift = gain * (1 + more), shift + added
        return norm(values, gain, shift)

    h = own["embeddings.word.weight"][ids] + own["embeddings.position.weight"][:length]
    h = norm(h + own["embeddings.segment.weight"][0], own["embeddings.norm.weight"], own["embeddings.norm.bias"])
    gain, shift = film("embeddings")
    h = h * (1 + gain) + shift
    size = SHAPE.width // SHAPE.heads
    for index in range(SHAPE.layers):
        at = f"layers.{index}"
        gain, shift = film(f"attention.{index}.film")
        bias = torch.zeros(length, length)
        for i in range(length):
            for j in range(length):
                if i // BLOCK == j // BLOCK:
                    place = (i % BLOCK) * BLOCK + j % BLOCK
                    value = new[f"attention.{index}.blocks"][i // BLOCK, place]
                    bias[i, j] = value * (1 + gain[place]) + shift[place]
        q, k, v = (dense(f"{at}.attention.{name}", h) for name in ("query", "key", "value"))
        mixed = []
        for head in range(SHAPE.heads):
            part = slice(head * size, (head + 1) * size)
            scores = q[:, part] @ k[:, part].T / math.sqrt(size) + bias
            mixed.append(torch.softmax(scores, dim=-1) @ v[:, part])
        a = conditioned(index, "attention", h + dense(f"{at}.attention.output", torch.cat(mixed, dim=-1)))
        inner = functional.gelu(dense(f"{at}.feed_forward.inner", a))
        h = conditioned(index, "feed_forward", a + dense(f"{at}.feed_forward.outer", inner))
    gain, shift = film("between")
    inner = (h @ new["down.weight"].T + new["down.bias"]) * (1 + gain) + shift
    return h + functional.gelu(inner) @ new["up.weight"].T + new["up.bias"]


def test_it_computes_its_equations():
    made, texts = conditional(drawn=True), batch(lengths=(37,))
    for task in TASKS:
        assert torch.allclose(states(made, task, texts)[0], by_hand(made, task, texts.ids[0]), atol=1e-5), task
    assert not torch.allclose(states(made, "a", texts), states(made, "b", texts), atol=1e-2)


def test_a_row_does_not_depend_on_its_batch_mates_or_padding():
    made, texts = conditional(drawn=True), batch()
    for row, length in enumerate((37, 20, 3)):
        alone = TextBatch(
            ids=texts.ids[[row], :length], mask=texts.mask[[row], :length], segments=texts.segments[[row], :length]
        )
        together = states(made, "a", texts)[row, :length]
        assert torch.allclose(states(made, "a", alone)[0], together, atol=1e-5)


def test_the_bias_of_attention_stays_within_its_blocks():
    made = BlockBias(SHAPE.width, 40)
    torch.nn.init.ones_(made.blocks)
    found = made(37, torch.zeros(SHAPE.width))
    blocks = torch.arange(37) // BLOCK
    assert found.shape == (37, 37)
    assert torch.equal(found, (blocks[:, None] == blocks).float())


def test_it_has_as_many_parameters_as_its_equations_need():
    d, n, c = SHAPE.width, SHAPE.layers, SHAPE.width // 3
    blocks = math.ceil(40 / BLOCK)

    def film(size):
        return 2 * (d + 1) * size

    upper = n - n // 2
    expected = len(TASKS) * d + film(d) + n * (blocks * BLOCK**2 + film(BLOCK**2)) + 2 * upper * film(d)
    expected += (d + 1) * c + film(c) + (c + 1) * d
    assert count_of(TASKS, SHAPE, tokens=40) == expected


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("home")
    tiny_project.project(folder)
    return folder


def test_it_is_trained_by_the_joint_loop_and_every_condition_learns(home):
    """As many epochs as it takes until another task is the one that is least sure."""
    training = msgspec.structs.replace(tiny_project.TRAINING, epochs=20, patience=20, learning_rate=5e-3, dropout=0.0)
    declared = prepare(tiny_project.project(home, "mood", "same", training=training), home)
    prepared = [msgspec.structs.replace(p, strategy=FIRST) for p in declared]
    data, recipe = load_trunk(str(home / "trunk")), Joint(micro_batches=1, layer_dropout=0.0)
    made = ConditionedCourse(
        prepared, joint_paths(prepared, data, recipe), data, recipe, training=training, precision="float32"
    )
    before = {name: value.detach().clone() for name, value in made.module.conditional.named_parameters()}
    learned = made.learn()
    assert learned.fitted.history[-1]["loss"] < learned.fitted.history[0]["loss"]
    still = {name for name, value in made.module.conditional.named_parameters() if value.equal(before[name])}
    assert still == set()
    trunk = made.module.model.trunk.to_arrays()
    same = {name for name, array in trunk.items() if np.array_equal(array, data.arrays[name])}
    lower = {name for name in trunk if name.startswith("layers.") and int(name.split(".")[1]) < SHAPE.layers // 2}
    assert lower and same - {name for name in same if name.endswith("key.bias")} <= lower <= same


def test_what_counts_is_entropy_times_the_tasks_own():
    """By hand: means 0.5 and 0.25, so that the second task's rows count half."""
    chosen = most_uncertain({"a": np.array([0.9, 0.1, 0.5]), "b": np.array([0.6, 0.1, 0.05])}, 3)
    assert {task: rows.tolist() for task, rows in chosen.items()} == {"a": [0, 2], "b": [0]}
    assert list(most_uncertain({"a": np.array([0.9, 0.8]), "b": np.array([0.1, 0.1])}, 2)) == ["a"]
    outputs = torch.randn(5, 3)
    expected = torch.distributions.Categorical(logits=outputs).entropy() / math.log(3)
    np.testing.assert_allclose(entropies(outputs), expected, rtol=1e-5)


def test_a_number_has_no_entropy():
    with pytest.raises(TrainError, match="labels"):
        entropies(torch.zeros(3, 1))


def test_an_update_is_the_mean_over_the_rows_that_count_most(home):
    training = msgspec.structs.replace(tiny_project.TRAINING, dropout=0.0, batch=8)
    declared = prepare(tiny_project.project(home, "mood", "same", training=training), home)
    prepared = [msgspec.structs.replace(p, strategy=FIRST) for p in declared]
    data, recipe = load_trunk(str(home / "trunk")), Joint(micro_batches=1, layer_dropout=0.0)
    made = ConditionedCourse(
        prepared, joint_paths(prepared, data, recipe), data, recipe, training=training, precision="float32"
    )
    update = next(iter(made.feed().updates(0)))
    assert sum(len(batch.members) for _, batch in update) == 8
    each = [functional.cross_entropy(made.module(t, b.arguments[0]), b.targets, reduction="none") for t, b in update]
    found = sum(made.loss(task, batch) for task, batch in update) / len(update)
    labels = {p.task.name: len(p.task.labels) for p in prepared}
    scaled = torch.cat([values / math.log(labels[task]) for (task, _), values in zip(update, each, strict=True)])
    assert found.item() == pytest.approx(scaled.mean().item(), rel=1e-5)


def test_a_step_of_one_task_leaves_the_vector_of_another_alone():
    made, texts = conditional(drawn=True), batch()
    made(Trunk.from_data(DATA), "a", texts).last.sum().backward()
    assert made.tasks[0].grad.abs().max() > 0 and made.tasks[1].grad is None
