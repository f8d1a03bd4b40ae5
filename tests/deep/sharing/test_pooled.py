"""Strategy `pooled`: its path, and what its part computes, against plain numpy."""

import msgspec
import numpy as np
import torch

from polyhead.deep.sharing.part import PooledPart, pair_features
from polyhead.encoder.shape import Architecture
from polyhead.plan import Codec, Embed, Head, Layers, Path, Pool
from polyhead.project.recipes import Training
from polyhead.project.strategies import Pooled
from polyhead.project.strategies.base import with_codec
from polyhead.tasks.task import Task, owner_of
from polyhead.testing import tiny_tasks
from support.cases import cases

SHAPE = Architecture(layers=6, width=128, heads=2, feed_forward=256, vocabulary=50)
SMALL = Architecture(layers=2, width=16, heads=2, feed_forward=32, vocabulary=50)
HALF = Codec()
TASKS = {task.name: task for task in tiny_tasks()}


def path_of(task="mood", *, shape=SHAPE, codec=HALF, **strategy):
    return Pooled(**strategy).path(TASKS[task], trunk="d", shape=shape, codec=codec)


def test_the_default_is_attention_over_the_mean_of_four_layers():
    path = path_of()
    assert path.nodes == (
        Embed(trunk="d"),
        Layers(start=0, stop=6),
        Pool(layers="mean", of=4, positions="attention", heads=2, part="task:mood", codec=Codec()),
        Head(kind="single_label", width=2, part="task:mood", hidden=128),
    )


def test_a_mean_of_more_layers_than_the_trunk_has_is_the_mean_of_all():
    assert path_of(shape=SMALL, of=4).pool.of == 2
    assert path_of(layers="last", of=4).pool.of == path_of(layers="learned", of=4).pool.of == 1


def test_heads_are_one_for_64_dimensions_unless_said():
    assert path_of().pool.heads == 2 and path_of(shape=SMALL).pool.heads == 1 and path_of(heads=4).pool.heads == 4
    assert path_of(positions="mean").pool.heads == 0


@cases("layers", ["last", "mean", "learned"])
@cases("positions", ["first", "second", "mean", "attention"])
def test_a_pool_has_a_part_exactly_where_something_is_learned(layers, positions):
    pool = path_of(layers=layers, positions=positions).pool
    assert (pool.part is not None) == (layers == "learned" or positions == "attention")


def test_a_tagging_task_reads_words_whatever_the_positions():
    for positions in ("first", "second", "mean", "attention", "auto"):
        assert path_of("names", positions=positions).pool.positions == "tokens"


def test_hidden_of_nothing_is_the_width_and_zero_is_no_layer():
    assert path_of().head.hidden == 128 and path_of(hidden=0).head.hidden == 0 and path_of(hidden=7).head.hidden == 7


def test_a_pair_read_separately_has_a_head_over_both():
    assert path_of("alike").head.separate and not path_of("same").head.separate


def test_auto_is_attention_where_nothing_chooses():
    assert path_of(positions="auto") == path_of(positions="attention")


def test_with_codec_changes_the_codec_alone():
    path, codec = path_of(), Codec(name="sign")
    changed = with_codec(path, codec)
    assert changed.pool.codec == codec and with_codec(changed, path.pool.codec) == path


def test_owner_of_a_task_is_named_after_it():
    assert owner_of(TASKS["mood"]) == "task:mood"


def stored(rows=3, tokens=5, layers=1):
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(rows, tokens, layers, 16, generator=generator)
    mask = torch.arange(tokens) < torch.tensor([[5], [2], [1]])
    return values * mask[..., None, None], mask


def part_of(path, **arguments):
    generator = torch.Generator().manual_seed(1)
    return PooledPart(path, 16, generator=generator, **arguments).eval()


def test_pair_features_are_both_their_difference_and_their_product():
    u, v = torch.tensor([[1.0, 0.0, 0.0, 0.0]]), torch.tensor([[3.0, 0.0, -4.0, 0.0]])
    # at the length sqrt(4) = 2: (2, 0, 0, 0) and (1.2, 0, -1.6, 0)
    expected = [2, 0, 0, 0, 1.2, 0, -1.6, 0, 0.8, 0, 1.6, 0, 2.4, 0, 0, 0]
    np.testing.assert_allclose(pair_features(u, v)[0].numpy(), expected, atol=1e-6)


def test_the_mean_of_the_product_of_a_pair_is_its_cosine():
    u, v = torch.randn(5, 16, generator=torch.Generator().manual_seed(1)), torch.ones(5, 16)
    product = pair_features(u, v)[:, 48:].mean(dim=1)
    np.testing.assert_allclose(product, torch.nn.functional.cosine_similarity(u, v), atol=1e-6)


def test_a_learned_mix_is_the_scaled_softmax_sum():
    part = part_of(path_of(shape=SMALL, layers="learned", positions="first"))
    with torch.no_grad():
        part.mix.weights.copy_(torch.tensor([1.0, -0.5]))
        part.mix.scale.fill_(1.5)
    values, mask = stored(tokens=1, layers=2)
    weights = np.exp([1.0, -0.5]) / np.exp([1.0, -0.5]).sum()
    expected = 1.5 * np.einsum("l,rtlw->rtw", weights, values.numpy())[:, 0]
    np.testing.assert_allclose(part.features(values, mask[:, :1]).detach().numpy(), expected, atol=1e-6)


def test_a_part_reads_layers_that_were_kept_apart_as_their_mean():
    part = part_of(path_of(shape=SMALL, positions="first"))
    values, mask = stored(tokens=1, layers=2)
    expected = values.mean(dim=2)[:, 0]
    assert torch.equal(part.features(values, mask[:, :1]), expected)


def test_padding_changes_no_output():
    part = part_of(path_of(shape=SMALL, heads=2))
    values, mask = stored()
    noise = torch.where(mask[..., None, None], values, torch.full_like(values, 7.0))
    torch.testing.assert_close(part(values, mask), part(noise, mask), atol=1e-6, rtol=0)


def test_outputs_are_one_a_label_or_one_a_label_of_each_word():
    values, mask = stored()
    assert part_of(path_of(shape=SMALL))(values, mask).shape == (3, 2)
    assert part_of(path_of("names", shape=SMALL))(values, mask).shape == (3, 5, 5)
    assert part_of(path_of("alike", shape=SMALL))(values, mask, (values, mask)).shape == (3, 1)


def test_dropout_acts_in_training_alone():
    part = part_of(path_of(shape=SMALL, positions="first"), dropouts=(0.5, 0.0))
    values, mask = stored(tokens=1)
    assert torch.equal(part(values, mask), part(values, mask))
    part.train()
    torch.manual_seed(0)
    assert not torch.equal(part(values, mask), part(values, mask))


def test_the_generator_decides_how_a_part_starts():
    path = path_of(shape=SMALL)

    def state(seed):
        part = PooledPart(path, 16, generator=torch.Generator().manual_seed(seed))
        return {name: value.numpy().tobytes() for name, value in part.state_dict().items()}

    assert state(1) == state(1) != state(2)


def test_a_tasks_name_is_the_owner_of_all_its_nodes():
    renamed = msgspec.structs.replace(TASKS["mood"], name="other")
    assert isinstance(renamed, Task)
    path = Pooled().path(renamed, trunk="d", shape=SHAPE, codec=Codec())
    assert path.pool.part == path.head.part == "task:other"


@cases("given, expected", [({"dropout": 0.5}, (0.5, 0.5)), ({"dropout": 0.0, "output_dropout": 0.5}, (0.0, 0.5))])
def test_dropout_before_the_output_layer_may_be_another_than_on_the_pooled_vector(given, expected):
    pool, head = Pool(positions="mean"), Head(kind="single_label", width=3, part="task:a", hidden=4)
    path = Path(nodes=(Embed(trunk="t"), Layers(start=0, stop=1), pool, head))
    values, mask = torch.ones(64, 1, 1, 8), torch.ones(64, 1, dtype=torch.bool)
    assert Training(**given).dropouts == expected
    part = PooledPart(path, 8, dropouts=expected, generator=torch.Generator().manual_seed(1)).train()
    hidden = torch.tanh(part.head.hidden(part.inputs(values, mask)))
    seen = []
    for layer in (part.head.hidden, part.head.output):
        layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    part(values, mask)
    read, written = seen
    assert ((read == 0).any() and (read == 2).any()) == (expected[0] > 0)
    assert ((written == 0).float().mean() - 0.5).abs() < 0.15
    if not expected[0]:
        torch.testing.assert_close(written[written != 0], 2 * hidden[written != 0])
