"""Layers in 8 bits: static scales from texts, kept beside a bundle, refused where a task changes too much."""

import shutil
from functools import partial

import numpy as np
import pytest

pytest.importorskip("polyhead.engine.backends.openvino", reason="the openvino extra is not installed")

from polyhead import plan
from polyhead.bundle.manifest import TaskRecord
from polyhead.bundle.read import Bundle
from polyhead.engine.backends import open_runtime
from polyhead.engine.backends.graph import GraphBackend
from polyhead.engine.compile.heads import folded
from polyhead.engine.compile.ops import slots_product
from polyhead.engine.probes import numerics_of
from polyhead.engine.scale_files import CACHE, Int8Change, read_scales, write_scales
from polyhead.engine.scales import (
    SLOT,
    ObservedRange,
    ObservingRuntime,
    Scale,
    Scales,
    scales_of,
    slot_digest,
    weight_digest,
)
from polyhead.engine.session import Session, attach_vectors
from polyhead.errors import BackendError, EmptyData
from polyhead.evaluate import int8 as calibrate
from polyhead.project.strategies import Branch, Pooled
from polyhead.store.jobs.columns import RowInput
from polyhead.tasks.agreement import Agreement
from polyhead.tasks.task import Task
from polyhead.testing import tiny_batch, tiny_loaded, tiny_part, tiny_path, tiny_trunk
from polyhead.testing.strategies import add_tiny, tiny_bundle, tiny_paths
from support.precisions import needs_eight_bit_slots

RUNTIMES = partial(open_runtime, "openvino")
TEXTS = [
    f"{first} {what} {how}"
    for first in ("my", "the", "please", "where is my")
    for what in ("lamp", "bill", "phone")
    for how in ("is broken", "was late today", "is good , anna", "and the kettle")
]
ROWS = [RowInput(input=(text,)) for text in TEXTS]


def silent(text):
    """Shows no progress."""


def drawn(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def seen_of(x, *weights):
    seen = ObservedRange(weights)
    seen.add(x, rows=len(x))
    return seen


@pytest.fixture(scope="module")
def trunk():
    return tiny_trunk()


@pytest.fixture(scope="module")
def made(trunk, tmp_path_factory):
    strategy = Pooled(layers="mean", of=2, positions="attention", heads=2, hidden=8)
    return tiny_bundle(tmp_path_factory.mktemp("quantize") / "b", trunk, tiny_paths(strategy, trunk))


@pytest.fixture(scope="module")
def scales(made):
    return calibrate.calibrated_scales(made, ROWS[:24], RUNTIMES, show=silent)


@pytest.fixture
def kept(made, scales, tmp_path):
    """A copy of the bundle with its scales beside it."""
    shutil.copytree(made.root, tmp_path / "b")
    bundle = Bundle.open(tmp_path / "b")
    write_scales(bundle, scales, texts=24, backend="openvino", changes=dict.fromkeys(bundle.lines, change()))
    return bundle


# -- one product -----------------------------------------------------------------------------------------------------


def test_scale_keeps_values_to_half_a_step_and_zero_exactly():
    x, weight = drawn(64, 8), drawn(5, 8, seed=1)
    scale = seen_of(x, weight).scale()
    assert np.abs(scale.kept(x) - x / scale.smooth).max() <= 0.51 * scale.step
    assert not scale.kept(np.zeros((1, 8), np.float32)).any()
    for bits, reach in ((8, 127), (7, 64)):
        eight = scale.weights(weight, bits=bits)
        assert eight.whole.dtype == np.int8 and eight.steps.shape == (5, 1)
        assert (np.abs(eight.whole).max(axis=1) == reach).all()
        assert np.all(np.abs(eight.whole * eight.steps - weight * scale.smooth) <= 0.51 * eight.steps)


def test_scale_of_a_value_with_an_outlying_channel_beats_plain_minimum_and_maximum():
    """Without smoothing, one channel a hundred times as large leaves 8 bits nothing for the others."""
    x, weight = drawn(256, 16), drawn(32, 16, seed=1)
    x[:, 3] *= 100
    scale = seen_of(x, weight).scale()
    plain = Scale(smooth=np.ones(16, np.float32), step=float(np.ptp(x)) / 255, zero=round(-x.min() / np.ptp(x) * 255))

    def error(one):
        return np.abs(one.product(x, weight, bits=8) - x @ weight.T).mean()

    assert error(scale) < error(plain) / 3


def test_products_that_read_one_value_share_a_scale_wherever_they_were_seen():
    x, first, second, third = drawn(9, 4), drawn(3, 4, seed=1), drawn(3, 4, seed=2), drawn(3, 4, seed=3)
    found = scales_of(
        [seen_of(x, first), seen_of(2 * x, first, second), seen_of(x, third), ObservedRange([drawn(2, 4)])]
    )
    assert found.of(first) is found.of(second) is not found.of(third)
    assert found.of(drawn(2, 4)) is None  # it never ran
    wide = np.abs(2 * x / found.of(first).smooth).max()
    assert max(-found.of(first).low, found.of(first).high) == pytest.approx(wide, rel=0.01)


def test_scales_with_channels_and_weights_that_are_always_zero_are_finite():
    x, weight = drawn(9, 4), drawn(3, 4, seed=1)
    x[:, 1], weight[:, 2], weight[0] = 0, 0, 0
    scale = seen_of(x, weight).scale()
    np.testing.assert_allclose(scale.product(x, weight, bits=8), x @ weight.T, atol=0.05)


# -- graphs ----------------------------------------------------------------------------------------------------------


def product(weight):
    """A graph of one product (rows, tokens, inputs)."""

    def build(ops):
        x = ops.input("x", "float", (-1, -1, weight.shape[-1]))
        return {"out": ops.matmul(x, ops.constant(weight), transposed=True)}

    return build


def test_watched_graph_gives_what_it_gives_unwatched_and_sees_what_products_read():
    weight, other = drawn(3, 4), drawn(2, 4, seed=1)

    def build(ops):
        x = ops.input("x", "float", (-1, -1, 4))
        out = ops.matmul(x, ops.constant(weight), transposed=True)
        return {"out": out, "same": x, "second": ops.matmul(x, ops.constant(other), transposed=True)}

    runtime = RUNTIMES(precision="float32")
    watching = ObservingRuntime(runtime, rows=5)
    graph, x = watching.compile(build, label="watched", layers=True), drawn(1, 5, 4, seed=2)
    found = graph({"x": x})
    assert set(found) == {"out", "same", "second"}
    np.testing.assert_allclose(found["out"], x @ weight.T, atol=1e-5)
    expected = seen_of(x[0], weight, other).scale()
    scale = watching.scales().of(other)
    np.testing.assert_allclose(scale.smooth, expected.smooth)
    assert (scale.step, scale.zero) == (pytest.approx(expected.step), expected.zero)


def test_graphs_of_poolers_and_heads_are_not_watched():
    watching = ObservingRuntime(RUNTIMES(precision="float32"), rows=5)
    watching.compile(product(drawn(3, 4)), label="head", layers=False)({"x": drawn(1, 5, 4)})
    assert not watching.scales().known


@pytest.mark.parametrize("groups", [1, 3])
def test_int8_graph_computes_the_formula(groups):
    """`kept(x) (W s)^T` by numpy, with coarse steps; groups with weights of their own have scales of their own."""
    weights, x = drawn(groups, 32, 16), drawn(groups, 40, 16, seed=1)
    smooth = np.exp(drawn(groups, 16, seed=2))
    scales = [Scale(smooth=smooth[i], step=0.3 + 0.2 * i, zero=128 - i) for i in range(groups)]
    found = Scales({weight_digest(weight): one for weight, one in zip(weights, scales, strict=True)})
    runtime = RUNTIMES(precision="int8", scales=found)
    graph = runtime.compile(product(weights if groups > 1 else weights[0]), label="p", layers=True)
    out = graph({"x": x})["out"]
    for group, (weight, scale) in enumerate(zip(weights, scales, strict=True)):
        formula, exact = scale.product(x[group], weight, bits=runtime.weight_bits), x[group] @ weight.T
        loss = np.abs(formula - exact).mean()  # of 8 bits: the graph has the same one
        assert np.abs(out[group] - formula).mean() < 0.1 * loss


def test_products_without_a_scale_and_those_of_heads_by_rows_stay_in_floating_point():
    weight, x = drawn(32, 16), drawn(1, 40, 16, seed=1)
    runtime = RUNTIMES(precision="int8", scales=scales_of([seen_of(x[0], weight)]))
    plain = RUNTIMES()  # what int8 leaves alone
    for one, layers in ((drawn(32, 16, seed=5), True), (weight, False)):
        graphs = (r.compile(product(one), label="p", layers=layers) for r in (runtime, plain))
        first, second = (np.array(graph({"x": x})["out"]) for graph in graphs)
        # Weights of heads are rounded to bfloat16 by another hand, where the processor has it.
        np.testing.assert_allclose(first, second, rtol=0, atol=0.0 if layers else 0.02 * np.abs(second).max())


@pytest.mark.parametrize("apart", [0, 1, 2], ids=["together", "one by one", "two by two"])
def test_products_of_slots_are_those_of_the_formula_whichever_of_them_have_a_scale(apart):
    matrices, x = [drawn(16, 8, seed=slot) for slot in range(6)], drawn(6, 10, 16, seed=9)
    seen = [ObservedRange([matrix.T], digest=slot_digest) for matrix in matrices[:4]]
    for slot, own in enumerate(seen):
        own.add(x[slot], rows=10)
    known = scales_of(seen)
    runtime = RUNTIMES(precision="int8", scales=known)

    def build(ops):
        return {"out": slots_product(ops, ops.input("x", "float", (-1, -1, 16)), matrices, apart=apart)}

    out = np.array(runtime.compile(build, label="s", layers=False)({"x": x})["out"])
    for slot, matrix in enumerate(matrices):
        scale = known.known.get(slot_digest(matrix.T))
        assert (scale is not None) == (slot < 4)
        exact = x[slot] @ matrix
        wanted = exact if scale is None else scale.even.product(x[slot], matrix.T, bits=runtime.weight_bits)
        np.testing.assert_allclose(out[slot], wanted, atol=0.02 * np.abs(exact).max())  # bfloat16, where there is


def test_an_even_scale_holds_all_that_the_scale_holds():
    x = drawn(64, 8) + 3 * np.arange(8, dtype=np.float32)
    scale = seen_of(x, drawn(5, 8, seed=1)).scale()
    even = scale.even
    assert (even.step, even.zero) == (1.0, 128)
    assert (
        np.abs(even.kept(x) * even.smooth - x).max()
        <= 1.01 * (np.abs(x / scale.smooth).max() / 127 * scale.smooth).max()
    )


# -- bundles ---------------------------------------------------------------------------------------------------------


@needs_eight_bit_slots
def test_every_product_of_the_layers_and_every_map_of_poolers_and_heads_with_a_hidden_layer_has_a_scale(
    made, trunk, scales
):
    wanted = {
        weight_digest(trunk.arrays[f"layers.{layer}.{name}.weight"])
        for layer in range(trunk.architecture.layers)
        for name in (
            *(f"attention.{w}" for w in ("query", "key", "value", "output")),
            "feed_forward.inner",
            "feed_forward.outer",
        )  # fmt: skip
    }
    assert set(scales.of_layers.known) == wanted
    slots = set()
    for name, record in made.tasks.items():
        owners = {record.owner: made.part(name), **made.others(name)}
        head, pool = record.path.head, record.path.pool
        parts = (head.part, head.hidden_part or head.part, pool.part or head.part)
        slot = folded(record.path, *(owners[part] for part in parts), width=trunk.architecture.width)
        maps = [*([] if slot.values is None else slot.values), *([] if slot.second is None else [slot.first])]
        slots |= {slot_digest(matrix.T) for matrix in maps}
    assert len(slots) > 3
    assert {digest for digest in scales.known if digest not in wanted} <= slots  # texts read no pairs
    assert scales.has_slots
    assert not scales.of_layers.has_slots


def test_scales_are_static(made, scales):
    """A text's answer in 8 bits is the same whatever stands beside it."""
    session = Session(made, backend=RUNTIMES(precision="int8", scales=scales), deterministic=True)
    mates = [(TEXTS[0],), ("not " * 30,), ("refund 7 ! please",)]
    alone, together = session.outputs("mood", mates[:1])[0], session.outputs("mood", mates)[0]
    assert alone.tobytes() == together.tobytes()


def test_int8_outputs_are_near_those_of_float32_and_not_equal_to_them(made, scales):
    texts = [(text,) for text in TEXTS[24:]]
    exact, coarse = (
        np.concatenate(Session(made, backend=runtime).outputs("topics", texts))
        for runtime in (RUNTIMES(precision="float32"), RUNTIMES(precision="int8", scales=scales))
    )
    assert 0 < np.abs(exact - coarse).max() < 0.2 * np.ptp(exact)


def test_change_is_measured_on_texts_that_fit(made, scales):
    changes = calibrate.measured(made, ROWS[24:], RUNTIMES, scales, labelled=None, show=silent)
    assert set(changes) == set(made.tasks)
    assert changes["mood"].agreement.rows == len(ROWS) - 24
    assert changes["same"].agreement is None  # no text here is a pair
    assert all(c.agreement.share > 0.8 for c in changes.values() if c.is_measured), changes


def test_scales_of_branches_are_found_too(trunk, tmp_path):
    paths = tiny_paths(Branch(layers=1, tap=1), trunk)
    bundle = tiny_bundle(tmp_path / "b", trunk, {name: paths[name] for name in ("mood", "topics")})
    found = calibrate.calibrated_scales(bundle, ROWS[:4], RUNTIMES, show=silent)
    for name in ("mood", "topics"):
        arrays = bundle.part(name)
        inner = [array for key, array in arrays.items() if key.endswith("feed_forward.inner.weight")]
        assert inner and all(found.of(array) is not None for array in inner)
    changes = calibrate.measured(bundle, ROWS[4:12], RUNTIMES, found, labelled=None, show=silent)
    assert all(change.agreement.share > 0.7 for change in changes.values())


def test_texts_are_halved_in_turns():
    first, second = calibrate.halves(ROWS, 4)
    assert len(first) == len(second) == 4 and not {id(row) for row in first} & {id(row) for row in second}
    assert first[0] is ROWS[0] and second[-1] is ROWS[-1]
    with pytest.raises(EmptyData, match="Got: 1 .*Do: .*--texts"):
        calibrate.halves(ROWS[:1], 4)


@pytest.mark.parametrize("most", [3, 5, 40])
def test_each_form_has_texts_in_both_halves(most):
    """Also where texts and pairs stand in turns, so that one half of all lines would be pairs alone."""
    pairs = [RowInput(input=("my lamp", f"the lamp {n}")) for n in range(12)]
    rows = [row for both in zip(ROWS[:12], pairs, strict=True) for row in both]
    for half in (halves := calibrate.halves(rows, most)):
        sizes = [sum(len(row.input) == size for row in half) for size in (1, 2)]
        assert min(sizes) >= 1 and abs(sizes[0] - sizes[1]) <= 1
    assert sum(map(len, halves)) == pytest.approx(min(2 * most, len(rows)), abs=2)


def test_texts_that_no_task_reads_are_refused(trunk, tmp_path):
    paths = tiny_paths(Pooled(positions="first", hidden=4), trunk)
    bundle = tiny_bundle(tmp_path / "b", trunk, {"same": paths["same"]})
    with pytest.raises(EmptyData, match="none of the texts"):
        calibrate.calibrated_scales(bundle, ROWS[:2], RUNTIMES, show=silent)


def change(**facts):
    return Int8Change(agreement=Agreement(rows=10, share=facts.pop("share", 1.0)), **facts)


@pytest.mark.parametrize(
    ("one", "past"),
    [
        (change(metric="f1", before=0.9, after=0.895), False),
        (change(metric="f1", before=0.9, after=0.885), True),
        (change(metric="f1", before=0.9, after=0.95, share=0.5), False),  # the metric says it better
        (change(metric="f1", before=0.9, after=float("nan")), True),
        (change(share=0.96), False),
        (change(share=0.94), True),
        (Int8Change(), True),
    ],
    ids=["small-loss", "large-loss", "gain", "no-number", "agrees", "disagrees", "unmeasured"],
)
def test_change_is_past_its_limits(one, past):
    assert calibrate.is_past(one, calibrate.Limits()) is past
    assert calibrate.is_past(one, calibrate.Limits(unmeasured=True)) is (past and one.is_measured)
    if past:
        with pytest.raises(BackendError, match="mood"):
            calibrate.check({"mood": one, "other": change()}, calibrate.Limits())


# -- files -----------------------------------------------------------------------------------------------------------


def test_scales_come_back_as_they_were_kept(kept, scales):
    record, found = read_scales(kept)
    assert record.texts == 24 and set(record.measurements[0].tasks) == set(kept.tasks)
    assert found.known.keys() == scales.known.keys()
    for digest, scale in scales.known.items():
        other = found.known[digest]
        np.testing.assert_array_equal(other.smooth, scale.smooth)
        assert (np.float32(other.step), other.zero) == (np.float32(scale.step), scale.zero)


def test_bundle_does_not_see_its_cache(kept, made):
    assert kept.digest == made.digest and dict(kept.lines) == dict(made.lines)
    Bundle.open(kept.root).verify()
    shutil.rmtree(kept.root / CACHE)
    Bundle.open(kept.root).verify()


def test_scales_that_are_kept_again_replace_the_older_ones(kept, scales):
    digest, one = next(iter(scales.known.items()))
    write_scales(kept, Scales({digest: one}), texts=1, backend="openvino", changes={})
    assert set(read_scales(kept)[1].known) == {digest}
    assert len(list((kept.root / CACHE).iterdir())) == 2


def test_session_says_by_which_scales_it_computes_whatever_lies_beside_the_bundle_by_now(kept, scales):
    """They were looked up when they were asked for: scales that nobody had used, or an error."""
    session, before = Session(kept, backend="openvino", precision="int8"), read_scales(kept)[0].scales
    digest, one = next(iter(scales.known.items()))
    after = write_scales(kept, Scales({digest: one}), texts=1, backend="openvino", changes={}).scales
    assert numerics_of(session).calibration == before != after
    assert numerics_of(Session(kept, backend="openvino", precision="int8")).calibration == after
    shutil.rmtree(kept.root / CACHE)
    assert numerics_of(session).calibration == before


def test_session_needs_scales_for_int8(made):
    with pytest.raises(BackendError, match="polyhead tasks quantize"):
        Session(made, backend="openvino", precision="int8")


@pytest.mark.parametrize("damage", ["cut", "changed", "gone", "nonsense", "hostile"])
def test_damaged_scales_are_refused_with_what_to_do(kept, damage):
    (file,) = (kept.root / CACHE).glob("*.safetensors")
    if damage == "gone":
        file.unlink()
    elif damage == "nonsense":
        (kept.root / CACHE / "int8.json").write_bytes(b"{")
    elif damage == "hostile":
        record = (kept.root / CACHE / "int8.json").read_text()
        (kept.root / CACHE / "int8.json").write_text(record.replace(read_scales(kept)[0].scales, "../../x"))
    else:
        raw = bytearray(file.read_bytes())
        raw[-1] ^= 1
        file.write_bytes(raw[:-8] if damage == "cut" else raw)
    with pytest.raises(BackendError, match="damaged.*polyhead tasks quantize"):
        Session(kept, backend="openvino", precision="int8")


def test_scales_of_another_trunk_are_refused(kept, tmp_path):
    other = tiny_trunk(seed=7)
    paths = tiny_paths(Pooled(positions="first", hidden=4), other)
    bundle = tiny_bundle(tmp_path / "other", other, {"mood": paths["mood"]})
    shutil.copytree(kept.root / CACHE, bundle.root / CACHE)
    with pytest.raises(BackendError, match="another trunk"):
        Session(bundle, backend="openvino", precision="int8")


def test_task_that_came_after_the_calibration_is_named(kept, trunk, caplog):
    Session(kept, backend="openvino", precision="int8")
    assert not caplog.records
    task = Task(name="late", kind="single_label", labels=("no", "yes"))
    pool = tiny_paths(Pooled(positions="mean", hidden=4), trunk)["mood"].pool
    add_tiny(kept.root, trunk, task, tiny_path(task, trunk, pool=pool), seed=3)
    session = Session(kept.root, backend="openvino", precision="int8")
    assert "late" in caplog.text and "polyhead tasks quantize" in caplog.text
    assert session.predict([TEXTS[0]])[0].answers["late"]["label"] in task.labels


def test_tasks_that_come_while_a_session_answers_in_int8_are_named(kept, trunk, caplog):
    session, exact = (Session(kept.root, backend="openvino", precision=p) for p in ("int8", "float32"))
    pool = tiny_paths(Pooled(positions="mean", hidden=4), trunk)["mood"].pool
    for number, name in enumerate(("late", "later")):
        task = Task(name=name, kind="single_label", labels=("no", "yes"))
        path = tiny_path(task, trunk, pool=pool)
        if number:
            add_tiny(kept.root, trunk, task, path, seed=3)
            come = [session.refresh, exact.refresh]
        else:
            record = TaskRecord(task=task, path=path, trunk=trunk.digest)
            arrays = tiny_part(path, trunk.architecture, path.head.part, seed=3)
            come = [partial(one.attach, record, arrays) for one in (session, exact)]
        for one in come:
            one()
        (said,) = [record.message for record in caplog.records]
        wanted = "run `polyhead tasks quantize` again" if number else "it is in no bundle"
        assert said.endswith(f"changes for {name}: {wanted}")
        caplog.clear()
    assert session.refresh() == exact.refresh() and not caplog.records


def test_a_hidden_task_of_a_session_in_int8_is_not_named(kept, caplog):
    """Nobody made it: `vector-<number>`, which says how familiar a text is."""
    attach_vectors(Session(kept.root, backend="openvino", precision="int8"))
    assert not caplog.records


def test_one_row_of_each_text_is_from_all_over_them():
    """It was each text's first, so that scales were chosen by one token that is the same in all."""
    seen = ObservedRange([np.eye(1, dtype=np.float32)])
    for _ in range(300):
        seen.add(np.arange(20, dtype=np.float32)[:, None], rows=1)
    times = np.bincount(np.concatenate(seen.rows)[:, 0].astype(int), minlength=20)
    assert times.sum() == 300 and times.min() >= 13 and times.max() <= 17
    few = ObservedRange([np.eye(1, dtype=np.float32)])
    few.add(np.arange(3, dtype=np.float32)[:, None], rows=5)
    assert np.concatenate(few.rows)[:, 0].tolist() == [0, 1, 2]


@needs_eight_bit_slots
@pytest.mark.parametrize("tokens", [17, 33, 65])
def test_what_is_watched_of_a_text_is_its_tokens_and_no_padding(tokens):
    """Sessions fill rows up to few shapes; scales are found on what texts have."""
    trunk = tiny_trunk(max_tokens=90)
    tasks = tiny_loaded(trunk)
    watching = ObservingRuntime(RUNTIMES(precision="float32"), rows=10**6)
    merged = plan.merge({name: task.path for name, task in tasks.items()})
    batch = tiny_batch(trunk, (tokens,))
    GraphBackend(watching, trunk, tasks).run(merged, batch)
    by_kind = {False: set(), True: set()}  # of layers; of slots, which read one vector a text, or each word's
    for seen in watching._seen:
        if seen.rows:
            by_kind[any(key.startswith(SLOT) for key in seen.weights)].add(sum(map(len, seen.rows)))
    assert by_kind[False] == {tokens}
    words = int((batch.words >= 0).sum())
    assert by_kind[True] == {1, words}


@needs_eight_bit_slots
def test_a_task_without_scales_beside_others_changes_no_bit_of_theirs_in_deterministic_mode(kept, trunk):
    session = Session(kept, backend="openvino", precision="int8", deterministic=True)
    assert read_scales(kept)[1].has_slots
    texts, names = TEXTS[:5], [name for name, task in session.tasks.items() if task.pair == "none"]
    before = {name: session.outputs(name, texts) for name in names if not session.columns(texts)[name].skipped}
    task = Task(name="new", kind="single_label", labels=("a", "b"))
    path = tiny_path(task, trunk, pool=plan.Pool(layers="mean", of=2, positions="attention", heads=2, part="task:new"))
    path = plan.Path(nodes=(*path.nodes[:-1], plan.Head(kind=task.kind, width=2, hidden=8, part="task:new")))
    session.attach(
        TaskRecord(task=task, path=path, trunk=trunk.digest), tiny_part(path, trunk.architecture, "task:new")
    )
    assert session.predict(texts[:1])[0].answers.keys() >= {"new", *before}
    for name, outputs in before.items():
        for old, new in zip(outputs, session.outputs(name, texts), strict=True):
            assert np.asarray(old).tobytes() == np.asarray(new).tobytes()


def test_a_task_that_int8_cannot_answer_is_named(made, scales):
    """Texts of which it fails were left out of the comparison, which could so be within all limits."""

    def runtimes(**options):
        runtime = RUNTIMES(**options)
        compiled = runtime.compile

        def failing(build, *, label, layers, exact=False):
            if runtime.precision == "int8" and "heads of" in label and "mood" in label:
                raise RuntimeError("no such product")
            return compiled(build, label=label, layers=layers, exact=exact)

        runtime.compile = failing
        return runtime

    with pytest.raises(
        BackendError, match=r"int8 cannot answer task 'mood'.*24 of 24 texts failed: RuntimeError: no such product\. Do"
    ):
        calibrate.measured(made, ROWS[24:], runtimes, scales, labelled=None, show=silent)
