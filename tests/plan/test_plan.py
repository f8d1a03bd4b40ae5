"""Paths, splitting, merging and digests: hand cases, and properties over many random plans."""

import hashlib
import itertools
import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyhead.errors import PlanError
from polyhead.plan import (
    TRUNK,
    Codec,
    Delta,
    Embed,
    Head,
    Layers,
    Path,
    Plan,
    Pool,
    Prompt,
    digest,
    join_layers,
    merge,
    owners_of,
    split_layers,
)
from support.cases import cases

DEPTH = 8


def head(task):
    return Head(kind="single_label", width=2, part=f"task:{task}")


def pooled(task, *, trunk="plain", **pool):
    return Path(nodes=(Embed(trunk=trunk), Layers(start=0, stop=DEPTH), Pool(**pool), head(task)))


def branch(task, tap, stop=DEPTH, *, trunk="plain"):
    layers = [Layers(start=0, stop=tap)] if tap else []
    own = Layers(start=tap, stop=stop, weights=f"task:{task}")
    return Path(nodes=(Embed(trunk=trunk), *layers, own, Pool(), head(task)))


def narrow(task):
    own = Layers(start=DEPTH, stop=DEPTH + 3, weights=f"task:{task}", width=8, enter=True, leave=True)
    return Path(nodes=(Embed(trunk="plain"), Layers(start=0, stop=DEPTH), own, Pool(), head(task)))


@st.composite
def paths(draw, task="a"):
    """A whole, joined path: trunk or own layers, with or without deltas, perhaps narrow ones on top."""
    rows = draw(st.integers(0, 2))
    prompts = (Prompt(part=f"task:{task}", rows=rows),) if rows else ()
    edges = sorted({0, DEPTH, *draw(st.lists(st.integers(1, DEPTH - 1), max_size=3))})
    layers = []
    for start, stop in itertools.pairwise(edges):
        weights = draw(st.sampled_from([TRUNK, TRUNK, f"task:{task}"]))
        delta = draw(st.sampled_from([None, None, Delta(kind="low_rank", part=f"task:{task}", size=2)]))
        layers.append(Layers(start=start, stop=stop, weights=weights, delta=delta))
    if draw(st.booleans()):
        top = Layers(start=DEPTH, stop=DEPTH + 2, weights=f"task:{task}", width=4, enter=True, leave=True)
        layers.append(top)
    pool = draw(
        st.sampled_from([
            Pool(),
            Pool(layers="mean", of=4, positions="mean", codec=Codec(name="sign")),
            Pool(layers="learned", positions="attention", heads=2, part=f"task:{task}"),
        ])
    )  # fmt: skip
    embed = Embed(trunk=draw(st.sampled_from(["plain", "other"])), prompts=prompts)
    return join_layers(Path(nodes=(embed, *layers, pool, head(task))))


@st.composite
def many(draw, least=1, most=5):
    """Several tasks' paths by name."""
    names = [f"t{index}" for index in range(draw(st.integers(least, most)))]
    return {name: draw(paths(task=name)) for name in names}


def parts(path):
    return {owner: f"arrays of {owner}" for owner in owners_of(path)}


cuts = st.lists(st.integers(-2, DEPTH + 5), max_size=8)


# split and joined


@given(paths(), cuts)
def test_joined_undoes_split(path, boundaries):
    assert join_layers(split_layers(path, boundaries)) == path


@given(paths(), cuts)
def test_split_leaves_no_layer_node_across_a_boundary(path, boundaries):
    for node in split_layers(path, boundaries).layers:
        if node.is_plain and node.width is None:
            assert not any(node.start < boundary < node.stop for boundary in boundaries)


@given(paths(), cuts, cuts)
def test_splitting_twice_is_splitting_at_all_boundaries(path, first, second):
    assert split_layers(split_layers(path, first), second) == split_layers(path, [*first, *second])


def test_split_keeps_everything_but_the_range():
    delta = Delta(kind="projected_attention", part="task:a", size=4, heads=2, tied=True)
    node = Layers(start=0, stop=6, weights="task:a", delta=delta)
    found = split_layers(Path(nodes=(Embed(trunk="plain"), node)), [2, 6, 9, 0]).layers
    assert found == (msgspec.structs.replace(node, stop=2), msgspec.structs.replace(node, start=2))


def test_narrow_layers_with_projections_are_never_cut():
    assert split_layers(narrow("a"), range(20)).layers[-1] == narrow("a").layers[-1]


def test_layers_of_other_weights_are_not_joined():
    assert join_layers(branch("a", 3)) == branch("a", 3)


# digests


@given(paths(), cuts)
def test_cutting_layers_does_not_change_the_digest(path, boundaries):
    assert digest(split_layers(path, boundaries), parts(path)) == digest(path, parts(path))


@given(paths(), paths())
def test_other_paths_have_other_digests(first, second):
    same = digest(first, parts(first)) == digest(second, parts(second))
    assert same == (first == second)


def test_a_digest_changes_with_the_arrays_of_a_part_and_with_the_trunk():
    path = branch("a", 3)
    assert digest(path, {"task:a": "one"}) != digest(path, {"task:a": "two"})
    assert digest(path, {"task:a": "one"}) != digest(branch("a", 3, trunk="other"), {"task:a": "one"})
    assert digest(path, {"task:a": "one"}) == digest(path, {"task:a": "one", "task:b": "not on the path"})


def test_a_digest_without_the_arrays_of_a_part_is_refused():
    with pytest.raises(PlanError, match="task:a"):
        digest(branch("a", 3))


def test_a_prefix_of_the_trunk_alone_needs_no_parts():
    assert digest(pooled("a").stored()) == digest(pooled("b").stored())


def test_a_head_with_tanh_has_the_digest_that_it_had_before_there_were_other_activations():
    """The content that was hashed then, written out."""
    nodes = [
        {"type": "embed", "trunk": "t"},
        {"type": "pool"},
        {"type": "head", "kind": "single_label", "width": 2, "part": "task:a", "hidden": 4},
    ]
    written = json.dumps({"nodes": nodes, "parts": {"task:a": "x"}}, sort_keys=True, separators=(",", ":"))

    def found(**activation):
        last = Head(kind="single_label", width=2, part="task:a", hidden=4, **activation)
        return digest(Path(nodes=(Embed(trunk="t"), Pool(), last)), {"task:a": "x"})

    assert found() == found(activation="tanh") == hashlib.sha256(written.encode()).hexdigest()
    assert len({found(), found(activation="relu"), found(activation="gelu")}) == 3


def test_a_codec_is_part_of_the_digest():
    codecs = [
        Codec(name="float16"),
        Codec(name="sign"),
        Codec(name="sign", before_mean=True),
        Codec(name="uint8", scale=(0.5,), zero=(3.0,)),
        Codec(name="uint8", scale=(0.5,), zero=(4.0,)),
    ]
    digests = {digest(pooled("a", layers="mean", of=2, codec=codec).stored()) for codec in codecs}
    assert len(digests) == len(codecs)


# merging


@given(many())
def test_each_task_keeps_its_path_in_the_plan(tasks):
    plan = merge(tasks)
    assert sorted(plan.tasks) == list(tasks)
    for task, path in tasks.items():
        assert join_layers(plan.path(task)) == path


@given(many(least=2), st.randoms(use_true_random=False))
def test_merging_in_another_order_gives_the_same_tree(tasks, random):
    names = list(tasks)
    random.shuffle(names)
    assert as_sets(merge(tasks)) == as_sets(merge({name: tasks[name] for name in names}))


@given(many())
def test_parents_come_first_and_hold_the_tasks_of_their_children(tasks):
    plan = merge(tasks)
    for index, step in enumerate(plan.steps):
        assert step.parent < index
        below = [task for child in plan.children(index) for task in plan.steps[child].tasks]
        assert sorted(below) == sorted(set(step.tasks) if below else [])
    assert [plan.steps[i].node for i in plan.children(-1)] == list(dict.fromkeys(path.embed for path in tasks.values()))


@given(many())
def test_no_two_siblings_are_equal(tasks):
    plan = merge(tasks)
    seen = [(step.parent, step.node) for step in plan.steps]
    assert len(set(seen)) == len(seen)


@given(many(least=2), st.data())
def test_only_keeps_just_what_is_asked_for(tasks, data):
    wanted = data.draw(st.lists(st.sampled_from(list(tasks)), min_size=1, unique=True))
    less = merge(tasks).only(wanted)
    assert less == merge({task: tasks[task] for task in wanted})
    assert all(set(step.tasks) <= set(wanted) for step in less.steps)


@given(many())
def test_merging_a_plans_own_paths_changes_nothing(tasks):
    plan = merge(tasks)
    assert as_sets(merge({task: plan.path(task) for task in plan.tasks})) == as_sets(plan)


def as_sets(plan: Plan) -> set:
    """The tree without the order of tasks: for each step the nodes from the root, and its tasks."""
    found: list[tuple] = []
    for step in plan.steps:
        above = found[step.parent][0] if step.parent >= 0 else ()
        found.append(((*above, step.node), frozenset(step.tasks)))
    return set(found)


def test_two_pooled_tasks_share_all_but_their_heads():
    plan = merge({"a": pooled("a"), "b": pooled("b")})
    assert [step.tasks for step in plan.steps] == [("a", "b")] * 3 + [("a",), ("b",)]
    assert plan.steps[1].node == Layers(start=0, stop=DEPTH)


def test_layers_are_cut_where_another_path_leaves():
    plan = merge({"a": branch("a", 2), "b": branch("b", 5), "c": pooled("c")})
    shared = [(s.node.start, s.node.stop, s.tasks) for s in plan.steps if getattr(s.node, "weights", "") == TRUNK]
    assert shared == [(0, 2, ("a", "b", "c")), (2, 5, ("b", "c")), (5, 8, ("c",))]


def test_private_layers_are_not_cut_where_others_leave_the_trunk_but_the_trunk_is():
    """A branch of layers 2 to 8 stays one node, though others tap the trunk at 4 and 6."""
    plan = merge({"a": branch("a", 2), "b": branch("b", 4), "c": branch("c", 6)})
    cut = {
        owner: [(s.node.start, s.node.stop) for s in plan.steps if getattr(s.node, "weights", "") == owner]
        for owner in (TRUNK, "task:a", "task:b", "task:c")
    }
    assert cut == {TRUNK: [(0, 2), (2, 4), (4, 6)], "task:a": [(2, 8)], "task:b": [(4, 8)], "task:c": [(6, 8)]}


def test_layers_of_one_part_are_cut_where_its_own_paths_part_and_meet_below():
    """Two tasks over a branch of one owner share what is equal of it, another's branch over the same range does not."""
    nodes = branch("family", 2).nodes
    shared = {
        "a": Path(nodes=(*nodes[:-1], head("a"))),
        "b": Path(nodes=(*nodes[:2], msgspec.structs.replace(nodes[2], stop=5), Pool(), head("b"))),
        "c": branch("c", 2, stop=5),
    }
    plan = merge(shared)
    own = {(s.node.start, s.node.stop): s.tasks for s in plan.steps if getattr(s.node, "weights", "") == "task:family"}
    assert own == {(2, 5): ("a", "b"), (5, 8): ("a",)}
    assert [s.node.stop for s in plan.steps if getattr(s.node, "weights", "") == "task:c"] == [5]


@given(many(least=2))
def test_layers_are_cut_only_where_layers_of_the_same_weights_start_or_stop(tasks):
    edges: dict[str, set[int]] = {}
    for path in tasks.values():
        for node in path.layers:
            edges.setdefault(node.weights, set()).update((node.start, node.stop))
    found = [step.node for step in merge(tasks).steps if isinstance(step.node, Layers)]
    assert found and all({node.start, node.stop} <= edges[node.weights] for node in found)
    for node in found:
        inside = {edge for edge in edges[node.weights] if node.start < edge < node.stop}
        assert not inside or not node.is_plain or node.width is not None


@given(many())
def test_merging_changes_no_digest(tasks):
    plan = merge(tasks)
    for task, path in tasks.items():
        assert digest(plan.path(task), parts(path)) == digest(path, parts(path))


def test_trunks_of_another_digest_share_nothing():
    plan = merge({"a": pooled("a", trunk="one"), "b": pooled("b", trunk="two")})
    assert all(len(step.tasks) == 1 for step in plan.steps)
    assert len(plan.steps) == 8


def test_a_delta_ends_the_sharing():
    delta = Delta(kind="low_rank", part="task:b", size=2)
    nodes = pooled("b").nodes
    changed = Layers(start=0, stop=DEPTH, delta=delta)
    plan = merge({"a": pooled("a"), "b": Path(nodes=(nodes[0], changed, *nodes[2:]))})
    assert [step.tasks for step in plan.steps if len(step.tasks) > 1] == [("a", "b")]


def test_tasks_of_one_trunk_keep_the_order_in_which_they_were_merged():
    names = ["c", "a", "d", "b"]
    assert merge({name: branch(name, 3) for name in names}).tasks == tuple(names)


def test_an_empty_plan_has_no_steps_and_no_tasks():
    assert merge({}).steps == merge({}).tasks == ()


def test_an_unknown_task_is_refused_with_the_known_ones():
    with pytest.raises(PlanError, match=r"no task 'x'.*Allowed: a, b"):
        merge({"a": pooled("a"), "b": pooled("b")}).only(["a", "x"])


# what means nothing is refused


@cases(
    "nodes",
    [
        (),
        (Layers(start=0, stop=1),),
        (Embed(trunk="t"), Embed(trunk="t")),
        (Embed(trunk="t"), Pool(), Layers(start=0, stop=1)),
        (Embed(trunk="t"), head("a"), Pool()),
        (Embed(trunk="t"), Pool(), Pool()),
        (Embed(trunk="t"), Layers(start=0, stop=1), head("a")),
        (Embed(trunk="t"), Layers(start=1, stop=2)),
        (Embed(trunk="t"), Layers(start=0, stop=2), Layers(start=3, stop=4)),
        (Embed(trunk="t"), Layers(start=0, stop=2), Layers(start=1, stop=4)),
    ],
    ids=[
        "empty",
        "no-embed",
        "two-embeds",
        "layers-last",
        "pool-last",
        "two-pools",
        "no-pool",
        "late",
        "gap",
        "overlap",
    ],
)
def test_nodes_in_a_wrong_order_are_refused(nodes):
    with pytest.raises(PlanError):
        Path(nodes=nodes)


def test_a_path_has_at_most_one_head():
    with pytest.raises(PlanError):
        Path(nodes=(Embed(trunk="t"), Pool(), head("a"), head("a")))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Layers(start=2, stop=2),
        lambda: Layers(start=-1, stop=2),
        lambda: Pool(positions="attention", heads=2),
        lambda: Pool(layers="learned"),
        lambda: Pool(part="task:a"),
        lambda: Pool(layers="last", of=2),
        lambda: Pool(layers="mean", of=0),
        lambda: Codec(name="sign", scale=(1.0,), zero=(0.0,)),
        lambda: Codec(name="uint8", scale=(1.0,)),
        lambda: Delta(kind="low_rank", part="task:a"),
        lambda: Delta(kind="scale", part="task:a", size=4),
        lambda: Delta(kind="scale", part="task:a", tied=True),
        lambda: Delta(kind="projected_attention", part="task:a", size=10, heads=3),
        lambda: Head(kind="single_label", width=2, part="task:a", activation="relu"),
        lambda: Delta(kind="feed_forward", part="task:a", size=5),
        lambda: Prompt(part="task:a", rows=0),
        lambda: Delta(kind="prefix", part="task:a"),
        lambda: Delta(kind="prefix", part="task:a", size=4, tied=True),
        lambda: Delta(kind="bottleneck", part="task:a", size=4, serial=True),
        lambda: Delta(kind="lora", part="task:a", size=4, gelu="inside", alpha=1.0, targets=("attention.key",)),
        lambda: Delta(kind="bottleneck", part="task:a", size=4, ends="family:f"),
        lambda: Delta(kind="scale", part="task:a", scaled=True),
        lambda: Delta(kind="lora", part="task:a", size=4, alpha=1.0),
        lambda: Delta(kind="lora", part="task:a", size=4, targets=("attention.key",)),
        lambda: Delta(kind="lora", part="task:a", size=4, alpha=1.0, targets=("attention.key",) * 2),
        lambda: Delta(kind="low_rank", part="task:a", size=4, alpha=1.0),
        lambda: Delta(kind="low_rank", part="task:a", size=4, targets=("attention.key",)),
        lambda: Embed(trunk="t", shift=True),
        lambda: Embed(trunk="t", prompts=(Prompt(part="task:a", rows=1),), isolated=True, shift=True),
        lambda: Layers(start=0, stop=1, weights="task:a", attention=False, feed_forward=0),
        lambda: Layers(start=0, stop=1, weights="task:a", hidden_layers=2),
        lambda: Layers(start=0, stop=1, weights="task:a", feed_forward=8, hidden_layers=0),
        lambda: Head(kind="single_label", width=2, part="task:a", hidden_part="family:f"),
    ],
    ids=[
        "empty-range", "below-zero", "attention-without-part", "mix-without-part", "part-of-nothing",
        "last-of-two", "mean-of-none", "constants-of-sign", "scale-without-zero", "low-rank-of-0",
        "sized-scale", "tied-scale", "heads", "activation-of-nothing", "odd", "no-rows",
        "prefix-of-0", "tied-prefix", "serial-bottleneck", "lora-with-gelu", "ends-of-a-bottleneck", "scaled-scale",
        "no-targets",
        "no-alpha", "twice", "alpha-of-nothing", "targets-of-nothing", "shifted-by-nothing", "shifted-by-unseen",
        "no-halves", "hidden-layers-of-the-trunk", "none-of-them", "no-hidden-layer",
    ],
)  # fmt: skip
def test_nodes_that_mean_nothing_are_refused(make):
    with pytest.raises(PlanError):
        make()


def test_a_prefix_has_no_pool_or_head_to_ask_for():
    prefix = Path(nodes=(Embed(trunk="t"), Layers(start=0, stop=1)))
    for name in ("pool", "head"):
        with pytest.raises(PlanError, match=f"no {name}"):
            getattr(prefix, name)


# what is stored


def test_a_store_keeps_what_is_left_to_learn_unmixed():
    attention = pooled("a", layers="mean", of=4, positions="attention", heads=2, part="task:a")
    assert attention.stored().pool == Pool(layers="mean", of=4, positions="all")
    learned = pooled("a", layers="learned", positions="mean", part="task:a")
    assert learned.stored().pool.layers == "all"
    assert pooled("a").stored().nodes == pooled("a").nodes[:3]


@given(paths())
def test_a_stored_prefix_is_stored_as_itself(path):
    stored = path.stored()
    assert stored.stored() == stored
    assert stored.pool.part is None
    assert stored.layers == path.layers


@given(paths(), cuts)
def test_a_path_survives_json(path, boundaries):
    cut = split_layers(path, boundaries)
    assert msgspec.json.decode(msgspec.json.encode(cut), type=Path) == cut


def test_every_owner_on_a_path_is_named():
    delta = Delta(kind="low_rank", part="family:f", size=2, tied=True, ends="family:ends")
    nodes = (
        Embed(trunk="t", prompts=(Prompt(part="family:group", rows=2),)),
        Layers(start=0, stop=1),
        Layers(start=1, stop=2, weights="task:a", delta=delta),
        Pool(positions="prompt", part="family:group"),
        Head(kind="single_label", width=2, part="task:a", hidden=4, hidden_part="family:pooler"),
    )
    families = {"family:f", "family:ends", "family:group", "family:pooler"}
    assert set(owners_of(Path(nodes=nodes))) == {TRUNK, "task:a", *families}


def test_what_a_delta_and_a_prompt_do_is_part_of_the_digest():
    """Each of these ways to compute another value has another digest."""
    prompts = (Prompt(part="task:a", rows=2),)
    low = {"kind": "low_rank", "part": "task:a", "size": 4}
    lora = {"kind": "lora", "part": "task:a", "size": 4}
    deltas = [
        None,
        Delta(**low),
        Delta(**low, gelu="inside"),
        Delta(**low, gelu="after"),
        Delta(**low, serial=True),
        Delta(**low, tied=True),
        Delta(**low, tied=True, ends="family:f"),
        Delta(kind="prefix", part="task:a", size=4),
        Delta(**lora, alpha=1.0, targets=("attention.key",)),
        Delta(**lora, alpha=2.0, targets=("attention.key",)),
        Delta(**lora, alpha=1.0, targets=("attention.key", "attention.value")),
    ]
    own = {"start": 1, "stop": 2, "weights": "task:a"}
    nodes = [
        *((Embed(trunk="t"), Layers(start=0, stop=1, delta=delta)) for delta in deltas),
        *((Embed(trunk="t", prompts=prompts, **how), Layers(start=0, stop=1))
          for how in ({}, {"isolated": True}, {"shift": True})),
        *((Embed(trunk="t"), Layers(start=0, stop=1), Layers(**own, **how))
          for how in ({}, {"attention": False}, {"residual": False})),
    ]  # fmt: skip
    found = {digest(Path(nodes=some), parts(Path(nodes=some))) for some in nodes}
    assert len(found) == len(nodes) == 17
