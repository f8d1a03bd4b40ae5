"""Strategy `branch`: its path, taps counted from the embedding's output, what its part computes and starts from."""

import msgspec
import numpy as np
import pytest
import torch

from polyhead import plan
from polyhead.deep.model import MultiTaskModel, TextBatch, stored_value
from polyhead.deep.nn.trunk import Trunk
from polyhead.deep.sharing.make import arrays_of_part, make_part
from polyhead.deep.sharing.part import BranchPart, pair_features
from polyhead.errors import ConfigError, PlanError
from polyhead.plan import TRUNK, Codec, Embed, Head, Layers, Path, Pool, cost
from polyhead.project.strategies import Branch, Pooled
from polyhead.project.strategies.branch import branch_path, private_layers, tap_of, tap_path
from polyhead.tasks.task import owner_of
from polyhead.testing import tiny_batch, tiny_part, tiny_tasks, tiny_trunk

DEPTH = 4
TASKS = {task.name: task for task in tiny_tasks()}
POSITIONS = ("first", "mean", "attention", "tokens")


@pytest.fixture(scope="module")
def trunk():
    return tiny_trunk(layers=DEPTH)


@pytest.fixture(scope="module")
def live(trunk):
    return Trunk.from_data(trunk).requires_grad_(False)


@pytest.fixture(scope="module")
def texts(trunk):
    return as_texts(tiny_batch(trunk, (9, 4, 7, 2)))


def as_texts(batch):
    fields = {name: torch.from_numpy(getattr(batch, name)) for name in ("ids", "mask", "segments", "words")}
    return TextBatch(**fields)


def path_of(trunk, task="mood", *, tap=2, layers=2, **strategy):
    return branch_path(
        TASKS[task], Branch(**strategy), trunk=trunk.digest, shape=trunk.architecture, tap=tap, layers=layers
    )


def part_of(path, trunk, *, seed=1, start=True, **arguments):
    """The path's part with drawn arrays, or, with `start`, the trunk's own layers in it."""
    part = make_part(path, trunk.architecture, **arguments)
    drawn = tiny_part(path, trunk.architecture, path.head.part, seed=seed)
    part.load_state_dict({name: torch.from_numpy(value) for name, value in drawn.items()})
    if start and isinstance(part, BranchPart):
        part.start_from(trunk.arrays)
    return part.eval()


def features(live, path, part, texts, *, task="mood"):
    stored = MultiTaskModel(live, {task: part}).stored(plan.merge({task: path}), texts)[task]
    return part.features(stored.values, stored.mask)


# paths


@pytest.mark.parametrize(
    ("tap", "layers", "shared"),
    [(2, 2, (Layers(start=0, stop=2),)), (1, 2, (Layers(start=0, stop=1),)), (0, 3, ())],
    ids=["on top", "ends below the trunk's end", "from the embeddings"],
)
def test_a_branch_is_the_trunk_to_the_tap_then_layers_of_its_own(trunk, tap, layers, shared):
    path = path_of(trunk, tap=tap, layers=layers)
    assert path.nodes == (
        Embed(trunk=trunk.digest),
        *shared,
        Layers(start=tap, stop=tap + layers, weights="task:mood"),
        Pool(layers="last", positions="first"),
        Head(kind="single_label", width=2, part="task:mood", hidden=16),
    )
    assert tap_of(path) == tap and list(private_layers(path)) == list(range(tap, tap + layers))


@pytest.mark.parametrize(("tap", "layers"), [(-1, 2), (0, 0), (0, DEPTH + 1), (3, 2), (DEPTH, 1), (DEPTH, 0)], ids=str)
def test_a_branch_that_the_trunk_has_no_place_for_is_refused(trunk, tap, layers):
    with pytest.raises(ConfigError, match="no such branch on a trunk of 4 layers") as caught:
        path_of(trunk, tap=tap, layers=layers)
    assert caught.value.got == f"{layers} private layers above tap {tap}" and "'mood'" in str(caught.value)


@pytest.mark.parametrize("positions", ["first", "mean", "attention"])
def test_an_attention_pooler_alone_is_the_branchs_own(trunk, positions):
    pool = path_of(trunk, positions=positions).pool
    assert pool.positions == positions and pool.layers == "last"
    assert (pool.part, pool.heads) == (("task:mood", 1) if positions == "attention" else (None, 0))
    assert path_of(trunk, "names", positions=positions).pool == Pool(positions="tokens")


def test_width_of_the_tanh_layer_is_the_trunks_unless_said(trunk):
    assert [path_of(trunk, hidden=hidden).head.hidden for hidden in (None, 0, 5)] == [16, 0, 5]


def test_a_pair_read_separately_has_a_head_over_both_texts(trunk):
    assert path_of(trunk, "alike").head.separate and not path_of(trunk, "same").head.separate


@pytest.mark.parametrize("tap", [0, 1, 3])
def test_what_is_kept_for_a_branch_is_every_position_at_its_tap(trunk, tap):
    """float16 holds the states of a bfloat16 trunk, a float32 trunk's are kept whole; branches of a tap share them."""
    path = path_of(trunk, tap=tap, layers=1)
    shared = (Layers(start=0, stop=tap),) if tap else ()
    for precision, codec in (("bfloat16", "float16"), ("float32", "float32")):
        expected = Path(nodes=(Embed(trunk=trunk.digest), *shared, Pool(positions="all", codec=Codec(name=codec))))
        for other in (path, path_of(trunk, "names", tap=tap, layers=DEPTH - tap, positions="mean")):
            assert tap_path(other, precision=precision) == expected


def test_a_path_without_private_layers_is_a_pooled_one(trunk):
    path = Pooled(layers="last", positions="mean").path(
        TASKS["mood"], trunk="d", shape=trunk.architecture, codec=Codec()
    )
    assert tap_of(path) == DEPTH and not private_layers(path)
    assert not isinstance(make_part(path, trunk.architecture), BranchPart)


# what a branch computes


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("tap", range(DEPTH + 1))
def test_a_branch_of_the_trunks_own_layers_is_the_plain_trunk_from_every_tap(trunk, live, texts, tap, positions):
    """The off-by-one trap: private layer k + 1 must read state k, h^0 being the embedding's output."""
    task = "names" if positions == "tokens" else "mood"
    said = {"positions": positions} if positions != "tokens" else {}
    if tap < DEPTH:
        path = path_of(trunk, task, tap=tap, layers=DEPTH - tap, **said)
    else:  # no private layer is left: the pooled path
        bare = path_of(trunk, task, tap=0, layers=DEPTH, **said)
        path = Path(nodes=(bare.embed, Layers(start=0, stop=DEPTH), *bare.nodes[-2:]))
    part = part_of(path, trunk)
    with torch.inference_mode():
        states = live(texts.ids, texts.mask, segments=texts.segments)
        value = stored_value(states, path.stored().pool, texts.words)
        expected = part.features(value.values, value.mask)
        found = features(live, path, part, texts, task=task)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)
    if tap < DEPTH - 1:  # the test can fail: the layers in another order are another function
        turned = part_of(path, trunk)
        for one, other in ((tap, tap + 1), (tap + 1, tap)):
            turned.layers[str(one)].load_state_dict(part.layers[str(other)].state_dict())
        with torch.inference_mode():
            worst = (features(live, path, turned, texts, task=task) - expected).abs().max()
        assert worst > 1e-2


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("tap", [0, 2])
def test_padding_and_other_rows_change_nothing_of_a_branch(trunk, live, positions, tap):
    task = "names" if positions == "tokens" else "mood"
    said = {"positions": positions} if positions != "tokens" else {}
    path = path_of(trunk, task, tap=tap, layers=2, **said)
    part, batch = part_of(path, trunk), tiny_batch(trunk, (6, 3))
    more, junk = tiny_batch(trunk, (11, 9, 5)), np.random.default_rng(1).integers(5, 60, (2, 5))
    ids = np.concatenate([np.concatenate([np.where(batch.mask, batch.ids, 7), junk], axis=1), more.ids])
    mask = np.concatenate([np.pad(batch.mask, ((0, 0), (0, 5))), more.mask])
    segments = np.concatenate([np.pad(batch.segments, ((0, 0), (0, 5)), constant_values=1), more.segments])
    wide = TextBatch(
        ids=torch.from_numpy(ids),
        mask=torch.from_numpy(mask),
        segments=torch.from_numpy(segments),
        words=torch.from_numpy(np.concatenate([batch.words, more.words])),
    )
    with torch.inference_mode():
        alone = features(live, path, part, as_texts(batch), task=task)
        among = features(live, path, part, wide, task=task)
        unmasked = features(live, path, part, msgspec.structs.replace(wide, mask=torch.ones_like(wide.mask)), task=task)
    torch.testing.assert_close(among[:2], alone, atol=1e-6, rtol=0)
    assert (unmasked[:2] - alone).abs().max() > 1e-3  # the mask is what keeps the padding out


def test_a_branch_over_pairs_read_separately_compares_both_texts(trunk, live, texts):
    path = path_of(trunk, "alike", tap=1, layers=2)
    part = part_of(path, trunk)
    with torch.inference_mode():
        stored = MultiTaskModel(live, {"alike": part}).stored(plan.merge({"alike": path}), texts)["alike"]
        second = (stored.values.flip(0), stored.mask.flip(0))
        u = part.features(stored.values, stored.mask)
        expected = part.head(pair_features(u, u.flip(0)))
        found = part(stored.values, stored.mask, second)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)
    assert found.shape == (4, 1)


@pytest.mark.parametrize(("positions", "narrow"), [("first", True), ("mean", False), ("attention", False)])
def test_the_last_layer_computes_one_position_where_one_is_read(trunk, live, texts, positions, narrow):
    path = path_of(trunk, tap=1, layers=3, positions=positions)
    part, tokens = part_of(path, trunk), texts.ids.shape[1]
    shapes = {}
    for index, layer in part.layers.items():
        layer.register_forward_hook(lambda module, given, out, i=index: shapes.update({i: out.shape[1]}))
    with torch.inference_mode():
        features(live, path, part, texts)
    assert shapes == {"1": tokens, "2": tokens, "3": 1 if narrow else tokens}


def test_a_tagging_branch_reads_the_first_subtoken_of_each_word(trunk, live, texts):
    path = path_of(trunk, "names", tap=3, layers=1)
    with torch.inference_mode():
        found = features(live, path, part_of(path, trunk), texts, task="names")
        last = live(texts.ids, texts.mask, segments=texts.segments).last
    assert (texts.words[3] >= 0).tolist() == [False] * 3 and found.shape == (4, 3, 16)
    for row, words in enumerate(texts.words.tolist()):
        for place, token in enumerate(words):
            expected = last[row, token] if token >= 0 else torch.zeros(16)
            torch.testing.assert_close(found[row, place], expected, atol=1e-5, rtol=0)


def test_branches_of_several_taps_run_the_trunk_once_to_the_deepest_and_each_its_own_layers(trunk, live, texts):
    taps = {"mood": (0, 3), "topics": (2, 1), "urgency": (3, 1)}
    paths = {name: path_of(trunk, name, tap=tap, layers=layers) for name, (tap, layers) in taps.items()}
    parts = {name: part_of(path, trunk, start=False) for name, path in paths.items()}
    model = MultiTaskModel(live, parts).eval()
    with torch.inference_mode():
        together = model(plan.merge(paths), texts)
    assert model.layers_run == 3 + (3 + 1 + 1) == cost.layer_evaluations(plan.merge(paths))
    for name, path in paths.items():
        alone = MultiTaskModel(live, {name: parts[name]}).eval()
        with torch.inference_mode():
            assert torch.equal(alone(plan.merge({name: path}), texts)[name], together[name])
        assert alone.layers_run == sum(taps[name])


def test_layers_of_another_task_are_refused(trunk, live, texts):
    path = path_of(trunk)
    strange = Path(
        nodes=tuple(
            msgspec.structs.replace(node, weights="task:topics")
            if isinstance(node, Layers) and node.weights != TRUNK
            else node
            for node in path.nodes
        )
    )
    model = MultiTaskModel(live, {"mood": part_of(path, trunk)})
    with pytest.raises(PlanError, match="no part here owns these layers"):
        model.stored(plan.merge({"mood": strange}), texts)


# its part


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("positions", ["first", "attention"])
def test_arrays_are_named_by_their_place_in_the_trunk(trunk, task, positions):
    path = path_of(trunk, task, tap=1, layers=2, positions=positions)
    arrays = arrays_of_part(make_part(path, trunk.architecture))
    assert {name: a.shape for name, a in arrays.items()} == cost.part_arrays(
        path, trunk.architecture, owner_of(TASKS[task])
    )
    assert {name.split(".")[1] for name in arrays if name.startswith("layers.")} == {"1", "2"}
    assert all(a.dtype == np.float32 for a in arrays.values())


def test_arrays_of_a_part_are_copies(trunk):
    part = part_of(path_of(trunk), trunk)
    arrays = arrays_of_part(part)
    before = {name: a.copy() for name, a in arrays.items()}
    with torch.no_grad():
        for value in part.parameters():
            value.add_(1.0)
    assert all(np.array_equal(arrays[name], before[name]) for name in arrays)


def test_a_branch_starts_from_the_trunks_layers_of_the_same_indices_and_a_drawn_head(trunk):
    path = path_of(trunk, tap=1, layers=2)
    parts = [BranchPart(path, trunk.architecture, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2)]
    for part in parts:
        part.start_from(trunk.arrays)
    one, two = map(arrays_of_part, parts)
    layers = [name for name in one if name.startswith("layers.")]
    assert len(layers) == 32 and all(np.array_equal(one[name], trunk.arrays[name]) for name in layers)
    assert not np.array_equal(one["head.output.weight"], two["head.output.weight"])
    with torch.no_grad():  # what it started from is not written into by training
        for value in parts[0].parameters():
            value.zero_()
    assert all(np.array_equal(two[name], trunk.arrays[name]) for name in layers)


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("head", [False, True], ids=["layers alone", "head too"])
def test_a_student_starts_from_the_bottommost_layers_of_its_teacher(trunk, layers, head):
    """Teacher layer j becomes student layer j for j = k+1..k+l (Wei et al. 2021), not every second one."""
    tap, teacher = 1, path_of(trunk, tap=1, layers=3, positions="attention")
    arrays = tiny_part(teacher, trunk.architecture, "task:mood", seed=5)
    student = path_of(trunk, tap=tap, layers=layers, positions="attention")
    part = BranchPart(student, trunk.architecture, generator=torch.Generator().manual_seed(0))
    before = arrays_of_part(part)
    part.start_from(arrays, head=head)
    found = arrays_of_part(part)
    own = {name for name in found if name.startswith("layers.")}
    assert {int(name.split(".")[1]) for name in own} == set(range(tap, tap + layers))
    rest = set(found) - own
    assert {name.split(".")[0] for name in rest} == {"pool", "head"}
    for name in found:
        expected = arrays[name] if name in own or head else before[name]
        assert np.array_equal(found[name], expected), name


@pytest.mark.parametrize(
    ("change", "head", "named"),
    [
        ({"layers.2.attention.query.weight": None}, False, "layers.2.attention.query.weight"),
        ({"layers.3.feed_forward.inner.bias": np.zeros(7, np.float32)}, False, "layers.3"),
        ({"head.output.weight": np.zeros((3, 16), np.float32)}, True, "head.output.weight"),
        ({"head.hidden.bias": None}, True, "head.hidden.bias"),
    ],
    ids=["missing layer", "another feed-forward width", "other labels", "no hidden layer"],
)
def test_weights_that_do_not_fit_are_refused_by_name_and_change_nothing(trunk, change, head, named):
    path = path_of(trunk)
    arrays = tiny_part(path, trunk.architecture, "task:mood", seed=5) | change
    part = part_of(path, trunk)
    before = arrays_of_part(part)
    with pytest.raises(PlanError, match=named.replace(".", r"\.")):
        part.start_from({name: a for name, a in arrays.items() if a is not None}, head=head)
    assert all(np.array_equal(before[name], a) for name, a in arrays_of_part(part).items())


def test_a_branch_of_a_deeper_tap_does_not_start_from_a_shallower_teacher(trunk):
    """A teacher of layers 0 and 1 has no layer 2: an index is never shifted to make it fit."""
    teacher = tiny_part(path_of(trunk, tap=0, layers=2), trunk.architecture, "task:mood")
    with pytest.raises(PlanError, match="cannot start"):
        make_part(path_of(trunk, tap=1, layers=2), trunk.architecture).start_from(teacher)


def test_a_served_branch_has_its_layers_in_the_trunks_precision_and_the_rest_in_float32(trunk):
    path = path_of(trunk, positions="attention")
    part = part_of(path, trunk).train()
    served = part.served(torch.bfloat16)
    assert not served.training and part.training
    kinds = {name.split(".")[0]: value.dtype for name, value in served.named_parameters()}
    assert kinds == {"layers": torch.bfloat16, "pool": torch.float32, "head": torch.float32}
    assert {value.dtype for value in part.parameters()} == {torch.float32}
    with torch.no_grad():
        for value in served.parameters():
            value.zero_()
    assert all(value.abs().sum() > 0 for value in part.parameters())


def test_dropout_of_the_layers_acts_in_training_alone(trunk, live, texts):
    path = path_of(trunk, positions="mean")
    part, plain = part_of(path, trunk, layer_dropout=0.5), part_of(path, trunk)
    with torch.no_grad():
        assert torch.equal(features(live, path, part, texts), features(live, path, plain, texts))
        torch.manual_seed(0)
        dropped = [features(live, path, part.train(), texts) for _ in range(2)]
    assert not torch.equal(*dropped)


def test_the_generator_decides_how_a_branch_starts(trunk):
    path = path_of(trunk, positions="attention")

    def drawn(seed):
        made = make_part(path, trunk.architecture, generator=torch.Generator().manual_seed(seed))
        return {name: a.tobytes() for name, a in arrays_of_part(made).items()}

    assert drawn(1) == drawn(1) != drawn(2)


def test_gradients_reach_every_array_of_a_branch_and_none_of_the_trunk(trunk, live, texts):
    """But a key's bias, which cancels in the softmax, and what only other positions of the last layer would read."""
    for positions in ("first", "mean"):
        path = path_of(trunk, tap=1, layers=2, positions=positions)
        part = part_of(path, trunk)
        stored = MultiTaskModel(live, {"mood": part}).stored(plan.merge({"mood": path}), texts)["mood"]
        part(stored.values, stored.mask)[:, 0].pow(2).sum().backward()
        unmoved = {n for n, p in part.named_parameters() if p.grad is None or p.grad.abs().sum() < 1e-9}
        assert all(name.endswith("key.bias") for name in unmoved), unmoved
        assert all(p.grad is None for p in live.parameters())
