"""Strategy `in_layer`: its path, what is tied and shared, and answers by the papers' formulas."""

import math

import pytest
import torch

from polyhead import plan
from polyhead.deep.model import MultiTaskModel
from polyhead.deep.nn.trunk import Trunk
from polyhead.deep.sharing.make import arrays_of_part, make_families, make_part
from polyhead.encoder.shape import Architecture
from polyhead.errors import ConfigError, PlanError
from polyhead.plan import Delta, Embed, Head, Layers, Pool, cost
from polyhead.project.strategies import Adapter, Branch, InLayer, Pooled
from polyhead.testing import tiny_owned, tiny_trunk
from support.cases import cases
from support.models import TASKS, answers, assert_by_the_book, filled, model_of, paths_of, texts_of

BERT = Architecture(layers=12, width=768, heads=12, feed_forward=3072, vocabulary=30522)
PAL = Adapter(size=6, heads=2)
LOW = Adapter(delta="low_rank", size=3)
FORMS = {
    "projected attention": InLayer(adapters=(PAL,)),
    "untied": InLayer(adapters=(Adapter(size=6, heads=3, tied=False, gelu="after"),)),
    "serial": InLayer(adapters=(Adapter(size=6, heads=2, serial=True),), positions="mean"),
    "upper half": InLayer(adapters=(Adapter(size=6, heads=2, start=1),), hidden=0),
    "lower half": InLayer(adapters=(Adapter(size=6, heads=2, stop=1),), positions="attention"),
    "low rank": InLayer(adapters=(LOW,)),
    "low rank below projected attention": InLayer(
        adapters=(Adapter(size=6, heads=2, start=1), Adapter(delta="low_rank", size=3, stop=1))
    ),
    "tied over two ranges": InLayer(adapters=(Adapter(size=6, heads=2, stop=1), Adapter(size=6, heads=3, start=1))),
    "feed forward": InLayer(adapters=(Adapter(delta="feed_forward", size=4),)),
    "scale": InLayer(adapters=(Adapter(delta="scale"),), hidden=5),
    "bottleneck": InLayer(adapters=(Adapter(delta="bottleneck", size=4),)),
    "prefix": InLayer(adapters=(Adapter(delta="prefix", size=3),)),
    "lora": InLayer(adapters=(Adapter(delta="lora", size=2),)),
    "ends of all tasks": InLayer(adapters=(Adapter(size=6, heads=2, share="ends"),)),
    "ends of all tasks by layer": InLayer(adapters=(Adapter(size=6, heads=2, tied=False, share="ends"),)),
    "scaled": InLayer(adapters=(Adapter(size=6, heads=2, scaled=True),)),
    "one adapter for all tasks": InLayer(adapters=(Adapter(size=6, heads=2, share="all"),)),
    "a pooler for all tasks": InLayer(adapters=(LOW,), pooler="shared"),
}
TWO = ("mood", "urgency")
PAIR = {"delta": "projected_attention", "size": 6}


@pytest.fixture(scope="module")
def trunk():
    return tiny_trunk()


@pytest.fixture(scope="module")
def texts(trunk):
    return texts_of(trunk)[1]


def path_on(shape, strategy, task="mood"):
    return strategy.path(TASKS[task], trunk="d", shape=shape)


# paths


def test_the_default_is_the_papers_adapter_in_every_layer():
    delta = Delta(kind="projected_attention", part="task:mood", size=204, heads=6, tied=True)
    assert path_on(BERT, InLayer()).nodes == (
        Embed(trunk="d"),
        Layers(start=0, stop=12, delta=delta),
        Pool(),
        Head(kind="single_label", width=2, part="task:mood", hidden=768),
    )


def test_adapters_stand_in_their_layers_with_plain_ones_between():
    adapters = (Adapter(start=9, size=60), Adapter(delta="low_rank", start=3, stop=6, size=100))
    layers = path_on(BERT, InLayer(adapters=adapters)).layers
    assert [(node.start, node.stop, node.delta and node.delta.kind) for node in layers] == [
        (0, 3, None),
        (3, 6, "low_rank"),
        (6, 9, None),
        (9, 12, "projected_attention"),
    ]


@cases(
    ("adapter", "size", "tied"),
    [
        (Adapter(), 102, True),
        (Adapter(heads=12), 96, True),
        (Adapter(delta="feed_forward"), 102, True),
        (Adapter(delta="low_rank"), 102, False),
        (Adapter(delta="low_rank", tied=True), 102, True),
        (Adapter(delta="bottleneck"), 102, False),
        (Adapter(delta="scale"), 0, False),
        (Adapter(delta="prefix"), 8, False),
        (Adapter(delta="lora"), 8, False),
        (Adapter(size=12), 12, True),
    ],
    ids=str,
)
def test_sizes_that_are_not_given_follow_the_width_and_fit_the_heads(adapter, size, tied):
    """204 of 768 is 102 of 384."""
    small = Architecture(layers=6, width=384, heads=12, feed_forward=1536, vocabulary=50)
    delta = path_on(small, InLayer(adapters=(adapter,))).layers[0].delta
    assert (delta.size, delta.tied) == (size, tied)


@cases(
    ("said", "fields"),
    [
        ("'scale' cannot have this size. Got: 3", {"delta": "scale", "size": 3}),
        ("'feed_forward' cannot have this size. Got: 5", {"delta": "feed_forward", "size": 5}),
        ("'prefix' cannot have this size. Got: 0", {"delta": "prefix", "size": 0}),
        ("'projected_attention' cannot have this size. Got: 8", {"size": 8}),
        ("'lora' has no .*Got: tied", {"delta": "lora", "tied": True}),
        ("'prefix' has no .*Got: serial, gelu", {"delta": "prefix", "serial": True, "gelu": "after"}),
        ("targets are .*Got: none", {"delta": "lora", "targets": ()}),
        ("targets are .*Got: attention.key, a", {"delta": "lora", "targets": ("attention.key",) * 2}),
        *((f"alpha must .*Got: {a}", {"delta": "lora", "alpha": a}) for a in (0.0, math.nan, math.inf)),
    ],
)
def test_an_adapter_that_can_stand_in_no_trunk_is_refused_by_its_key(said, fields):
    with pytest.raises(ConfigError, match=f"adapters: {said}"):
        Adapter(**fields)


@cases(
    "fields",
    [
        {"delta": "low_rank", "heads": 12},
        {"delta": "low_rank", "dropout": 0.5},
        {"delta": "scale", "init": "normal"},
        {"delta": "prefix", "init": "normal"},
        {"norm_init": "legacy"},
        {"alpha": -3.0},
        {"targets": ()},
        {"delta": "bottleneck", "targets": ("attention.key",)},
    ],
    ids=str,
)
def test_what_an_adapter_would_not_read_is_refused_and_its_default_is_not(fields):
    name = list(fields)[-1]
    with pytest.raises(ConfigError, match=f"adapters: {name} would change nothing"):
        Adapter(**fields)
    assert Adapter(**{**fields, name: getattr(Adapter(), name)})


def test_a_list_of_adapters_that_is_refused_is_shown():
    with pytest.raises(ConfigError, match="strategy.adapters.*Got: none"):
        InLayer(adapters=())
    with pytest.raises(ConfigError, match=r"strategy.adapters.*Got: \[0, 4\), \[3, 6\)"):
        InLayer(adapters=(Adapter(stop=4), Adapter(start=3, stop=6)))


def test_what_tasks_share_belongs_to_a_family():
    def delta(share):
        return path_on(BERT, InLayer(adapters=(Adapter(share=share),))).layers[0].delta

    assert [(d.part, d.ends) for d in map(delta, ("nothing", "ends", "all"))] == [
        ("task:mood", None),
        ("task:mood", "family:adapters"),
        ("family:adapters", None),
    ]
    assert path_on(BERT, InLayer(pooler="shared")).head.hidden_part == "family:pooler"


@pytest.mark.parametrize(
    ("strategy", "task", "said"),
    [
        (InLayer(adapters=(Adapter(stop=13),)), "mood", "layers that the trunk does not have"),
        (InLayer(adapters=(Adapter(start=12),)), "mood", "layers that the trunk does not have"),
        (InLayer(adapters=(Adapter(size=6, stop=6), Adapter(size=12, start=6))), "mood", "one encoder"),
        (InLayer(pooler="shared"), "alike", "cannot share its pooler"),
    ],
    ids=["beyond the trunk", "above the trunk", "tied in two sizes", "separate pairs"],
)
def test_what_does_not_fit_is_refused(strategy, task, said):
    with pytest.raises(ConfigError, match=said):
        path_on(BERT, strategy, task)


# what they compute


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("stacked", [False, True])
def test_answers_are_those_of_the_papers_formula(trunk, form, stacked):
    paths = paths_of(trunk, FORMS[form], "mood", "urgency", "names")
    assert_by_the_book(trunk, paths, model_of(trunk, paths, stacked=stacked), atol=2e-5)


@pytest.mark.parametrize("form", FORMS)
def test_the_first_position_alone_is_that_of_the_whole_layer(trunk, texts, form):
    paths = paths_of(trunk, FORMS[form], *TWO)
    whole, narrow = (answers(model_of(trunk, paths, narrow=on), paths, texts) for on in (False, True))
    for name in TWO:
        torch.testing.assert_close(narrow[name], whole[name], atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    "form", ["projected attention", "untied", "scaled", "low rank", "feed forward", "bottleneck", "lora"]
)
@pytest.mark.parametrize("narrow", [False, True])
def test_adapters_that_start_at_zero_are_the_trunk_bit_for_bit(trunk, texts, form, narrow):
    """The pooled path over the last state's first position, with the same head."""
    strategy = FORMS[form]
    (path,), (bare,) = (
        paths_of(trunk, one, "mood").values()
        for one in (strategy, Pooled(layers="last", positions="first", codec="float32"))
    )
    shape, generator = trunk.architecture, torch.Generator().manual_seed(1)
    part = make_part(path, shape, strategy=strategy, generator=generator).eval()
    head = {name: value for name, value in arrays_of_part(part).items() if name.startswith("head.")}
    plain = filled(make_part(bare, shape), head)
    live = Trunk.from_data(trunk)
    ours, theirs = (
        MultiTaskModel(live, {"mood": one}, narrow=narrow)(plan.merge({"mood": way}), texts)["mood"]
        for one, way in ((part, path), (plain, bare))
    )
    assert torch.equal(ours, theirs)
    with torch.no_grad():  # it can fail: with other weights the answer is another
        for name, value in part.named_parameters():
            if name.startswith("delta."):
                value.copy_(torch.randn(value.shape, generator=generator))
    moved = MultiTaskModel(live, {"mood": part})(plan.merge({"mood": path}), texts)["mood"]
    assert (moved - theirs).abs().max() > 1e-2


def test_the_papers_start_and_its_dropout_are_the_strategys(trunk):
    (path,) = paths_of(trunk, FORMS["serial"], "mood").values()
    started = InLayer(
        adapters=(Adapter(size=6, heads=2, serial=True, init="normal", norm_init="legacy", dropout=0.3),),
        positions="mean",
    )
    part = make_part(path, trunk.architecture, strategy=started, generator=torch.Generator().manual_seed(0))
    arrays = arrays_of_part(part)
    assert abs(arrays["delta.decoder.weight"]).max() > 0 and abs(arrays["delta.0.norm.weight"]).max() < 0.2
    assert part.delta.at(path.layers[0].delta, 0).dropout == 0.3


@pytest.mark.parametrize(
    ("lower", "upper", "said"),
    [
        ({"init": "zero"}, {"init": "normal"}, "init = 'zero' and 'normal'"),
        ({"dropout": 0.1}, {"dropout": 0.2}, "dropout = 0.1 and 0.2"),
        ({"heads": 2, "init": "normal"}, {"heads": 3}, "init = 'normal' and 'zero'"),  # two deltas, tied alike
    ],
    ids=["init", "dropout", "tied"],
)
def test_what_is_made_once_cannot_start_in_two_ways(trunk, lower, upper, said):
    """Adapters of two ranges that are one by their arrays: one of the two was followed silently."""
    strategy = InLayer(adapters=(Adapter(**PAIR, stop=1, **lower), Adapter(**PAIR, start=1, **upper)))
    (path,) = paths_of(trunk, strategy, "mood").values()
    with pytest.raises(ConfigError, match=f"start and learn in one way. Got: {said}.*task:mood"):
        make_part(path, trunk.architecture, strategy=strategy)


@pytest.mark.parametrize("share", ["all", "ends"])
def test_what_tasks_share_cannot_start_in_two_ways(trunk, share):
    several = [InLayer(adapters=(Adapter(size=6, heads=2, share=share, init=i),)) for i in ("zero", "normal")]
    paths = paths_of(trunk, several, *TWO)
    with pytest.raises(ConfigError, match="init = 'zero' and 'normal'.*family:adapters"):
        make_families(paths, trunk.architecture, strategies=dict(zip(TWO, several, strict=True)))


def test_adapters_of_two_ranges_with_arrays_of_their_own_start_each_in_its_way(trunk):
    strategy = InLayer(
        adapters=(Adapter(delta="low_rank", size=4, stop=1), Adapter(delta="low_rank", size=3, start=1, init="normal"))
    )
    (path,) = paths_of(trunk, strategy, "mood").values()
    generator = torch.Generator().manual_seed(0)
    arrays = arrays_of_part(make_part(path, trunk.architecture, strategy=strategy, generator=generator))
    lower, upper = (arrays[f"delta.{layer}.decoder.weight"] for layer in (0, 1))
    assert not lower.any() and upper.any()


# arrays


@pytest.mark.parametrize("form", FORMS)
def test_arrays_are_named_and_owned_as_cost_counts_them(trunk, form):
    paths, shape = paths_of(trunk, FORMS[form], *TWO), trunk.architecture
    families, merged = make_families(paths, shape), plan.merge(paths)
    modules = {**families, **{path.head.part: make_part(path, shape, families=families) for path in paths.values()}}
    counted = {}
    for array in cost.arrays_of_plan(merged, shape):
        counted.setdefault(array.owner, {})[array.name] = array.shape
    counted.pop("trunk")
    assert {
        owner: {name: tuple(value.shape) for name, value in module.state_dict().items()}
        for owner, module in modules.items()
    } == counted


def test_a_tied_matrix_is_one_parameter_in_memory_and_one_array(trunk):
    (path,) = paths_of(trunk, FORMS["tied over two ranges"], "mood").values()
    part = make_part(path, trunk.architecture)
    maps = [part.delta.at(node.delta, node.start).maps["encoder"] for node in path.layers]
    assert len(maps) == 2 and maps[0].weight is maps[1].weight
    encoders = [p for name, p in part.named_parameters() if name.endswith("encoder.weight")]
    assert len(encoders) == 1 and encoders[0] is maps[0].weight


@pytest.mark.parametrize("form", ["ends of all tasks", "ends of all tasks by layer"])
def test_ends_of_a_family_are_used_by_its_tasks_and_owned_by_none(trunk, form):
    paths, shape = paths_of(trunk, FORMS[form], *TWO), trunk.architecture
    families = make_families(paths, shape)
    parts = [make_part(path, shape, families=families) for path in paths.values()]
    (family,) = families.values()
    ends = [
        part.delta.at(path.layers[0].delta, 0).maps["decoder"] for part, path in zip(parts, paths.values(), strict=True)
    ]
    assert ends[0] is ends[1] is family.delta.ends(paths["mood"].layers[0].delta, 0)["decoder"]
    assert not any("coder" in name for part in parts for name in part.state_dict())


def test_ends_of_each_layer_are_one_where_tasks_differ_in_between(trunk):
    """Two forms of attention over one encoder and decoder a layer, and another layer's is another."""
    several = [InLayer(adapters=(Adapter(size=6, heads=n, tied=False, share="ends"),)) for n in (2, 3)]
    paths, shape = paths_of(trunk, several, *TWO), trunk.architecture
    families = make_families(paths, shape)
    parts = {name: make_part(path, shape, families=families) for name, path in paths.items()}
    encoders = [
        [part.delta.at(paths[name].layers[0].delta, index).maps["encoder"] for index in (0, 1)]
        for name, part in parts.items()
    ]
    assert encoders[0] == encoders[1] and encoders[0][0] is not encoders[0][1]
    assert sum("encoder.weight" in name for name in families["family:adapters"].state_dict()) == 2


def test_a_pooler_of_all_tasks_is_one_layer_that_learns_from_each(trunk, texts):
    paths = paths_of(trunk, FORMS["a pooler for all tasks"], *TWO)
    model = model_of(trunk, paths)
    hidden = model.families["family:pooler"].hidden
    for name in TWO:
        model.zero_grad()
        model(plan.merge({name: paths[name]}), texts)[name].square().sum().backward()
        assert hidden.weight.grad.abs().sum() > 0
        assert "head.hidden.weight" not in model.parts[name].state_dict()
    assert sum(p is hidden.weight for p in model.parameters()) == 1


def test_one_adapter_for_all_tasks_is_one_pass(trunk, texts):
    paths = paths_of(trunk, FORMS["one adapter for all tasks"], *TWO)
    model = model_of(trunk, paths)
    answers(model, paths, texts)
    assert model.layers_run == 2 == cost.layer_evaluations(plan.merge(paths))


@pytest.mark.parametrize("form", ["ends of all tasks", "a pooler for all tasks"])
def test_a_family_that_is_missing_is_named(trunk, form):
    (path,) = paths_of(trunk, FORMS[form], "mood").values()
    with pytest.raises(PlanError, match=r"family:(adapters|pooler)"):
        make_part(path, trunk.architecture)


def test_tied_adapters_of_two_owners_may_have_two_sizes():
    strategy = InLayer(adapters=(Adapter(size=12, stop=6), Adapter(size=24, start=6, share="ends")))
    lower, upper = (node.delta for node in path_on(BERT, strategy).layers)
    assert (lower.size, lower.ends, upper.size, upper.ends) == (12, None, 24, "family:adapters")


def test_families_of_two_shapes_under_one_name_are_refused(trunk):
    paths = paths_of(trunk, [InLayer(adapters=(Adapter(size=size, heads=2, share="ends"),)) for size in (4, 6)], *TWO)
    with pytest.raises(ConfigError, match="'mood' and 'urgency' share arrays, 'family:adapters'") as caught:
        make_families(paths, trunk.architecture)
    assert (
        caught.value.got
        == f"delta.encoder.weight of shape {(4, trunk.architecture.width)} and {(6, trunk.architecture.width)}"
    )


def test_gradients_reach_adapters_over_a_frozen_trunk(trunk, texts):
    paths = paths_of(trunk, FORMS["low rank below projected attention"], "mood")
    model = model_of(trunk, paths)
    model.trunk.requires_grad_(False)
    model(plan.merge(paths), texts)["mood"].square().sum().backward()
    part = model.parts["mood"]
    still = {name for name, p in part.named_parameters() if p.grad is None or not p.grad.any()}
    assert all(name.endswith("key.bias") for name in still)
    assert all(p.grad is None for p in model.trunk.parameters())


def test_a_branch_without_a_depth_has_no_path(trunk):
    with pytest.raises(ConfigError, match="depth of a branch"):
        Branch().path(TASKS["mood"], trunk="d", shape=trunk.architecture)


def test_loading_fills_what_is_owned_and_nothing_else(trunk):
    paths = paths_of(trunk, FORMS["ends of all tasks"], *TWO)
    loaded = tiny_owned(paths, trunk.architecture)
    model = model_of(trunk, paths)
    for name in TWO:
        found = arrays_of_part(model.parts[name])
        assert set(found) == set(loaded[name].arrays)
        assert all((found[key] == value).all() for key, value in loaded[name].arrays.items())
