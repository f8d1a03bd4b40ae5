"""States of probes in the folder of compiled graphs: later processes run no layer for them, and prove no less."""

import hashlib
import logging
import shutil

import numpy as np
import pytest

pytest.importorskip("openvino", reason="the runtime whose graphs and states can be kept")

from engine.test_isolation import copying, make
from engine.test_prover import changes, told
from engine.test_state_cache import PATHS, assert_equal, fresh, keeping, ran
from polyhead.bundle.read import Bundle
from polyhead.bundle.remove import unlist
from polyhead.certify import Prover, certified, verify
from polyhead.engine.backends.graph import GraphBackend
from polyhead.engine.compile.compiled import COMPILED, HASHED
from polyhead.testing import tiny_trunk


@pytest.fixture
def layers(monkeypatch):
    """How many layers each change ran, of all backends."""
    counts, original = [], GraphBackend._stages

    def stages(self, *arguments, **named):
        before = self.layers_run
        yield from original(self, *arguments, **named)
        counts[-1] += self.layers_run - before

    monkeypatch.setattr(GraphBackend, "_stages", stages)
    return counts


def states(folder):
    return sorted(folder.glob("*.states"))


def without_folder(root, other, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(COMPILED, "path", None)
        return [told(change(None)) for change in changes(root, other)]


def test_processes_of_one_change_each_run_the_layers_once_and_certify_the_same(
    root, other, tmp_path, folder, layers, monkeypatch
):
    copy = shutil.copytree(root, tmp_path / "copy")
    stored = []
    for change in changes(root, other):
        layers.append(0)
        stored.append(told(change(None)))
    assert layers[0] > 0 and layers[1:] == [0, 0, 0, 0], layers
    layers.append(0)
    assert stored == without_folder(copy, other, monkeypatch) and layers[-1] > 0
    layers.append(0)
    assert verify(root) == [] and layers[-1] > 0, "a verification runs all layers"


def test_without_a_folder_nothing_is_written(root, other, tmp_path, layers):
    layers.append(0)
    prover = Prover()
    changes(root, other)[0](prover)
    prover.store()
    assert COMPILED.path is None and not list(tmp_path.rglob("*.states"))


def test_another_encoder_in_the_same_place_takes_nothing(root, other, tmp_path, folder, layers):
    layers.append(0)
    changes(root, other)[0](None)
    trunk = tiny_trunk(seed=3)
    for place in (root, other):
        shutil.rmtree(place)
    make(root, "mood", "names", "alike", trunk=trunk)
    make(other, "topics", "mood", seed=50, trunk=trunk)
    layers.append(0)
    changes(root, other)[0](None)
    assert layers[0] == layers[1] > 0
    assert verify(root) == []


@pytest.mark.parametrize(
    "damage", [lambda raw: raw[:-9], lambda raw: raw[:200] + bytes([raw[200] ^ 1]) + raw[201:]], ids=["cut", "one bit"]
)
def test_damaged_states_are_computed_again_with_a_line_in_the_log(root, other, folder, layers, caplog, damage):
    layers.append(0)
    add, update, *_ = changes(root, other)
    add(None)
    (file,) = states(folder)
    file.write_bytes(damage(file.read_bytes()))
    layers.append(0)
    with caplog.at_level(logging.WARNING, logger="polyhead"):
        update(None)
    assert layers[1] > 0 and "the layers are run again" in caplog.text
    assert verify(root) == []


def test_states_that_are_wrong_decide_nothing_against_a_certificate(root, other, tmp_path, folder, layers, monkeypatch):
    """Whole by their hash, but other numbers: what an earlier process computed wrongly."""
    copy = shutil.copytree(root, tmp_path / "copy")
    layers.append(0)
    add, update, *_ = changes(root, other)
    proven = [told(add(None))]
    (file,) = states(folder)
    content = bytearray(file.read_bytes()[HASHED:])
    size = 8 + int.from_bytes(content[:8], "little")
    numbers = np.frombuffer(bytes(content[size:]), np.float32) + np.float32(0.5)
    content[size:] = numbers.tobytes()
    file.write_bytes(hashlib.sha256(content).digest() + content)
    proven.append(told(update(None)))
    without = without_folder(copy, other, monkeypatch)
    assert [each[:4] for each in proven] == [each[:4] for each in without[:2]]
    assert verify(root) == []
    layers.append(0)
    certified(root, "update", copying(other, "mood", root=root, replace=True), changing=["mood"])
    assert layers[-1] == 0 and verify(root) == [], "and the right ones are kept instead"


def test_a_prepared_prover_runs_no_layer_for_the_first_change(root, other, layers):
    layers.append(0)
    prover = Prover()
    prover.prepare(Bundle.open(root))
    layers.append(0)
    certified(root, "remove", lambda: unlist(root, ["alike"]), changing=["alike"], prover=prover)
    assert layers[0] > 0 == layers[1] and verify(root) == []


def test_stored_states_are_those_of_another_backend_that_computes_alike():
    first, second = keeping(PATHS), keeping(PATHS)
    ran(first, PATHS)
    content = memoryview(b"".join(bytes(part) for part in first.state_cache.dump()))
    second.state_cache.load(content)
    outputs, count = ran(second, PATHS)
    assert count == 0 and second.state_cache.size == first.state_cache.size > 0
    assert_equal(fresh(PATHS), outputs)
    with pytest.raises(ValueError, match="does not hold"):
        keeping(PATHS).state_cache.load(content[:-4])
