"""Strategy `on_top`: its path, and answers by the papers' formulas."""

import numpy as np
import pytest
import torch

from polyhead import plan
from polyhead.deep.nn.trunk import Trunk
from polyhead.deep.sharing.make import arrays_of_part, make_part
from polyhead.deep.sharing.part import BranchPart
from polyhead.encoder.shape import Architecture
from polyhead.errors import ConfigError
from polyhead.plan import Embed, Head, Layers, Pool, cost
from polyhead.project.strategies import OnTop
from polyhead.testing import tiny_owned, tiny_trunk
from support import reference_encoder
from support.cases import cases
from support.models import LENGTHS, TASKS, answers, assert_by_the_book, model_of, paths_of, texts_of

BERT = Architecture(layers=12, width=768, heads=12, feed_forward=3072, vocabulary=30522)
FORMS = {
    "attention": OnTop(width=8, heads=2, layers=3),
    "attention, mean": OnTop(width=8, heads=4, layers=1, positions="mean"),
    "attention alone": OnTop(width=8, heads=2, layers=2, residual=False, positions="attention"),
    "feed forward": OnTop(form="feed_forward", width=6),
    "feed forward alone": OnTop(form="feed_forward", width=6, feed_forward=5, layers=2, residual=False, hidden=0),
    "two hidden layers": OnTop(form="feed_forward", width=6, hidden_layers=2),
    "layer": OnTop(form="layer", layers=2),
    "a pooler for all tasks": OnTop(form="layer", pooler="shared"),
}
TWO = ("mood", "urgency")


@pytest.fixture(scope="module")
def trunk():
    return tiny_trunk()


@pytest.fixture(scope="module")
def texts(trunk):
    return texts_of(trunk)[1]


def path_on(shape, strategy, task="mood"):
    return strategy.path(TASKS[task], trunk="d", shape=shape)


@pytest.mark.parametrize(
    ("strategy", "own"),
    [
        (
            OnTop(),
            Layers(start=12, stop=18, weights="task:mood", width=204, feed_forward=0, heads=12, enter=True, leave=True),
        ),
        (
            OnTop(form="feed_forward", residual=False),
            Layers(
                start=12,
                stop=13,
                weights="task:mood",
                width=204,
                feed_forward=408,
                heads=1,
                enter=True,
                leave=True,
                attention=False,
                residual=False,
            ),
        ),
        (OnTop(form="layer"), Layers(start=12, stop=13, weights="task:mood")),
    ],
    ids=["attention", "feed forward", "layer"],
)
def test_layers_stand_above_the_whole_trunk(strategy, own):
    assert path_on(BERT, strategy).nodes == (
        Embed(trunk="d"),
        Layers(start=0, stop=12),
        own,
        Pool(),
        Head(kind="single_label", width=2, part="task:mood", hidden=768),
    )


def test_two_hidden_layers_weigh_what_the_papers_do():
    """5.a.4: two of 252 of 204, 166,320 numbers, where one of 408 has 166,464."""
    path = path_on(BERT, OnTop(form="feed_forward", hidden_layers=2))
    assert path.layers[1].feed_forward == 252
    dense = [
        array.size
        for array in cost.arrays_of_path(path, BERT)
        if array.is_matrix and ".feed_forward." in array.name and array.owner == "task:mood"
    ]
    assert dense == [204 * 252, 252 * 252, 252 * 204] and sum(dense) + 144 == 4 * 204**2


@cases(
    ("fields", "said"),
    [
        ({"form": "layer", "width": 8}, "width would change nothing.*Got: 8"),
        ({"form": "layer", "feed_forward": 8}, "feed_forward would change nothing.*not 'layer'"),
        ({"feed_forward": 8}, "feed_forward would change nothing.*not 'attention'"),
        ({"hidden_layers": 2}, "hidden_layers would change nothing.*not 'attention'"),
        ({"form": "feed_forward", "hidden_layers": 0}, "hidden_layers is too small.*Got: 0"),
        ({"form": "layer", "heads": 3}, "heads would change nothing.*'layer' have none"),
        ({"form": "feed_forward", "heads": 3}, "heads would change nothing"),
        ({"residual": False, "norm_init": "legacy"}, "norm_init would change nothing"),
        ({"width": 8, "heads": 3}, "multiple of their heads.*Got: 8.*heads = 3"),
    ],
    ids=str,
)
def test_what_does_not_fit_or_would_change_nothing_is_refused(fields, said):
    with pytest.raises(ConfigError, match=f"strategy.*{said}"):
        OnTop(**fields)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("stacked", [False, True])
def test_answers_are_those_of_the_papers_formula(trunk, form, stacked):
    paths = paths_of(trunk, FORMS[form], "mood", "urgency", "names")
    assert_by_the_book(trunk, paths, model_of(trunk, paths, stacked=stacked), atol=2e-5)


def test_projected_attention_on_top_is_the_formula_on_each_text_alone(trunk, texts):
    """V_E, then layers of attention with W_o, residual and norm, then V_D; in float64 by loops."""
    (path,) = paths_of(trunk, FORMS["attention"], "mood").values()
    arrays = tiny_owned({"mood": path}, trunk.architecture)["mood"].arrays
    found = answers(model_of(trunk, {"mood": path}), {"mood": path}, texts)["mood"]
    for row, length in enumerate(LENGTHS):
        ids, segments = (getattr(texts, name)[row, :length].numpy() for name in ("ids", "segments"))
        hidden, sees = reference_encoder.embedded(trunk.arrays, ids, segments), reference_encoder.everything(length)
        for index in range(2):
            hidden = reference_encoder.layer(trunk.arrays, f"layers.{index}", hidden, sees)
        hidden = reference_encoder.linear(arrays, "enter", hidden)
        for name in ("layers.2", "layers.3", "layers.4"):
            mixed = reference_encoder.attention(arrays, name, hidden, sees, heads=2, slots=reference_encoder.Slots())
            hidden = reference_encoder.norm(arrays, f"{name}.attention.norm", hidden + mixed)
        first = reference_encoder.linear(arrays, "leave", hidden)[:1]
        inner = np.tanh(reference_encoder.linear(arrays, "head.hidden", first))
        np.testing.assert_allclose(
            found[row].numpy(), reference_encoder.linear(arrays, "head.output", inner)[0], atol=1e-5
        )


def test_the_trunk_is_run_once_below_all_tasks(trunk, texts):
    paths = paths_of(trunk, FORMS["attention"], "mood", "urgency", "topics")
    model = model_of(trunk, paths)
    answers(model, paths, texts)
    assert model.layers_run == 2 + 3 * 3 == cost.layer_evaluations(plan.merge(paths))


@pytest.mark.parametrize("form", FORMS)
def test_arrays_are_named_as_cost_counts_them(trunk, form):
    (path,) = paths_of(trunk, FORMS[form], "mood").values()
    part = model_of(trunk, {"mood": path}).parts["mood"]
    assert not isinstance(part, BranchPart)
    assert {name: tuple(value.shape) for name, value in part.state_dict().items()} == cost.part_arrays(
        path, trunk.architecture, "task:mood"
    )


@pytest.mark.parametrize("norm_init", ["one", "legacy"])
def test_layers_start_as_the_paper_draws_them(trunk, norm_init):
    """Matrices N(0, 0.02), the decoder too; norms at 1 or, as the released code has it by mistake, N(0, 0.02)."""
    strategy = OnTop(width=8, heads=2, layers=2, norm_init=norm_init, dropout=0.3)
    (path,) = paths_of(trunk, strategy, "mood").values()
    part = make_part(path, trunk.architecture, strategy=strategy, generator=torch.Generator().manual_seed(1))
    arrays = arrays_of_part(part)
    gain = arrays["layers.2.attention.norm.weight"]
    assert (gain == 1).all() if norm_init == "one" else (abs(gain) < 0.1).all() and gain.any()
    for name in ("enter.weight", "leave.weight", "layers.3.attention.output.weight"):
        assert 0.01 < arrays[name].std() < 0.03
    assert part.layers["2"].attention.dropout == 0.3


def test_gradients_reach_the_layers_over_a_frozen_trunk(trunk, texts):
    paths = paths_of(trunk, FORMS["attention"], "mood")
    model = model_of(trunk, paths)
    model.trunk.requires_grad_(False)
    model(plan.merge(paths), texts)["mood"].square().sum().backward()
    still = {name for name, p in model.parts["mood"].named_parameters() if p.grad is None or not p.grad.any()}
    assert all(name.endswith("key.bias") for name in still)


def test_a_served_part_has_layers_and_ends_in_the_trunks_precision_and_its_head_in_float32(trunk, texts):
    (path,) = paths_of(trunk, FORMS["attention"], "mood").values()
    model = model_of(trunk, {"mood": path})
    served = model.parts["mood"].served(torch.bfloat16)
    kinds = {name.split(".")[0]: value.dtype for name, value in served.named_parameters()}
    low = torch.bfloat16
    assert kinds == {"enter": low, "layers": low, "leave": low, "head": torch.float32}
    half = model_of(trunk, {"mood": path}, live=Trunk.from_data(trunk, dtype=low))
    half.parts["mood"].lower(low)
    worst = answers(half, {"mood": path}, texts)["mood"] - answers(model, {"mood": path}, texts)["mood"]
    assert worst.abs().max() < 0.5
