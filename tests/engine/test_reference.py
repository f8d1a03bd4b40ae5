"""The numpy backend gives what the papers' formulas in `reference_encoder` give, on each row of a padded batch."""

import typing

import msgspec
import numpy as np
import pytest

from polyhead import plan
from polyhead.engine.backends.base import LoadedTask
from polyhead.engine.backends.reference import ReferenceBackend
from polyhead.errors import BackendError, PlanError
from polyhead.plan import Codec, Head, Layers, Path, Pool, Prompt
from polyhead.testing import tiny_batch, tiny_owned, tiny_trunk
from polyhead.testing.tiny import delta_path, on_top_path, prompted_path, tiny_deltas
from support.delta_formulas import FORMULAS
from support.pooled_features import of_reference
from support.reference_encoder import Slots, attention, embedded, everything, feed_forward, layer, linear, norm

LENGTHS = (6, 3, 1)
NEAR = 2e-5
TRUNK = tiny_trunk(max_tokens=12)
LAYERS = TRUNK.architecture.layers


def texts(lengths=LENGTHS):
    """A padded batch in which every token is a word, and the ids and segments of each row alone."""
    batch = tiny_batch(TRUNK, lengths)
    words = np.where(batch.mask, np.arange(batch.ids.shape[1]), -1)
    rows = [(batch.ids[i, :n], batch.segments[i, :n]) for i, n in enumerate(lengths)]
    return msgspec.structs.replace(batch, words=words), rows


def read_by(path, pool):
    """The same path, read by this pool."""
    return Path(nodes=tuple(pool if isinstance(node, Pool) else node for node in path.nodes))


def all_tokens(path):
    return read_by(path, Pool(positions="tokens"))


def loaded(path):
    return tiny_owned({"t": path}, TRUNK.architecture)["t"]


def features(task, batch, trunk=TRUNK):
    return of_reference(ReferenceBackend(trunk, {"t": task}), plan.merge({"t": task.path}), batch)["t"]


def run_by_hand(hidden, sees, slots=lambda index: None):
    for index in range(LAYERS):
        hidden = layer(TRUNK.arrays, f"layers.{index}", hidden, sees, slots=slots(index))
    return hidden


def assert_rows(found, wanted):
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_allclose(got[: len(want)], want, atol=NEAR)


def test_plain_layers_give_what_their_formula_gives():
    batch, rows = texts()
    task = loaded(all_tokens(delta_path(TRUNK, "t", None, None)))
    wanted = [run_by_hand(embedded(TRUNK.arrays, *row), everything(len(row[0]))) for row in rows]
    assert_rows(features(task, batch), wanted)


@pytest.mark.parametrize("form", FORMULAS)
def test_delta_gives_what_its_formula_gives(form):
    task = loaded(all_tokens(delta_path(TRUNK, "t", *[tiny_deltas("task:t")[form]] * LAYERS)))
    batch, rows = texts()
    wanted = []
    for ids, segments in rows:
        sees = everything(len(ids))
        slots = [FORMULAS[form](task, index, sees) for index in range(LAYERS)]
        wanted.append(run_by_hand(embedded(TRUNK.arrays, ids, segments), sees, slots.__getitem__))
    assert_rows(features(task, batch), wanted)


def test_every_form_of_delta_has_its_formula():
    deltas = tiny_deltas("task:t")
    assert set(deltas) == set(FORMULAS)
    assert {delta.kind for delta in deltas.values()} == set(typing.get_args(plan.DeltaKind))


@pytest.mark.parametrize("form", sorted(set(FORMULAS) - {"scale", "prefix", "low-rank-serial", "attention-serial"}))
def test_delta_with_a_zero_decoder_is_the_trunk_bit_for_bit(form):
    batch, _ = texts()
    task = loaded(all_tokens(delta_path(TRUNK, "t", *[tiny_deltas("task:t")[form]] * LAYERS)))
    plain = loaded(all_tokens(delta_path(TRUNK, "t", None, None)))

    def silent(arrays):
        return {name: array * (".decoder." not in name) for name, array in arrays.items()}

    others = {owner: silent(arrays) for owner, arrays in task.others.items()}
    quiet = LoadedTask(path=task.path, arrays=silent(task.arrays), others=others)
    assert not np.array_equal(features(task, batch), features(plain, batch))
    assert np.array_equal(features(quiet, batch), features(plain, batch))


def test_low_rank_maps_are_those_of_a_trunk_with_the_products_added_to_its_weights():
    batch, _ = texts()
    task = loaded(all_tokens(delta_path(TRUNK, "t", *[tiny_deltas("task:t")["lora-everywhere"]] * LAYERS)))
    arrays = {name: array.astype(np.float64) for name, array in TRUNK.arrays.items()}
    for name, down in task.arrays.items():
        if name.endswith(".encoder.weight"):
            base = name.removesuffix(".encoder.weight")
            product = task.arrays[f"{base}.decoder.weight"].astype(np.float64) @ down
            arrays[base.replace("delta.", "layers.") + ".weight"] += product / 4
    merged = msgspec.structs.replace(TRUNK, arrays={n: a.astype(np.float32) for n, a in arrays.items()})
    plain = loaded(all_tokens(delta_path(TRUNK, "t", None, None)))
    np.testing.assert_allclose(features(task, batch), features(plain, batch, merged), atol=NEAR)


def narrow(**settings):
    return Layers(start=LAYERS, stop=LAYERS + 2, width=8, enter=True, leave=True, **settings)


def halves(node, arrays, name, hidden):
    """What one narrow layer gives, by the settings of its node."""
    slots, sees = Slots(), everything(len(hidden))
    if node.attention:
        out = attention(arrays, name, hidden, sees, heads=node.heads or 2, slots=slots)
        hidden = norm(arrays, f"{name}.attention.norm", hidden + out) if node.residual else out
    if node.feed_forward:
        out = feed_forward(arrays, name, hidden, slots=slots)
        hidden = norm(arrays, f"{name}.feed_forward.norm", hidden + out) if node.residual else out
    return hidden


@pytest.mark.parametrize(
    "node",
    [
        narrow(feed_forward=0, heads=4),
        narrow(feed_forward=12, attention=False),
        narrow(feed_forward=12, attention=False, hidden_layers=3),
        narrow(feed_forward=12, residual=False),
        narrow(feed_forward=12),
        narrow(feed_forward=0, residual=False),
    ],
    ids=["attention", "feed-forward", "three-hidden-layers", "nothing-added", "both-halves", "attention-alone"],
)
def test_narrow_layers_on_top_give_what_their_formula_gives(node):
    task = loaded(all_tokens(on_top_path(TRUNK, "t", node)))
    batch, rows = texts()
    wanted = []
    for ids, segments in rows:
        hidden = run_by_hand(embedded(TRUNK.arrays, ids, segments), everything(len(ids)))
        hidden = linear(task.arrays, "enter", hidden)
        for index in range(node.start, node.stop):
            hidden = halves(node, task.arrays, f"layers.{index}", hidden)
        wanted.append(linear(task.arrays, "leave", hidden))
    assert_rows(features(task, batch), wanted)


def test_whole_layer_on_top_is_one_more_layer():
    task = loaded(all_tokens(on_top_path(TRUNK, "t", Layers(start=LAYERS, stop=LAYERS + 1))))
    batch, rows = texts()
    wanted = []
    for ids, segments in rows:
        sees = everything(len(ids))
        hidden = run_by_hand(embedded(TRUNK.arrays, ids, segments), sees)
        wanted.append(layer(task.arrays, f"layers.{LAYERS}", hidden, sees))
    assert_rows(features(task, batch), wanted)


GROUP = [Prompt(part="family:prompts:g", rows=2), Prompt(part="task:s", rows=1), Prompt(part="task:t", rows=3)]


@pytest.mark.parametrize("shift", [False, True], ids=["in-place", "shifted"])
def test_joint_prompts_stand_before_the_text_and_all_see_all(shift):
    task = loaded(prompted_path(TRUNK, "t", GROUP, shift=shift))
    prompts = [
        task.others["family:prompts:g"]["prompt.weight"],
        task.others["task:s"]["prompt.weight"],
        task.arrays["prompt.weight"],
    ]
    batch, rows = texts()
    hidden = [
        run_by_hand(embedded(TRUNK.arrays, *row, prompts=prompts, first=6 * shift), everything(6 + len(row[0])))
        for row in rows
    ]
    np.testing.assert_allclose(features(task, batch), [one[3:6].mean(axis=0) for one in hidden], atol=NEAR)
    text = loaded(all_tokens(task.path))
    assert_rows(features(text, batch), [one[6:] for one in hidden])


def test_isolated_prompt_reads_the_text_and_itself_and_the_text_reads_the_text_alone():
    own = [Prompt(part="task:s", rows=1), Prompt(part="task:t", rows=2)]
    task = loaded(prompted_path(TRUNK, "t", own, isolated=True))
    prompts = [task.others["task:s"]["prompt.weight"], task.arrays["prompt.weight"]]
    batch, rows = texts()
    hidden = []
    for row in rows:
        text = list(range(3, 3 + len(row[0])))
        sees = [[0, *text], [1, 2, *text], [1, 2, *text], *[text] * len(text)]
        hidden.append(run_by_hand(embedded(TRUNK.arrays, *row, prompts=prompts), sees))
    np.testing.assert_allclose(features(task, batch), [one[1:3].mean(axis=0) for one in hidden], atol=NEAR)
    text = loaded(all_tokens(task.path))
    plain = loaded(all_tokens(delta_path(TRUNK, "t", None, None)))
    np.testing.assert_allclose(features(text, batch), features(plain, batch), atol=NEAR)
    alone = loaded(prompted_path(TRUNK, "t", own[1:], isolated=True))
    np.testing.assert_allclose(features(alone, batch), features(task, batch), atol=NEAR)


def test_deltas_respect_what_isolated_prompts_see():
    """Projected attention runs under the layer's own mask."""
    delta = tiny_deltas("task:t")["attention"]
    layers = Layers(start=0, stop=LAYERS, delta=delta)
    before = prompted_path(TRUNK, "t", GROUP[2:], isolated=True)
    task = loaded(Path(nodes=(before.embed, layers, before.pool, before.head)))
    batch, rows = texts()
    wanted = []
    for row in rows:
        text = list(range(3, 3 + len(row[0])))
        sees = [*[[0, 1, 2, *text]] * 3, *[text] * len(text)]
        slots = [FORMULAS["attention"](task, index, sees) for index in range(LAYERS)]
        start = embedded(TRUNK.arrays, *row, prompts=[task.arrays["prompt.weight"]])
        wanted.append(run_by_hand(start, sees, slots.__getitem__)[:3].mean(axis=0))
    np.testing.assert_allclose(features(task, batch), wanted, atol=NEAR)


@pytest.mark.parametrize("positions", ["first", "second", "mean", "attention"])
def test_pools_of_the_text_leave_prompt_rows_out(positions):
    """Isolated prompts change nothing of the text, so each pool gives what it gives without prompts."""
    part, heads = ("task:t", 2) if positions == "attention" else (None, 0)
    pool = Pool(positions=positions, part=part, heads=heads)
    batch, _ = texts()
    under = loaded(read_by(prompted_path(TRUNK, "t", GROUP[2:], isolated=True), pool))
    plain = loaded(read_by(delta_path(TRUNK, "t", None, None), pool))
    np.testing.assert_allclose(features(under, batch), features(plain, batch), atol=NEAR)


@pytest.mark.parametrize(("positions", "place"), [("first", 0), ("second", 1)])
def test_one_token_of_each_text_is_read_and_the_last_of_shorter_ones(positions, place):
    task = loaded(read_by(delta_path(TRUNK, "t", None, None), Pool(positions=positions)))
    batch, rows = texts()
    wanted = [run_by_hand(embedded(TRUNK.arrays, *row), everything(len(row[0]))) for row in rows]
    wanted = [states[min(place, len(states) - 1)] for states in wanted]
    np.testing.assert_allclose(features(task, batch), wanted, atol=NEAR)


def test_prompt_rows_pass_through_the_codec_before_they_are_mixed():
    path = prompted_path(TRUNK, "t", GROUP[2:])
    layers = Pool(layers="learned", positions="prompt", part="task:t", codec=Codec(name="sign"))
    task = loaded(read_by(path, layers))
    batch, rows = texts()
    mix = np.exp(task.arrays["mix.weights"])
    for row, got in zip(rows, features(task, batch), strict=True):
        hidden, total = embedded(TRUNK.arrays, *row, prompts=[task.arrays["prompt.weight"]]), 0.0
        for index in range(LAYERS):
            hidden = layer(TRUNK.arrays, f"layers.{index}", hidden, everything(len(hidden)))
            total = total + mix[index] / mix.sum() * np.where(hidden[:3] >= 0, 1.0, -1.0).mean(axis=0)
        np.testing.assert_allclose(got, task.arrays["mix.scale"] * total, atol=NEAR)


def test_scorer_of_another_owner_is_read_there():
    path = delta_path(TRUNK, "t", None, None)
    head = Head(kind="single_label", width=2, part="task:t", hidden=5, hidden_part="family:pooler")
    task = loaded(Path(nodes=(*path.nodes[:-1], head)))
    assert "head.hidden.weight" not in task.arrays
    values = np.random.default_rng(0).standard_normal((3, 16)).astype(np.float32)
    hidden = np.tanh(linear(task.others["family:pooler"], "head.hidden", values))
    got = ReferenceBackend(TRUNK, {"t": task})._headed("t", values)
    np.testing.assert_allclose(got, linear(task.arrays, "head.output", hidden), atol=NEAR)


def test_arrays_that_are_not_loaded_are_refused_by_their_owner():
    task = loaded(prompted_path(TRUNK, "t", GROUP))
    family = {"family:prompts:g": task.others["family:prompts:g"]}
    with pytest.raises(BackendError, match="task:s"):
        features(LoadedTask(path=task.path, arrays=task.arrays, others=family), texts()[0])


def test_text_behind_more_prompt_rows_than_positions_is_refused():
    task = loaded(prompted_path(TRUNK, "t", GROUP, shift=True))
    assert features(task, texts((6,))[0]).shape == (1, 16)
    with pytest.raises(BackendError, match="7 tokens behind 6 prompt rows"):
        features(task, texts((7,))[0])


def test_pool_of_prompt_rows_without_a_prompt_is_refused():
    path = read_by(delta_path(TRUNK, "t", None, None), Pool(positions="prompt", part="task:t"))
    with pytest.raises(PlanError, match="prompt of its own part"):
        features(loaded(path), texts()[0])


def test_pool_over_layers_of_several_widths_is_refused():
    path = on_top_path(TRUNK, "t", narrow(feed_forward=0))
    with pytest.raises(PlanError, match="several widths"):
        features(loaded(read_by(path, Pool(layers="mean", of=3))), texts()[0])
