"""The studies of a card, on the processor: a stack equals its models one by one, and the package's own."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from polyhead.deep.loop.loss import LOSSES, distilled
from polyhead.deep.loop.optimizer import clipped
from polyhead.deep.loop.smooth import symmetric_kl
from polyhead.deep.nn.heads import AttentionPooler
from polyhead.deep.nn.trunk import Trunk
from polyhead.deep.sharing.in_layer import Adapters
from polyhead.plan import Delta
from polyhead.project.strategies import Branch
from polyhead.tasks import metrics
from studies.gpu import feed, fit, mixed, scores, stack, together
from studies.gpu.adam import LaneAdam
from studies.gpu.pack import pack_of
from studies.gpu.packed import from_bfloat16, read_pack, to_bfloat16, write_pack
from studies.gpu.stack import Form, Stack, start_arrays, trunk_form
from studies.wei2021.whole import train_whole
from support.tiny_branches import DEPTH, extractor_of, home_in, prepared_of

NAMES = ("mood", "same")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return home_in(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def extractor(home, tmp_path_factory):
    return extractor_of(home, tmp_path_factory.mktemp("kept"))


@pytest.fixture(scope="module")
def prepared(home):
    return {name: prepared_of(home, name) for name in NAMES}


@pytest.fixture(scope="module")
def pack(extractor, prepared):
    return pack_of(extractor.data, prepared)


@pytest.fixture
def undropped(monkeypatch):
    monkeypatch.setattr(stack, "DROPOUT", 0.0)


def made(form, starts):
    return Stack(form, starts, device="cpu", dtype=torch.float32)


def whole_form(pack, name, **changes):
    named = {"tap": 0, "layers": pack.shape.layers, "embeds": True, **changes}
    return Form(shape=pack.shape, outputs=pack.sets[name].outputs, **named)


def shaken(arrays, seed):
    random = np.random.default_rng(seed)
    return {name: array + random.normal(0, 0.02, np.shape(array)).astype(np.float32) for name, array in arrays.items()}


def on_device(pack, name, split="train"):
    return feed.on_device(pack.sets[name].splits[split], "cpu")


@pytest.mark.parametrize("name", NAMES)
def test_every_lane_has_the_states_of_its_own_trunk(pack, extractor, name):
    form, examples = trunk_form(pack.shape), on_device(pack, name)
    starts = [shaken(start_arrays(form, pack.weights, seed=seed), seed) for seed in (1, 2)]
    lanes, texts = made(form, starts), examples.batch(np.arange(5)[None])
    for lane, start in enumerate(starts):
        found = lanes.answers(texts, layers=DEPTH)[lane]
        ids, mask, segments = texts.ids[0].long(), texts.mask[0], texts.segments[0].long()
        expected = reference(extractor.data, start)(ids, mask, segments=segments)
        np.testing.assert_allclose(found[mask].detach(), expected.last[mask].detach(), atol=2e-5)


def reference(data, arrays):
    """The package's trunk with a lane's arrays; the words that no text has stay as they were."""
    width = data.architecture.width
    own = {name: torch.tensor(np.asarray(array)) for name, array in data.arrays.items()}
    for name, array in arrays.items():
        if "attention.in" in name:
            for place, part in enumerate(("query", "key", "value")):
                own[name.replace("attention.in", f"attention.{part}")] = torch.tensor(array[place * width :][:width])
        elif name in own:
            own[name][: len(array)] = torch.tensor(np.asarray(array))
    trunk = Trunk.from_data(data)
    trunk.load_state_dict(own)
    return trunk


def test_the_pooler_is_that_of_the_package(pack):
    form = whole_form(pack, "mood", tap=pack.shape.layers, layers=0, embeds=False, pool="attention")
    starts = [shaken(start_arrays(form, pack.weights, seed=seed), seed) for seed in (1, 2)]
    hidden, mask = torch.randn(1, 4, 9, pack.shape.width), torch.arange(9) < torch.tensor([9, 1, 4, 7])[:, None]
    found = made(form, starts)._pooled(hidden.expand(2, -1, -1, -1), mask[None])
    for lane, start in enumerate(starts):
        pooler = AttentionPooler(pack.shape.width, pack.shape.heads)
        own = {n.removeprefix("pool."): torch.tensor(a, dtype=torch.float32) for n, a in start.items() if "pool" in n}
        pooler.load_state_dict(own, strict=False)
        np.testing.assert_allclose(found[lane].detach(), pooler(hidden[0], mask).detach(), atol=1e-5)


def test_a_model_answers_as_the_studies_own(pack, prepared, extractor):
    """Full fine-tuning as `studies.wei2021` trains it, its weights in a lane."""
    whole = train_whole(prepared["same"], Branch(), extractor, layers=DEPTH, precision="float32")
    learned = {n: p.detach().numpy() for n, p in whole.weights["trunk"].named_parameters()}
    ends = {n: p.detach().numpy() for n, p in whole.weights["part"].named_parameters()}
    form, words = whole_form(pack, "same"), "embeddings.word.weight"
    used = [np.flatnonzero((extractor.data.arrays[words] == row).all(1))[0] for row in pack.weights[words]]
    start = start_arrays(form, {**learned, words: learned[words][used]}, seed=1)
    start |= {n: ends[n] for n in start if n in ends}
    assert sum(n in ends for n in start) == 4, sorted(ends)
    places = "embeddings.position.weight"
    start[places] = start[places][: len(pack.weights[places])]
    found = feed.outputs_of(made(form, [start, shaken(start, 1)]), on_device(pack, "same", "test"))
    np.testing.assert_allclose(found[0], np.stack(whole.outputs(prepared["same"].test)), atol=2e-5)
    assert np.abs(found[1] - found[0]).max() > 1e-3


def test_an_update_is_that_of_adam_for_each_lane_alone(pack, undropped):
    """Clipping, weight decay on matrices alone, and rates of their own, also behind a lane that has left."""
    form, examples, rates = whole_form(pack, "mood"), on_device(pack, "mood"), [1e-3, 1e-2, 1e-3]
    starts = [shaken(start_arrays(form, pack.weights, seed=seed), seed) for seed in range(3)]
    together, orders = made(form, starts), np.random.default_rng(0).integers(0, len(examples), (4, 3, 6))
    optimizer = LaneAdam(together, rates)
    alone = [alone_by_torch(form, start, examples, orders[:, lane], rates[lane]) for lane, start in enumerate(starts)]
    lanes = [0, 1, 2]
    for step, members in enumerate(orders):
        if step == 2:
            lanes = [0, 2]
            together.keep(lanes)
            optimizer.keep(lanes)
        optimizer.step(loss(together, examples, members[lanes]), share=0.5)
    for place, lane in enumerate(lanes):
        for name, array in together.arrays(place).items():
            if "attention.in.bias" not in name:  # of keys: no gradient but rounding, which Adam makes large
                np.testing.assert_allclose(array, alone[lane][name], atol=2e-5, err_msg=name)


def test_gradients_in_bfloat16_are_those_of_float32_but_for_rounding(pack, undropped):
    form, examples = whole_form(pack, "mood"), on_device(pack, "mood")
    starts = [shaken(start_arrays(form, pack.weights, seed=seed), seed) for seed in (1, 2)]
    members, found = np.arange(16).reshape(2, 8), []
    for dtype in (torch.float32, torch.bfloat16):
        lanes = Stack(form, starts, device="cpu", dtype=dtype)
        own = torch.autograd.grad(loss(lanes, examples, members), list(lanes.views.values()))
        found.append(torch.cat([gradient.float().flatten(1) for gradient in own], dim=1))
        assert lanes.views["head.output.weight"].dtype == torch.float32
    for whole, lower in zip(*found, strict=True):
        assert torch.cosine_similarity(whole, lower, dim=0) > 0.99


def loss(model, examples, members):
    return fit.hard_loss(model.answers(examples.batch(members), training=True), examples.targets[torch.tensor(members)])


def alone_by_torch(form, start, examples, orders, rate):
    """The same updates by torch's own AdamW over one model, without buffers."""
    model = made(form, [start])
    leaves = {name: torch.nn.Parameter(view.detach().clone()) for name, view in model.views.items()}
    model.views = leaves
    decayed = [p for p in leaves.values() if p.ndim > 2]
    others = [p for p in leaves.values() if p.ndim <= 2]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=rate / 2, eps=1e-8)
    for members in orders:
        optimizer.zero_grad()
        loss(model, examples, members[None]).backward()
        clipped(list(leaves.values()), 1.0, when="here")
        optimizer.step()
    return {name: parameter[0].detach().numpy() for name, parameter in leaves.items()}


@pytest.mark.parametrize("kind", ["cross_entropy", "squared_error"])
def test_losses_are_those_of_the_package_summed_over_lanes(kind):
    labels = 3 if kind == "cross_entropy" else 1
    outputs, taught = torch.randn(2, 7, labels), torch.randn(2, 7, labels)
    targets = torch.randint(3, (2, 7)) if labels == 3 else torch.rand(2, 7)
    each = [LOSSES[kind](outputs[lane], targets[lane], None) for lane in range(2)]
    assert fit.hard_loss(outputs, targets).item() == pytest.approx(sum(map(float, each)), rel=1e-5)
    whole = [distilled(kind, fit.TEMPERATURE)(outputs[i], targets[i], None, taught[i]) for i in range(2)]
    found = fit.hard_loss(outputs, targets) + fit.soft_loss(outputs, taught, numbers=labels == 1)
    assert found.item() == pytest.approx(sum(map(float, whole)), rel=1e-5)


@pytest.mark.parametrize("metric", scores.SCORES)
def test_scores_are_those_of_the_package(metric):
    random = np.random.default_rng(0)
    for labels in (2, 4):
        targets, outputs = random.integers(0, labels, 40), random.normal(size=(40, labels))
        predictions = outputs.argmax(1)
        if metric == "pearson":
            targets, predictions = targets / labels, outputs[:, 0]
        expected = getattr(metrics, metric)(targets, predictions)
        assert scores.score(metric, targets, outputs) == pytest.approx(expected, abs=1e-12)
    constant = np.zeros((4, 2))
    assert scores.score(metric, np.array([0, 1, 1, 0]), constant) == pytest.approx(
        getattr(metrics, metric)(np.array([0, 1, 1, 0]), np.zeros(4, int))
    )


def test_bfloat16_is_that_of_torch():
    numbers = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    numbers[:2, 0] = 0.0, -1e-30
    expected = torch.tensor(numbers).bfloat16().float().numpy()
    np.testing.assert_array_equal(from_bfloat16(to_bfloat16(numbers)), expected)


def test_a_pack_comes_back_as_it_was(pack, tmp_path, extractor, prepared):
    size = write_pack(tmp_path, pack)
    again = read_pack(tmp_path)
    assert size == sum(file.stat().st_size for file in tmp_path.iterdir()) and again.digest == pack.digest
    for name, one in pack.sets.items():
        for split, rows in one.splits.items():
            for field in ("ids", "lengths", "seconds", "targets"):
                np.testing.assert_array_equal(getattr(again.sets[name].splits[split], field), getattr(rows, field))
    table = extractor.data.arrays["embeddings.word.weight"]
    first = extractor.tokenizer.encode([prepared["mood"].train.examples.inputs[0]])[0]
    own = pack.sets["mood"].splits["train"].ids[0][: len(first.ids)]
    np.testing.assert_array_equal(pack.weights["embeddings.word.weight"][own], table[first.ids])


def test_every_lane_reads_every_row_once_an_epoch_in_its_own_order():
    lengths = np.random.default_rng(0).integers(3, 60, 320)
    batches = np.stack(list(feed.orders(lengths, batch=4, seeds=[(1,), (2,)], epoch=1)))
    assert batches.shape == (80, 2, 4)
    assert all(sorted(batches[:, lane].ravel()) == list(range(320)) for lane in range(2))
    assert not np.array_equal(batches[:, 0], batches[:, 1])
    alone = np.stack(list(feed.orders(lengths, batch=4, seeds=[(2,)], epoch=1)))
    np.testing.assert_array_equal(alone[:, 0], batches[:, 1])
    padded = lengths[batches].max(axis=(1, 2)) / lengths[batches].mean(axis=(1, 2))
    drawn = np.random.default_rng(1).permutation(320).reshape(-1, 4)
    assert padded.mean() < (lengths[drawn].max(1) / lengths[drawn].mean(1)).mean()


def test_the_rate_rises_then_falls_over_half_of_the_epochs_to_a_floor():
    schedule = fit.LaneSchedule(epochs=8, patience=2)
    shares = [schedule.share(step, 10) for step in range(80)]
    assert shares[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert all(a >= b for a, b in zip(shares[4:], shares[5:], strict=False))
    assert shares[22] == pytest.approx(0.5) and min(shares) == shares[40] == shares[-1] == fit.FLOOR


def test_a_mix_loses_each_rows_cross_entropy_over_ln_of_its_own_labels(pack, prepared, extractor, undropped):
    both = pack_of(extractor.data, prepared, prepared)
    rows = mixed.mixed_rows(both, "cpu")
    form = Form(shape=both.shape, tap=0, layers=both.shape.layers, outputs=rows.outputs, embeds=True)
    starts = [shaken(start_arrays(form, both.weights, seed=seed), seed) for seed in (1, 2)]
    lanes, first = made(form, starts), len(both.mix["mood"].splits["train"])
    members = np.array([[0, first + 1, 3], [first, 2, first + 5]])
    outputs, expected = lanes.answers(rows.examples.batch(members)).detach(), 0.0
    for lane, several in enumerate(members):
        for place, row in enumerate(several):
            name, own = ("mood", row) if row < first else ("same", row - first)
            start, labels = (0, both.mix["mood"].labels) if name == "mood" else (both.mix["mood"].labels, 2)
            target = torch.tensor(both.mix[name].splits["train"].targets[own])
            value = torch.nn.functional.cross_entropy(outputs[lane, place, start : start + labels], target)
            expected += float(value) / math.log(labels) / len(several)
    assert mixed.mixed_loss(lanes, rows, members, []).item() == pytest.approx(expected, rel=1e-5)


def test_r3f_adds_the_packages_divergence_in_its_lanes_alone(pack, prepared, extractor, undropped, monkeypatch):
    monkeypatch.setattr(mixed, "NOISE", 0.3)
    both = pack_of(extractor.data, prepared, {"mood": prepared["mood"]})
    rows = mixed.mixed_rows(both, "cpu")
    form = Form(shape=both.shape, tap=0, layers=both.shape.layers, outputs=rows.outputs, embeds=True)
    lanes = made(form, [shaken(start_arrays(form, both.weights, seed=seed), seed) for seed in (1, 2)])
    members = np.arange(8).reshape(2, 4)
    texts, plain = rows.examples.batch(members), mixed.mixed_loss(lanes, rows, members, []).item()
    torch.manual_seed(3)
    found = mixed.mixed_loss(lanes, rows, members, [1]).item() - plain
    torch.manual_seed(3)
    second = feed.LaneTexts(mask=texts.mask[1:], ids=texts.ids[1:], segments=texts.segments[1:])
    noisy = lanes.part([1]).answers(second, noise=0.3)[0]
    expected = symmetric_kl("cross_entropy", lanes.answers(texts)[1], noisy, None, scaled=True)
    assert found == pytest.approx(expected.item(), rel=1e-3) and found > 1e-5


def test_mixes_read_their_first_sets_alone_for_as_many_updates():
    lengths, seeds = np.arange(1, 41), [(1,), (2,)]
    batches = np.stack(list(feed.orders(lengths, batch=4, seeds=seeds, epoch=1, firsts=[10, 40])))
    assert batches.shape == (10, 2, 4)
    assert sorted(batches[:, 0].ravel()) == sorted(4 * list(range(10)))
    assert sorted(batches[:, 1].ravel()) == list(range(40))


def test_functions_of_tasks_are_the_packages(pack, extractor):
    """Each lane's own task's, in every layer, before the second norm; at their start they change nothing."""
    form = replace(whole_form(pack, "mood"), tasks=2, inner=6)
    plain = [shaken(start_arrays(whole_form(pack, "mood"), pack.weights, seed=seed), seed) for seed in (1, 2)]
    texts = on_device(pack, "mood").batch(np.arange(5)[None])
    tasks = replace(texts, tasks=torch.tensor([1, 0]))
    begun = [start_arrays(form, pack.weights, seed=seed, own=start) for seed, start in zip((1, 2), plain, strict=True)]
    without = made(whole_form(pack, "mood"), plain).answers(texts, layers=DEPTH)
    np.testing.assert_allclose(made(form, begun).answers(tasks, layers=DEPTH).detach(), without.detach(), atol=1e-6)
    drawn = [
        {name: shaken({name: array}, lane)[name] * 5 if "pals" in name else array for name, array in start.items()}
        for lane, start in enumerate(begun)
    ]
    found, shape = made(form, drawn).answers(tasks, layers=DEPTH), extractor.data.architecture
    node = Delta(kind="projected_attention", part="task:mood", size=6, heads=pack.shape.heads, tied=True)
    for lane, task in enumerate((1, 0)):
        deltas = Adapters("task:mood", {node: range(DEPTH)}, shape).eval()
        deltas.load_state_dict(functions_of(drawn[lane], task))
        trunk, hidden = reference(extractor.data, drawn[lane]), None
        ids, mask, segments = texts.ids[0].long(), texts.mask[0], texts.segments[0].long()
        hidden = trunk.embed(ids, segments=segments)
        for index, layer in enumerate(trunk.layers):
            hidden = layer(hidden, mask, deltas.at(node, index))
        np.testing.assert_allclose(found[lane][mask].detach(), hidden[mask].detach(), atol=3e-5)
        assert (found[lane] - without[lane])[mask].abs().max() > 1e-2


def functions_of(arrays, task):
    """One task's functions by the package's names."""
    state = {}
    for of in ("weight", "bias"):
        for end in ("encoder", "decoder"):
            state[f"{end}.{of}"] = arrays[f"pals.{end}.{of}"][task]
        for index in range(DEPTH):
            three = np.split(arrays[f"pals.layers.{index}.in.{of}"][task], 3)
            state |= {f"{index}.{n}.{of}": a for n, a in zip(("query", "key", "value"), three, strict=True)}
    return {name: torch.tensor(array, dtype=torch.float32) for name, array in state.items()}


def test_shares_of_tasks_fall_from_their_sizes_to_a_fifth_of_the_power():
    np.testing.assert_allclose(together.annealed([100, 300], 1, 5), [0.25, 0.75])
    weights = np.array([100.0, 300.0]) ** 0.2
    np.testing.assert_allclose(together.annealed([100, 300], 5, 5), weights / weights.sum())


def test_a_task_reads_pass_after_pass_of_its_own_rows(pack):
    train = on_device(pack, "mood")
    taken, of_pass = together.TaskFeed(train, 4, 0), len(train) // 4
    batches = np.stack([taken.next([1, 2]) for _ in range(2 * of_pass)])
    for lane in range(2):
        for part in (batches[:of_pass, lane], batches[of_pass:, lane]):
            assert sorted(part.ravel()) == list(range(len(train)))
    assert not np.array_equal(batches[:of_pass], batches[of_pass:])


def test_a_step_of_one_task_moves_no_other_tasks_outputs_nor_functions(pack, undropped):
    form = replace(whole_form(pack, "mood"), tasks=2, inner=6, outputs=4)
    model = made(form, [shaken(start_arrays(form, pack.weights, seed=seed), seed) for seed in (1, 2)])
    splits = fit.Splits(**dict.fromkeys(("train", "validation", "test"), on_device(pack, "same")))
    one = together.CardTask(task=pack.sets["same"], splits=splits, number=1, first=2)
    own = together.task_loss(model, one, np.arange(8).reshape(2, 4))
    gradients = dict(zip(model.views, torch.autograd.grad(own, list(model.views.values())), strict=True))
    for name in ("pals.encoder.weight", "pals.layers.0.in.weight", "pals.decoder.bias"):
        assert not gradients[name][:, 0].any() and gradients[name][:, 1].any(), name
    assert not gradients["head.output.weight"][:, :2].any() and gradients["head.output.weight"][:, 2:].any()
