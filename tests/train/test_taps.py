"""States kept at a tap: the live trunk's, bit for bit, from one pass for all taps; and training that reads them."""

import msgspec
import numpy as np
import pytest
import torch

from polyhead import plan
from polyhead.deep.branch.run import Branches
from polyhead.deep.examples import TextExamples, module_outputs
from polyhead.deep.features import tap_examples, wanted_taps
from polyhead.deep.loop.loss import LOSSES, UNLABELLED
from polyhead.deep.model import MultiTaskModel
from polyhead.deep.nn.trunk import Trunk
from polyhead.deep.sharing.make import arrays_of_part
from polyhead.encoder.data import arrays_digest
from polyhead.project.strategies import Branch
from polyhead.project.strategies.branch import branch_path, tap_path
from polyhead.tasks.kinds import kind_of
from polyhead.testing import tiny_tasks, tiny_trunk
from polyhead.text.batch import batches
from polyhead.train.data.extract import TOKEN_BUDGET, Extractor
from polyhead.train.data.prepare import single_inputs
from polyhead.train.data.source import FeatureRequest
from support import tiny_project
from support.tiny_branches import (
    DEPTH,
    STRATEGY,
    branches_of,
    bytes_of,
    extractor_of,
    home_in,
    prepared_of,
    seeded,
    weights_of,
)

LEAST_HALF = 2.0**-14  # the smallest normal float16
HALF_STEP = 2.0**-24  # between two neighbours below it
TEXTS = [(row["text"],) for row in tiny_project.messages(40, seed=3)]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return home_in(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def kept(home, tmp_path_factory):
    """An extractor whose stores hold every tap of every tiny task."""
    extractor = extractor_of(home, tmp_path_factory.mktemp("kept"))
    for name in tiny_project.ENTRIES:
        branches_of(home, extractor, name, depths=range(1, DEPTH + 1))
    return extractor


def path_at(branches, tap):
    return branches.path(DEPTH - tap)


def small_trunk():
    """A trunk whose states hold normal float16 numbers, subnormal ones and exact zeros in each token."""
    data = tiny_trunk(layers=DEPTH)
    arrays = {name: np.array(a) for name, a in data.arrays.items()}
    for name in ["embeddings.norm", *(f"layers.{i}.feed_forward.norm" for i in range(DEPTH))]:
        for place, size in ((0, 1e-5), (1, 3e-7), (2, 0.0)):
            arrays[f"{name}.weight"][place], arrays[f"{name}.bias"][place] = size, 0.0
    return msgspec.structs.replace(data, arrays=arrays)


def live_states(data, extractor, precision):
    """Every state of every text by the bare trunk, in the batches in which an extraction reads them."""
    live = Trunk.from_data(data, dtype=getattr(torch, precision))
    encoded = extractor.tokenizer.encode(TEXTS)
    found = [None] * len(TEXTS)
    for batch in batches(encoded, token_budget=TOKEN_BUDGET, pad_id=extractor.tokenizer.pad_id):
        with torch.inference_mode():
            states = live(
                torch.from_numpy(batch.ids),
                torch.from_numpy(batch.mask),
                segments=torch.from_numpy(batch.segments).long(),
            )
        for row, member in enumerate(batch.members):
            length = len(encoded[member].ids)
            found[member] = np.stack([h[row, :length].float().numpy() for h in states.hidden])
    return found  # of (layers + 1, tokens, width)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_kept_states_are_the_live_ones_bit_for_bit_at_every_tap_from_one_pass(tmp_path, precision):
    """float16 below 2^-14 has steps of 2^-24: only there may a bfloat16 state be rounded, by half a step."""
    data = small_trunk()
    extractor = Extractor(data, folder=tmp_path, precision=precision)
    wanted = [
        FeatureRequest(path=tap_path(plain_branch(data, tap), precision=precision), inputs=TEXTS)
        for tap in range(DEPTH)
    ]
    done = extractor.fill(wanted)
    assert done.passes == len(TEXTS) == len(set(TEXTS)) and done.reused == 0
    live = live_states(data, extractor, precision)
    normal = subnormal = rounded = 0
    for tap, request in enumerate(wanted):
        features = extractor.store(request.path).features(request.keys())
        for member in range(len(TEXTS)):
            found = features.take([member]).values[0, :, 0]
            expected = live[member][tap]
            exact = (np.abs(expected) >= LEAST_HALF) | (expected == 0) | (precision == "float32")
            assert found.shape == expected.shape and found.dtype == np.float32
            assert np.array_equal(found[exact], expected[exact])
            assert np.abs(found - expected).max() <= HALF_STEP / 2
            normal, subnormal = normal + exact.sum(), subnormal + (~exact).sum()
            rounded += (found != expected).sum()
    assert normal > 0 and (subnormal > 0) == (rounded > 0) == (precision == "bfloat16")


def plain_branch(data, tap):
    task, shape = tiny_tasks()[0], data.architecture
    return branch_path(task, Branch(), trunk=data.digest, shape=shape, tap=tap, layers=DEPTH - tap)


@pytest.mark.parametrize("name", tiny_project.ENTRIES)
def test_every_distinct_text_is_read_once_for_all_taps(home, tmp_path, name):
    extractor = extractor_of(home, tmp_path)
    prepared = prepared_of(home, name)
    branches = branches_of(home, extractor, name, depths=())
    wanted = [w for tap in range(DEPTH) for w in wanted_taps(prepared, path_at(branches, tap), extractor)]
    texts = {
        text
        for split in prepared.splits
        for inputs in single_inputs(split.examples.inputs, prepared.task)
        for text in inputs
    }
    assert extractor.fill(wanted).passes == len(texts)
    again = extractor.fill(wanted)
    assert again.passes == 0 and again.reused == sum(len(w.inputs) for w in wanted)
    assert len([folder for folder in extractor.folder.iterdir() if (folder / "store.json").exists()]) == DEPTH


def test_tasks_over_the_same_texts_share_what_is_kept(home, tmp_path):
    extractor = extractor_of(home, tmp_path)
    branches_of(home, extractor, "mood")
    prepared = prepared_of(home, "names")
    path = branches_of(home, extractor, "names", depths=()).path(2)
    assert extractor.fill(wanted_taps(prepared, path, extractor)).passes == 0


def model_outputs(extractor, prepared, path, part):
    """The task's outputs for its training texts by the plan on the live trunk, unread words NaN."""
    examples = prepared.train.examples
    sides = [
        TextExamples(extractor.tokenizer, inputs, examples.targets, words=examples.words)
        for inputs in single_inputs(examples.inputs, prepared.task)
    ]
    name = prepared.task.name
    model, whole = MultiTaskModel(extractor.backend._trunk, {name: part}).eval(), plan.merge({name: path})
    members = np.arange(len(examples.targets))
    with torch.inference_mode():
        taken = [side.batch(members) for side in sides]
        stored = []
        for one in taken:  # `batch` sorts its rows by length
            value = model.stored(whole, one.arguments[0])[name]
            back = np.argsort(one.members)
            stored.append((value.values[back], value.mask[back]))
        outputs = part(*stored[0], *stored[1:]).numpy()
    if not kind_of(prepared.task).per_word:
        return list(outputs)
    found = []
    for row, target in enumerate(examples.targets):
        unread = sides[0].unread(row)
        found.append(np.where(unread[:, None], np.nan, outputs[row, : len(target)]))
    return found


@pytest.mark.parametrize("tap", range(DEPTH))
@pytest.mark.parametrize("name", tiny_project.ENTRIES)
def test_a_branch_on_kept_states_answers_as_the_model_on_the_live_text(home, kept, name, tap):
    strategy = Branch(positions="attention" if tap == 1 else "first", hidden=8)
    branches = branches_of(home, kept, name, strategy=strategy, depths=())
    path = path_at(branches, tap)
    module, _ = branches.loop(path)
    module.eval()
    found = module_outputs(
        module, tap_examples(branches.prepared, branches.prepared.train, path, kept, precision="float32")
    )
    expected = model_outputs(kept, branches.prepared, path, module.part)
    assert len(found) == len(expected) == 32
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5)


def test_a_bfloat16_branch_on_kept_states_answers_as_the_model_on_the_live_text_bit_for_bit(home, tmp_path):
    """In one batch of the same shape: the states fit float16, and the served layers are in bfloat16."""
    extractor = extractor_of(home, tmp_path, precision="bfloat16")
    branches = branches_of(home, extractor, "mood", depths=(2,))
    path, prepared = branches.path(2), branches.prepared
    module, _ = branches.loop(path)
    served = module.served(torch.bfloat16)
    examples = tap_examples(prepared, prepared.train, path, extractor, precision="bfloat16")
    live = TextExamples(extractor.tokenizer, prepared.train.examples.inputs, prepared.train.examples.targets)
    model = MultiTaskModel(extractor.backend._trunk, {"mood": served.part})
    with torch.inference_mode():
        texts = live.batch(np.arange(32))
        (kept_batch,) = examples.batch(texts.members).arguments
        states = extractor.backend._trunk.start(
            texts.arguments[0].ids, texts.arguments[0].mask, segments=texts.arguments[0].segments
        )
        at_tap = extractor.backend._trunk.go_on(states, stop=1).last.float() * texts.arguments[0].mask[..., None]
        assert torch.equal(kept_batch.hidden, at_tap)
        assert torch.equal(served(kept_batch), model(plan.merge({"mood": path}), texts.arguments[0])["mood"])


@pytest.mark.parametrize("name", ["mood", "names", "alike"])
def test_gradients_on_kept_states_are_those_on_the_live_text(home, kept, name):
    branches = branches_of(home, kept, name, depths=())
    path, prepared = branches.path(2), branches.prepared
    loss, found = LOSSES[kind_of(prepared.task).loss], []
    examples = prepared.train.examples
    for live in (False, True):
        module, _ = branches.loop(path)
        module.eval()
        if live:
            sides = single_inputs(examples.inputs, prepared.task)
            model = MultiTaskModel(kept.backend._trunk, {name: module.part})
            values = []
            for inputs in sides:
                one = TextExamples(kept.tokenizer, inputs, examples.targets, words=examples.words)
                batch = one.batch(np.arange(8))
                value = model.stored(plan.merge({name: path}), batch.arguments[0])[name]
                back = np.argsort(batch.members)
                values.append((value.values[back], value.mask[back]))
            outputs = module.part(*values[0], *values[1:])
            targets = batch.targets[back]
        else:
            batch = tap_examples(prepared, prepared.train, path, kept, precision="float32").batch(np.arange(8))
            outputs, targets = module(*batch.arguments), batch.targets
        loss(outputs, targets, None).backward()
        found.append({n: p.grad for n, p in module.part.named_parameters() if p.grad is not None})
    assert set(found[0]) == set(found[1]) and len(found[0]) > 30
    for parameter, gradient in found[0].items():
        torch.testing.assert_close(gradient, found[1][parameter], atol=1e-5, rtol=1e-4, msg=parameter)


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "class weights"])
@pytest.mark.parametrize("name", tiny_project.ENTRIES)
def test_the_first_loss_of_a_branch_is_its_tasks_on_its_outputs(home, kept, name, weighted):
    still = seeded(learning_rate=1e-30, epochs=1, batch=32, dropout=0.0, class_weights=weighted)
    strategy = Branch(layers=2, hidden=8, dropout=0.0)
    branches = branches_of(home, kept, name, strategy=strategy, training=still, depths=())
    path, prepared = branches.path(2), branches.prepared
    module, loop = branches.loop(path)
    batch = tap_examples(prepared, prepared.train, path, kept, precision="float32").batch(np.arange(32))
    kind, weights = kind_of(prepared.task), None
    balanced = kind.class_weights(prepared.task, prepared.train.examples.targets)
    if weighted and balanced is not None:
        assert len(set(balanced.tolist())) > 1
        weights = torch.from_numpy(balanced)
    with torch.inference_mode():
        expected = LOSSES[kind.loss](module.eval()(*batch.arguments), batch.targets, weights)
    loop.advance(1)
    assert loop.finish().history[0]["loss"] == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize("name", ["mood", "names", "alike"])
def test_training_a_branch_moves_its_own_arrays_and_no_bit_of_the_trunk(home, kept, name):
    branches = branches_of(home, kept, name, depths=())
    before, data = arrays_digest(kept.backend._trunk.to_arrays()), arrays_digest(kept.data.arrays)
    start, _ = branches.loop(branches.path(2))
    start = arrays_of_part(start.part)
    grown = branches.teacher(2)
    assert arrays_digest(kept.backend._trunk.to_arrays()) == before and arrays_digest(kept.data.arrays) == data
    assert not any(p.requires_grad or p.grad is not None for p in kept.backend._trunk.parameters())
    own = {n for n, _ in grown.module.part.named_parameters()}
    assert own == set(start) == set(grown.arrays)
    # A key's bias moves by nothing but rounding: it cancels in the softmax.
    still = {n for n in own if np.array_equal(grown.arrays[n], start[n])}
    assert all(n.endswith("key.bias") for n in still), still
    assert not any(n.split(".")[1] == "0" for n in own if n.startswith("layers."))


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_branch_trains_in_the_trunks_precision_and_keeps_float32_weights(home, tmp_path, precision):
    extractor = extractor_of(home, tmp_path, precision=precision)
    branches = branches_of(home, extractor, "mood", training=seeded(precision=precision, epochs=1), depths=(1,))
    module, loop = branches.loop(branches.path(1))
    kinds, dtype = set(), getattr(torch, precision)
    dense = module.part.layers["2"].feed_forward.inner
    dense.register_forward_hook(lambda m, given, out: kinds.add((m.training, out.dtype, m.weight.dtype)))
    loop.advance(1)
    # What is scored on validation is a copy as it is served: its very weights are in that precision.
    assert kinds == {(True, dtype, torch.float32), (False, dtype, dtype)}
    assert {p.dtype for p in module.parameters()} == {torch.float32}
    served = module.served(getattr(torch, precision))
    assert served.part is not module.part and not served.training
    assert {p.dtype for p in served.part.layers.parameters()} == {getattr(torch, precision)}


def test_a_served_copy_answers_as_the_branch_and_leaves_it_alone(home, kept):
    branches = branches_of(home, kept, "mood", depths=())
    path, prepared = branches.path(2), branches.prepared
    module, loop = branches.loop(path)
    loop.advance(1)
    before, mode = weights_of(module), module.training
    examples = tap_examples(prepared, prepared.validation, path, kept, precision="float32")
    served = module_outputs(module.served(torch.float32), examples)
    assert weights_of(module) == before and module.training == mode
    for one, other in zip(served, module_outputs(module.eval(), examples), strict=True):
        assert np.array_equal(one, other)


def test_a_restored_branch_answers_as_it_did_when_it_was_trained(home, kept):
    branches = branches_of(home, kept, "names", depths=())
    grown = branches.teacher(1)
    again = branches.restored(grown.path, grown.arrays)
    assert bytes_of(again.arrays) == bytes_of(grown.arrays) and not again.module.training
    for split in branches.prepared.splits:
        for kept, found in zip(branches.outputs(grown, split), branches.outputs(again, split), strict=True):
            np.testing.assert_array_equal(kept, found)


def test_the_scores_of_a_branch_are_those_of_its_outputs_on_the_whole_split(home, kept):
    branches = branches_of(home, kept, "mood", depths=())
    grown = branches.teacher(2)
    for split in branches.prepared.splits:
        outputs = branches.outputs(grown, split)
        right = [int(o.argmax()) == int(t) for o, t in zip(outputs, split.examples.targets, strict=True)]
        scores = split.examples.scores(branches.prepared.task, outputs)
        assert scores["accuracy"] == pytest.approx(np.mean(right))
    best = max(row["score"] for row in grown.fitted.history)
    validation = branches.prepared.validation
    scores = validation.examples.scores(branches.prepared.task, branches.outputs(grown, validation))
    assert scores["accuracy"] == grown.fitted.score == best


# examples


def test_each_example_keeps_its_own_states_targets_and_teacher_in_any_order(home, kept):
    branches = branches_of(home, kept, "mood", depths=())
    path, prepared = branches.path(2), branches.prepared
    soft = [np.array([i, -i], np.float32) for i in range(32)]
    examples = tap_examples(prepared, prepared.train, path, kept, precision="float32", soft=soft)
    whole = [examples.batch(np.array([i])) for i in range(32)]
    seen = []
    for batch in map(examples.batch, examples.drawn(5, np.random.default_rng(0))):
        (taken,) = batch.arguments
        for row, member in enumerate(batch.members):
            (alone,) = whole[member].arguments
            length = alone.hidden.shape[1]
            assert torch.equal(taken.hidden[row, :length], alone.hidden[0])
            assert taken.mask[row].tolist() == [True] * length + [False] * (len(taken.mask[row]) - length)
            assert batch.targets[row] == prepared.train.examples.targets[member]
            assert batch.soft[row].tolist() == [member, -member]
            seen.append(int(member))
    assert sorted(seen) == list(range(32))
    assert all(batch.soft is None for batch in tap_examples(
        prepared, prepared.train, path, kept, precision="float32"
    ).in_order(9))  # fmt: skip


def test_a_teacher_answers_each_batch_anew_from_the_very_states_of_the_batch(home, kept):
    branches = branches_of(home, kept, "alike", depths=())
    path, prepared = branches.path(1), branches.prepared
    asked = []

    def teacher(*arguments):
        asked.append(arguments)
        return torch.full((len(arguments[0].hidden), 1), float(len(asked)))

    examples = tap_examples(prepared, prepared.train, path, kept, precision="float32", teacher=teacher)
    found = [batch for _ in range(2) for batch in examples.in_order(16)]
    assert len(asked) == 4 and [float(batch.soft[0]) for batch in found] == [1.0, 2.0, 3.0, 4.0]
    assert all(len(batch.arguments) == 2 for batch in found)  # both texts of a pair
    for one, batch in zip(asked, found, strict=True):
        assert all(a is b for a, b in zip(one, batch.arguments, strict=True))


def test_words_that_no_token_stands_for_teach_nothing_and_have_no_answer(home, tmp_path):
    """Texts cut at ten tokens: the words beyond are neither trained on nor answered."""
    data = msgspec.structs.replace(
        tiny_trunk(layers=DEPTH), settings=msgspec.structs.replace(tiny_trunk().settings, max_tokens=8)
    )
    extractor = Extractor(data, folder=tmp_path, precision="float32")
    prepared = prepared_of(home, "names")
    branches = Branches(prepared, STRATEGY, extractor, precision="float32")
    path = branches.path(1)
    done = extractor.fill(wanted_taps(prepared, path, extractor))
    assert done.cut > 0
    teacher = [np.where(np.arange(len(t))[:, None] < 6, 1.0, np.nan) * np.ones((1, 3)) for t in
               prepared.train.examples.targets]  # fmt: skip
    examples = tap_examples(prepared, prepared.train, path, extractor, precision="float32", soft=teacher)
    batch = examples.batch(np.arange(32))
    cut = 0
    for row, target in enumerate(prepared.train.examples.targets):
        unread = examples.unread(row)
        assert unread.tolist() == [place >= 6 for place in range(len(target))]
        kept_targets = batch.targets[row].tolist()
        assert kept_targets[: min(6, len(target))] == target[:6].tolist()
        assert all(value == UNLABELLED for value in kept_targets[6:])
        assert batch.soft[row, 6:].abs().sum() == 0 and torch.isfinite(batch.soft).all()
        cut += unread.sum()
    assert cut > 0
    module, _ = branches.loop(path)
    for row, outputs in enumerate(module_outputs(module.eval(), examples)):
        assert np.isnan(outputs).any(axis=1).tolist() == examples.unread(row).tolist()
