"""What encoders share, told by digests: prefixes, groups, and savings against numbers worked out by hand."""

import json

import msgspec
import numpy as np
import pytest
import tokenizers

from polyhead.bundle.owners import owner_named
from polyhead.convert.scan import (
    group_of,
    groups_of_models,
    over,
    pairs,
    scanned,
    separate_cost,
    shared,
    sharing,
    together,
    tokenizer_digest,
)
from polyhead.errors import TrunkError
from polyhead.evaluate.report.tree import tree
from polyhead.plan import Head, Layers, Pool, merge
from polyhead.testing import tiny_tokenizer, tiny_trunk
from support.cases import cases

BASE = tiny_trunk(layers=4)


def encoder(name, *, changed=(), layers=4, base=BASE, **fields):
    """The base under another name, one number changed in each array of `changed`, cut to some layers."""
    arrays = {
        key: array.copy()
        for key, array in base.arrays.items()
        if not key.startswith("layers.") or int(key.split(".")[1]) < layers
    }
    for key in changed:
        arrays[key].flat[-1] = np.nextafter(arrays[key].flat[-1], np.float32(9))
    shape = msgspec.structs.replace(base.architecture, layers=layers)
    return msgspec.structs.replace(base, name=name, architecture=shape, arrays=arrays, **fields)


def model(name, **changes):
    head = Head(kind="single_label", width=2, part=owner_named(name))
    return scanned(encoder(name, **changes), ends=(Pool(), head))


def after(name, tap, **changes):
    """A model whose layers from `tap` (0: the first) on are its own."""
    seed = sum(map(ord, name))
    other = tiny_trunk(layers=4, seed=seed)
    data = encoder(name, **changes)
    own = {k: other.arrays[k] for k in data.arrays if k.startswith("layers.") and int(k.split(".")[1]) >= tap}
    head = Head(kind="single_label", width=2, part=owner_named(name))
    return scanned(msgspec.structs.replace(data, arrays=data.arrays | own), ends=(Pool(), head))


@pytest.mark.parametrize("tap", range(5))
def test_prefix_of_k_is_layers_0_to_k_minus_1(tap):
    found = shared(model("a"), after("b", tap))
    assert found.layers == tap
    assert found.differs == ("" if tap == 4 else f"layer {tap + 1}")


@cases("name", [name for name in BASE.arrays if name.startswith("layers.1.")])
def test_one_bit_in_the_second_layer_leaves_a_prefix_of_one(name):
    found = shared(model("a"), model("b", changed=[name]))
    assert (found.layers, found.differs) == (1, "layer 2")


def test_equal_layers_behind_one_that_differs_are_not_shared():
    assert shared(model("a"), model("b", changed=["layers.0.attention.query.bias"])).layers == 0


@pytest.mark.parametrize("name", [name for name in BASE.arrays if name.startswith("embeddings.")])
def test_one_bit_in_the_embeddings_leaves_nothing(name):
    found = shared(model("a"), model("b", changed=[name]))
    assert (found.layers, found.differs) == (None, "the embeddings")


def test_depth_alone_is_no_difference():
    found = shared(model("a"), model("b", layers=2))
    assert (found.layers, found.differs) == (2, "")


def test_another_shape_or_tokenizer_leaves_nothing():
    wide = scanned(tiny_trunk(layers=4, width=32))
    assert shared(model("a"), wide).layers is None
    assert shared(model("a"), wide).differs == "the shape (width 16 and 32, feed_forward 32 and 64)"
    other = json.loads(tiny_tokenizer())
    other["normalizer"]["lowercase"] = False
    found = shared(model("a"), model("b", tokenizer=json.dumps(other).encode()))
    assert (found.layers, found.differs) == (None, "the tokenizer")


def test_padding_truncation_and_layout_of_a_tokenizer_do_not_count():
    made = tokenizers.Tokenizer.from_str(tiny_tokenizer().decode())
    made.enable_padding(length=9, pad_id=3)
    made.enable_truncation(7)
    laid_out = json.dumps(json.loads(made.to_str()), indent=1).encode()
    assert laid_out != tiny_tokenizer()
    assert tokenizer_digest(laid_out) == tokenizer_digest(tiny_tokenizer())


def test_trunk_of_some_models_is_the_deepest_prefix_that_two_share():
    models = [after("a", 1), after("b", 3), after("c", 3), after("d", 0)]
    group = group_of(models)
    assert (group.trunk, group.depth, group.taps) == ("b", 3, {"a": 1, "b": 3, "c": 3, "d": 0})


def test_trunk_of_models_that_share_embeddings_alone_has_one_layer():
    group = group_of([after("a", 0), after("b", 0)])
    assert (group.trunk, group.depth, group.taps) == ("a", 1, {"a": 1, "b": 0})


def test_trunk_of_one_model_is_all_of_it():
    assert group_of([model("a")]).taps == {"a": 4}


def test_models_over_a_base_read_as_many_layers_as_they_share_with_it():
    base = scanned(encoder("base", layers=2))
    assert over(base, [model("a"), after("b", 1)]).taps == {"a": 2, "b": 1}


def test_models_that_share_nothing_are_refused_with_both_named():
    stranger = model("stranger", changed=["embeddings.norm.bias"])
    for models in ([model("a"), stranger], [model("a"), model("b"), stranger]):
        with pytest.raises(TrunkError, match="a and stranger share nothing.*embeddings differ"):
            group_of(models)
    with pytest.raises(TrunkError, match="base and stranger"):
        over(scanned(encoder("base")), [model("a"), stranger])


def test_groups_hold_every_model_once_and_those_of_the_base_come_first():
    strange = ["embeddings.norm.bias"]
    models = [model("x", changed=strange), model("a"), model("y", changed=strange), after("b", 2)]
    found = groups_of_models(models, scanned(encoder("base")))
    assert [(g.trunk, g.taps) for g in found] == [("base", {"a": 4, "b": 2}), ("x", {"x": 4, "y": 4})]
    assert [g.trunk for g in groups_of_models(models)] == ["x", "a"]
    assert [g.trunk for g in groups_of_models(models, scanned(tiny_trunk(width=32)))] == ["x", "a"]


# Savings. Width 16, feed-forward 32, 32 tokens: a layer is 2 * 32 * (4 * 256 + 2 * 16 * 32) + 4 * 32^2 * 16
# = 196,608 FLOPs and 4 * (256 + 16) + 2 * 32 + 2 * (16 * 32) + 32 + 16 = 2,224 numbers; the head on one row is
# 2 * 16 * 2 = 64 FLOPs and 34 numbers.
LAYER_FLOPS, LAYER_SIZE, HEAD_FLOPS, HEAD_SIZE = 196_608, 2_224, 64, 34
EMBEDDING_SIZE = sum(a.size for n, a in BASE.arrays.items() if n.startswith("embeddings."))


def test_savings_are_those_worked_out_by_hand():
    """Three models of four layers; two share three layers, the third one of them: 3 + 1 + 1 + 3 layers for 12."""
    models = [after("a", 3), after("b", 3), after("c", 1)]
    by_name = {m.name: m for m in models}
    before, found = separate_cost(models, 32), together([group_of(models)], by_name, 32)
    assert (before.layers, found.layers) == (12, 8)
    assert before.flops == 12 * LAYER_FLOPS + 3 * HEAD_FLOPS
    assert found.flops == 8 * LAYER_FLOPS + 3 * HEAD_FLOPS
    assert before.bytes == 4 * (3 * EMBEDDING_SIZE + 12 * LAYER_SIZE + 3 * HEAD_SIZE)
    assert found.bytes == 4 * (EMBEDDING_SIZE + 8 * LAYER_SIZE + 3 * HEAD_SIZE)


def test_models_that_share_nothing_cost_the_same_merged():
    models = [model("a"), model("b", changed=["embeddings.norm.bias"])]
    by_name = {m.name: m for m in models}
    assert together(groups_of_models(models), by_name, 32) == separate_cost(models, 32)


def test_the_merged_plan_runs_the_trunk_once_and_each_models_own_layers():
    models = {m.name: m for m in (after("a", 3), after("b", 3), after("c", 4), after("d", 0))}
    group = over(scanned(encoder("base")), list(models.values()))
    plan = merge({name: models[name].path(tap, trunk="t" * 64) for name, tap in group.taps.items()})
    assert [(n.start, n.stop, n.weights) for n in plan.path("c").layers if n.weights != "trunk"] == []
    own = {
        name: sum(n.stop - n.start for n in plan.path(name).layers if n.weights == f"task:{name}") for name in models
    }
    assert own == {"a": 1, "b": 1, "c": 0, "d": 4}
    shared_layers = [s.node for s in plan.steps if isinstance(s.node, Layers) and s.node.weights == "trunk"]
    assert sum(n.stop - n.start for n in shared_layers) == 4


def test_the_tree_shows_layers_that_are_shared_beside_the_trunk_too():
    """c and d share layer 3 with each other, not with a and b."""
    c = after("c", 2)
    d = msgspec.structs.replace(c, name="d", layers=(*c.layers[:3], "other"))
    models = [after("a", 3), after("b", 3), c, d, model("z", changed=["embeddings.norm.bias"])]
    lines = tree(sharing(models, {m.name: m.name.upper() for m in models}))
    shown = [line for line in lines if "tasks]" in line]
    assert [line.strip("└├─│ ") for line in shown][1:] == [
        "Layers 1 to 2  [4 tasks]",
        "Layer 3  [2 tasks]",
        "Layer 3  [2 tasks]",
    ]
    for name in "ABCDZ":
        assert sum(f" {name} " in f" {line} ".replace("─", " ") for line in lines) == 1


def test_pairs_are_all_pairs():
    models = [after("a", 3), after("b", 3), after("c", 1)]
    assert [(p.one, p.other, p.layers) for p in pairs(models)] == [("a", "b", 3), ("a", "c", 1), ("b", "c", 1)]
