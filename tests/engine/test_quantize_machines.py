"""Scales on machines of two kinds: what was measured on one is not taken for the other, and both are kept."""

import json
import shutil

import numpy as np
import pytest

pytest.importorskip("polyhead.engine.backends.openvino", reason="the openvino extra is not installed")

from engine.test_quantize import ROWS, RUNTIMES, TEXTS, drawn, seen_of, silent
from polyhead.bundle.read import Bundle
from polyhead.certify.annotations import Annotations, keep_annotations
from polyhead.engine.probes import Numerics, keep_agreements, read_agreements
from polyhead.engine.scale_files import (
    CACHE,
    RECORD,
    Int8Change,
    read_calibration,
    read_scales,
    write_changes,
    write_scales,
)
from polyhead.engine.scales import Scale, Scales
from polyhead.engine.session import Session
from polyhead.errors import BackendError
from polyhead.evaluate import int8 as calibrate
from polyhead.machine import WIDE_SUMS, Processor
from polyhead.project.strategies import Pooled
from polyhead.tasks.agreement import Agreement
from polyhead.tasks.calibration import Calibration
from polyhead.testing import tiny_trunk
from polyhead.testing.strategies import tiny_bundle, tiny_paths
from support.commands import run

KINDS = {
    "wide": Processor(machine="x86_64", model="New CPU", features=WIDE_SUMS),
    "narrow": Processor(machine="x86_64", model="Old CPU", features=frozenset()),
}


@pytest.fixture
def on(monkeypatch):
    """`on("narrow")`: from now on this machine is of that kind."""
    return lambda kind: monkeypatch.setattr("polyhead.machine._read", lambda cap: KINDS[kind])


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    trunk = tiny_trunk()
    paths = tiny_paths(Pooled(positions="mean", hidden=4), trunk)
    return tiny_bundle(tmp_path_factory.mktemp("m") / "b", trunk, {n: paths[n] for n in ("mood", "topics")})


@pytest.fixture(scope="module")
def scales(made):
    return calibrate.calibrated_scales(made, ROWS[:24], RUNTIMES, show=silent)


@pytest.fixture
def bundle(made, tmp_path):
    shutil.copytree(made.root, tmp_path / "b")
    return Bundle.open(tmp_path / "b")


def changes_of(bundle, share):
    return dict.fromkeys(bundle.lines, Int8Change(agreement=Agreement(rows=9, share=share)))


def said(bundle, caplog):
    """What a session in int8 says when it opens."""
    caplog.clear()
    Session(bundle, backend="openvino", precision="int8")
    return [record.getMessage() for record in caplog.records]


def test_a_session_on_a_machine_of_another_kind_says_so_once_and_what_to_do(bundle, scales, on, caplog):
    on("wide")
    write_scales(bundle, scales, texts=24, backend="openvino", changes=changes_of(bundle, 1.0))
    assert said(bundle, caplog) == []
    on("narrow")
    (line,) = said(bundle, caplog)
    assert "weights of 7 bits" in line and "mood, topics" in line and "polyhead tasks quantize --measure" in line


def test_what_is_measured_on_each_kind_of_machine_stands_beside_the_other(bundle, scales, on, caplog):
    on("wide")
    record = write_scales(bundle, scales, texts=24, backend="openvino", changes=changes_of(bundle, 1.0))
    for kind, backend, share in (
        ("narrow", "openvino", 0.8),
        ("wide", "onnxruntime", 0.7),
        ("narrow", "openvino", 0.9),
    ):
        on(kind)
        write_changes(bundle, record, backend=backend, changes=changes_of(bundle, share))
    found = {
        (one.backend, one.weight_bits): one.of(bundle)["mood"].agreement.share
        for one in read_calibration(bundle).measurements
    }
    assert found == {("openvino", 8): 1.0, ("openvino", 7): 0.9, ("onnxruntime", 8): 0.7}
    for kind in KINDS:
        on(kind)
        assert said(bundle, caplog) == []
    on("wide")
    write_changes(bundle, record, backend="openvino", changes=changes_of(bundle, 0.6))
    assert read_calibration(bundle).measurements[0].of(bundle)["mood"].agreement.share == 0.6
    assert len(read_calibration(bundle).measurements) == 3


def test_what_was_measured_holds_when_a_calibration_is_set_beside_the_answers(bundle, scales, on, caplog):
    on("wide")
    write_scales(bundle, scales, texts=24, backend="openvino", changes=changes_of(bundle, 1.0))
    wanted = {"mood": Annotations(calibration=Calibration(scale=(0.5,)))}
    keep_annotations(bundle.root, wanted, read=bundle)
    assert said(Bundle.open(bundle.root), caplog) == []


def test_what_was_measured_of_scales_that_were_found_anew_is_not_kept(bundle, scales):
    record = write_scales(bundle, scales, texts=24, backend="openvino", changes=changes_of(bundle, 1.0))
    digest, one = next(iter(scales.known.items()))
    write_scales(bundle, Scales({digest: one}), texts=1, backend="openvino", changes=changes_of(bundle, 0.5))
    before = (bundle.root / CACHE / RECORD).read_bytes()
    with pytest.raises(BackendError, match="found anew.*Do: measure again"):
        write_changes(bundle, record, backend="openvino", changes=changes_of(bundle, 0.9))
    assert (bundle.root / CACHE / RECORD).read_bytes() == before


def test_means_come_back_as_they_were_kept(bundle, scales):
    write_scales(bundle, scales, texts=24, backend="openvino", changes={})
    for digest, one in read_scales(bundle)[1].known.items():
        np.testing.assert_array_equal(one.mean, scales.known[digest].mean)


@pytest.mark.parametrize("bits", [8, 7])
def test_rounding_of_weights_shifts_no_output_over_the_texts_that_were_read(bits):
    """What all texts share was added to every answer: outputs that differ little between texts moved by a third."""
    x, weight = drawn(400, 32) + 3 * drawn(32, seed=7), drawn(24, 32, seed=1)
    scale = seen_of(x, weight).scale()
    np.testing.assert_allclose(scale.mean, x.mean(axis=0), rtol=1e-4, atol=1e-5)
    eight = scale.weights(weight, bits=bits)
    rounded = (x / scale.smooth) @ (eight.whole * eight.steps).T  # of the weights alone
    error = rounded - x @ weight.T
    np.testing.assert_allclose(error.mean(axis=0) + eight.shift, 0, atol=1e-3)
    assert np.abs(error.mean(axis=0)).max() > 0.02
    bare = Scale(smooth=scale.smooth, step=scale.step, zero=scale.zero)
    assert bare.weights(weight, bits=bits).shift is None
    left, before = (np.abs((one.product(x, weight, bits=bits) - x @ weight.T).mean()) for one in (scale, bare))
    assert left < before


def test_the_mean_is_of_all_rows_wherever_they_were_seen():
    weight, first, second = drawn(3, 4), drawn(5, 4, seed=1), 9 + drawn(20, 4, seed=2)
    one, other = seen_of(first, weight), seen_of(second[:4], weight)
    other.add(second[4:], rows=1)
    one.join(other)
    wanted = np.concatenate([first, second]).mean(axis=0)
    np.testing.assert_allclose(one.scale().mean, wanted, rtol=1e-5)


def test_agreements_of_both_widths_stand_side_by_side(bundle):
    for bits, share in ((8, 1.0), (7, 0.5), (7, 0.9)):
        how = Numerics(backend="openvino", precision="int8", version="1", weight_bits=bits)
        keep_agreements(bundle, how, {"mood": Agreement(rows=5, share=share)})
    found = {one.numerics.weight_bits: one.agreements["mood"].share for one in read_agreements(bundle)}
    assert found == {8: 1.0, 7: 0.9}


# -- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture
def texts(tmp_path):
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS[:24]))
    return tmp_path / "texts.txt"


def test_measure_keeps_scales_and_says_what_they_change_on_this_machine(bundle, texts, on):
    on("wide")
    words = ("quantize", bundle.root, "--texts", texts, "--rows", "8", "--agreement", "0")
    assert run(*words).code == 0
    before = {path.name: path.read_bytes() for path in (bundle.root / CACHE).glob("*.safetensors")}
    on("narrow")
    done = run(*words, "--measure", "--json", "-")
    assert done.code == 0, done.err
    told = json.loads(done.out)
    assert told["weight_bits"] == 7 and told["measured_on"] == 8
    first, elsewhere = told["calibration"]["measurements"]
    assert (first["weight_bits"], elsewhere["weight_bits"]) == (8, 7) and set(elsewhere["tasks"]) == {"mood", "topics"}
    assert {path.name: path.read_bytes() for path in (bundle.root / CACHE).glob("*.safetensors")} == before
    shown = run("inspect", bundle.root).out
    assert "openvino with weights of 8 bits" in shown and "openvino with weights of 7 bits" in shown


def test_measure_past_the_limits_is_refused_and_keeps_what_was_known(bundle, texts, monkeypatch):
    words = ("quantize", bundle.root, "--texts", texts, "--rows", "4")
    run(*words, "--measure").refuses("no scales", "polyhead tasks quantize")
    assert run(*words, "--agreement", "0").code == 0
    before = (bundle.root / CACHE / RECORD).read_bytes()
    monkeypatch.setattr(calibrate, "measured", lambda *words, **options: changes_of(bundle, 0.5))
    done = run(*words, "--measure")
    done.refuses("int8 changes these tasks too much", "mood 50.0 %", "nothing was written")
    assert (bundle.root / CACHE / RECORD).read_bytes() == before
