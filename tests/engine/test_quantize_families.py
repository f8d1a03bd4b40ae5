"""Layers in 8 bits of every family: each product has a scale, and a task that learned something keeps its answers."""

from functools import partial

import msgspec
import numpy as np
import pytest

from polyhead.bundle.create import write_bundle
from polyhead.bundle.manifest import TaskRecord
from polyhead.bundle.read import Bundle
from polyhead.bundle.write import Draft, add_tasks
from polyhead.encoder.data import TrunkData
from polyhead.encoder.shape import trunk_arrays
from polyhead.engine.backends import open_runtime
from polyhead.engine.session import Session
from polyhead.errors import BackendError
from polyhead.evaluate import int8 as calibrate
from polyhead.plan import Pool
from polyhead.store.jobs.columns import RowInput
from polyhead.tasks.task import Task
from polyhead.testing import tiny_path, tiny_trunk
from polyhead.testing.tiny import FORMS
from support import writing_bundles
from support.tiers import first_of

LABELS = ("lamp", "bill", "phone")
ROWS = [
    (f"{first} {what} {how}", what)
    for first in ("my", "the", "please", "where is my", "anna and the")
    for how in ("is broken", "was late today", "is good , anna", "and the kettle", "was not red")
    for what in LABELS
]
TEXTS = [RowInput(input=(text,)) for text, _ in ROWS]
# "Apart": positions have maps of their own, as in DeBERTa v2.
FAMILIES = ("mpnet", "modernbert", "deberta-v2", "deberta-apart", "bart", "eurobert", "gte", "nomic_bert")


def silent(text):
    """Shows no progress."""


def trunk_of(name):
    """The tiny trunk, 48 wide, with weights of layers small enough that words are told apart behind them."""
    data = tiny_trunk(layers=2, width=48, family="deberta-v2" if name == "deberta-apart" else name)
    shape, rng = data.architecture, np.random.default_rng(5)
    if name == "deberta-apart":
        relative = msgspec.structs.replace(shape.relative, shared=False)
        shape = msgspec.structs.replace(shape, relative=relative)
    drawn = {key: data.arrays.get(key, 0.3 * rng.standard_normal(size)) for key, size in trunk_arrays(shape)}
    arrays = {
        key: np.float32(array * (0.5 if key.startswith("layers.") and array.ndim == 2 else 1.0))
        for key, array in drawn.items()
    }
    return TrunkData(name=name, architecture=shape, arrays=arrays, tokenizer=data.tokenizer, settings=data.settings)


def bundle_of(root, data, labels, weight, bias):
    """A bundle of one task, a linear head over the mean of the last states."""
    task = Task(name="what", kind="single_label", labels=labels)
    path = tiny_path(task, data, pool=Pool(positions="mean"), hidden=0)
    arrays = {"head.output.weight": np.float32(weight), "head.output.bias": np.float32(bias)}
    record = TaskRecord(task=task, path=path, trunk=data.digest)
    write_bundle(root, data)
    add_tasks(root, [Draft(record=record, arrays=arrays, scores={}, probes=[], card="")])
    return Bundle.open(root)


def outputs(session):
    return np.stack(session.outputs("what", [row.input for row in TEXTS]))


def learned(root, data):
    """A bundle of a task that says which of three words is in a text, by least squares on mean vectors."""
    width = data.architecture.width
    names = tuple(f"v{i}" for i in range(width))
    plain = bundle_of(root / "vectors", data, names, np.eye(width), np.zeros(width))
    vectors = outputs(Session(plain, backend="reference")).astype(np.float64)
    centre, scale = vectors.mean(axis=0), vectors.std(axis=0) + 1e-6
    features = np.concatenate([(vectors - centre) / scale, np.ones((len(vectors), 1))], axis=1)
    wanted = 8.0 * np.array([[label == what for label in LABELS] for _, what in ROWS]) - 4
    found = np.linalg.solve(features.T @ features + 0.1 * np.eye(width + 1), features.T @ wanted).T
    weight = found[:, :-1] / scale
    return bundle_of(root / "learned", data, LABELS, weight, found[:, -1] - weight @ centre)


def right(session):
    return np.mean([LABELS[i] == what for i, (_, what) in zip(outputs(session).argmax(-1), ROWS, strict=True)])


@pytest.mark.parametrize("family", first_of(FAMILIES))
def test_a_task_that_learned_keeps_its_answers_in_8_bits(family, tmp_path):
    """By the rule that `polyhead tasks quantize` has: 95 % of equal answers at least, and one point lost at most."""
    bundle = learned(tmp_path, trunk_of(family))
    first, second = calibrate.halves(TEXTS, len(TEXTS))
    for name in ("openvino", "onnxruntime"):
        made = partial(open_runtime, name)
        scales = calibrate.calibrated_scales(bundle, first, made, show=silent)
        maps = [
            array
            for key, array in bundle.trunk().arrays.items()
            if key.startswith("layers.") and key.endswith(".weight") and array.ndim == 2
        ]
        assert len(maps) >= 12 and all(scales.of(array) is not None for array in maps)
        changes = calibrate.measured(bundle, second, made, scales, labelled=None, show=silent)
        calibrate.check(changes, calibrate.Limits())
        exact, eight = (
            Session(bundle, backend=made(precision=precision, scales=own))
            for precision, own in (("float32", None), ("int8", scales))
        )
        assert right(exact) >= 0.9 and right(eight) >= right(exact) - 0.02


def test_every_family_is_tried_or_has_no_product():
    others = {"bert", "roberta", "electra", "distilbert"}  # BERT's layers: tests/engine/test_quantize.py
    assert {*FAMILIES, *others} - {"deberta-apart"} == set(FORMS) - {"static"}


def test_a_table_of_words_has_nothing_to_compute_in_8_bits(tmp_path):
    data = tiny_trunk(family="static")
    bundle = learned(tmp_path, data)
    with pytest.raises(BackendError, match="no layers"):
        calibrate.calibrated_scales(bundle, TEXTS[:4], partial(open_runtime, "onnxruntime"), show=silent)


def test_a_bundle_that_writes_has_its_encoder_in_8_bits_and_its_decoder_in_float32(tmp_path):
    bundle = Bundle.open(writing_bundles.bundle(tmp_path / "b"))
    rows = [RowInput(input=(text,)) for text in writing_bundles.texts(8)]
    runtimes = partial(open_runtime, "onnxruntime")
    scales = calibrate.calibrated_scales(bundle, rows, runtimes, show=silent)
    assert not any(scales.of(a) is not None for a in bundle.part("brief").values() if a.ndim == 2)
    states = np.random.default_rng(0).standard_normal((1, 4, bundle.architecture.width)).astype(np.float32)
    scores = []
    for runtime in (runtimes(precision="float32"), runtimes(precision="int8", scales=scales)):
        step = Session(bundle, backend=runtime).backend.decoder("brief")
        scores.append(step.step(np.array([[2]]), step.begin(states, np.ones((1, 4), bool)))[0])
    np.testing.assert_array_equal(*scores)
    changes = calibrate.measured(bundle, rows, runtimes, scales, labelled=None, show=silent)
    assert changes["brief"].agreement.rows == len(rows)
