"""Compiled graphs that are kept in a folder: the same bits, found by later processes, and never an error."""

import logging
import subprocess
import sys

import msgspec
import numpy as np
import pytest

pytest.importorskip("openvino", reason="the runtime whose graphs can be kept")

import openvino as ov

from polyhead.bundle.create import write_bundle
from polyhead.bundle.read import Bundle
from polyhead.encoder import data
from polyhead.encoder.shape import WORD_VECTORS
from polyhead.engine.backends.openvino import OpenVINORuntime
from polyhead.engine.compile import arrangement, compiled
from polyhead.engine.compile.compiled import COMPILED, user_folder
from polyhead.engine.scales import SLOT, Scales
from polyhead.engine.session import Session
from polyhead.evaluate.int8 import calibrated_scales
from polyhead.plan import Pool
from polyhead.store.jobs.columns import RowInput
from polyhead.testing import tiny_path, tiny_tasks, tiny_trunk
from polyhead.testing.strategies import add_tiny
from support.precisions import needs_eight_bit_slots

TEXTS = ["where is my order?", "the lamp is broken", "a"]


@pytest.fixture
def compilations(monkeypatch):
    """The labels of graphs that are compiled."""
    compile, labels = OpenVINORuntime.compile, []

    def counted(self, build, *, label, layers, exact=False):
        labels.append(label)
        return compile(self, build, label=label, layers=layers, exact=exact)

    monkeypatch.setattr(OpenVINORuntime, "compile", counted)
    return labels


def _bundle(root, *, seed=1, trunk_seed=0):
    trunk = tiny_trunk(seed=trunk_seed)
    write_bundle(root, trunk)
    for task in tiny_tasks()[:4]:
        pool = Pool(positions="tokens") if task.kind == "tagging" else Pool()
        add_tiny(root, trunk, task, tiny_path(task, trunk, pool=pool), seed=seed)
    return root


def _outputs(root, *, backend="openvino", precision="float32", **how):
    session = Session(root, backend=backend, precision=precision, **how)
    columns = session.columns(TEXTS)
    return {name: [np.array(each) for each in columns[name].outputs] for name in columns.tasks}


def _bits(outputs):
    return {name: [each.tobytes() for each in own] for name, own in outputs.items()}


@pytest.mark.parametrize("deterministic", [False, True], ids=["packed", "deterministic"])
def test_what_was_compiled_before_is_read_and_gives_the_same_bits(tmp_path, folder, compilations, deterministic):
    root = _bundle(tmp_path / "bundle")
    first = _outputs(root, deterministic=deterministic)
    made = len(compilations)
    second = _outputs(root, deterministic=deterministic)
    assert made >= 2 and len(compilations) == made
    assert _bits(first) == _bits(second)


def test_another_process_finds_it(tmp_path, folder, compilations):
    root = _bundle(tmp_path / "bundle")
    program = (
        "import sys; from pathlib import Path; from polyhead.engine.compile.compiled import COMPILED\n"
        "from polyhead.engine.session import Session\n"
        "COMPILED.path = Path(sys.argv[2])\n"
        "Session(sys.argv[1], backend='openvino', precision='float32').predict(['where is my order?'])\n"
    )
    subprocess.run([sys.executable, "-c", program, str(root), str(folder)], check=True)
    assert list(folder.iterdir())
    _outputs(root)
    assert compilations == []


@pytest.mark.parametrize("other", [{"seed": 2}, {"trunk_seed": 3}], ids=["parts", "trunk"])
def test_other_bits_are_another_graph(tmp_path, folder, other):
    kept = _outputs(_bundle(tmp_path / "one"))
    with_folder = _outputs(_bundle(tmp_path / "two", **other))
    COMPILED.path = None
    assert _bits(with_folder) == _bits(_outputs(tmp_path / "two")) != _bits(kept)


@pytest.mark.parametrize("what", ["layers", pytest.param("slots", marks=needs_eight_bit_slots)])
def test_other_scales_are_another_graph_before_they_lie_in_a_file(tmp_path, folder, what):
    """A second `tasks quantize` measured the scales of the first."""
    root = _bundle(tmp_path / "bundle")
    rows = [RowInput(input=(text,)) for text in TEXTS]
    scales = calibrated_scales(Bundle.open(root), rows, OpenVINORuntime, show=lambda text: None)
    changed = {key: scale for key, scale in scales.known.items() if key.startswith(SLOT) == (what == "slots")}
    coarse = {key: msgspec.structs.replace(scale, step=200 * scale.step) for key, scale in changed.items()}

    def outputs(scales):
        return _bits(_outputs(root, backend=OpenVINORuntime(precision="int8", scales=scales), precision=None))

    kept = outputs(Scales(scales.known | coarse))
    with_folder = outputs(scales), outputs(scales.of_layers)
    COMPILED.path = None
    assert with_folder == (outputs(scales), outputs(scales.of_layers)) and kept not in with_folder


@pytest.mark.parametrize("what", ["precision", "code", "runtime"])
def test_other_settings_or_code_are_another_graph(tmp_path, folder, compilations, monkeypatch, what):
    root = _bundle(tmp_path / "bundle")
    _outputs(root)
    made = len(compilations)
    if what == "code":
        monkeypatch.setattr(compiled, "_code", lambda: "another")
    elif what == "runtime":
        monkeypatch.setattr(OpenVINORuntime, "facts", "another version, or another processor")
    else:
        Session(root, backend=OpenVINORuntime(precision="float32", threads=3)).predict(TEXTS)
    if what != "precision":
        _outputs(root)
    assert len(compilations) == 2 * made


@pytest.mark.parametrize(
    "damage",
    [
        lambda raw: raw[:-9],
        lambda raw: b"",
        lambda raw: raw[:200] + bytes([raw[200] ^ 1]) + raw[201:],
        lambda raw: b"x",
    ],
    ids=["cut", "empty", "one bit", "a letter"],
)
def test_a_damaged_file_is_compiled_again_with_a_line_in_the_log(tmp_path, folder, compilations, caplog, damage):
    root = _bundle(tmp_path / "bundle")
    first, made = _outputs(root), len(compilations)
    files = sorted(folder.iterdir())
    for file in files:
        raw = file.read_bytes()
        file.unlink()  # who has it open reads on
        file.write_bytes(damage(raw))
    with caplog.at_level(logging.WARNING, logger="polyhead"):
        second = _outputs(root)
    assert _bits(first) == _bits(second) and len(compilations) == 2 * made
    told = [record.getMessage() for record in caplog.records if "compiled again" in record.getMessage()]
    assert len(told) == len(files)
    _outputs(root)
    assert len(compilations) == 2 * made  # and kept anew


def test_content_that_the_runtime_does_not_read_is_compiled_again(tmp_path, folder, compilations, monkeypatch):
    root = _bundle(tmp_path / "bundle")
    first, made = _outputs(root), len(compilations)

    def refused(self, content, build, **how):
        raise RuntimeError("the form of another version")

    monkeypatch.setattr(OpenVINORuntime, "imported", refused)
    assert _bits(_outputs(root)) == _bits(first) and len(compilations) == 2 * made


def test_a_folder_that_takes_nothing_is_no_error(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(COMPILED, "path", tmp_path / "file" / "compiled")
    assert _outputs(_bundle(tmp_path / "bundle"))


def test_what_was_read_longest_ago_makes_room(tmp_path, folder, compilations, monkeypatch):
    root = _bundle(tmp_path / "bundle")
    _outputs(root)
    one = max(file.stat().st_size for file in folder.iterdir())
    monkeypatch.setattr(compiled, "MOST", 4 * one)
    for seed in range(2, 6):
        _outputs(_bundle(tmp_path / f"{seed}", seed=seed))
    assert sum(file.stat().st_size for file in folder.iterdir()) <= 4 * one
    made = len(compilations)
    _outputs(tmp_path / "5")
    assert len(compilations) == made


@pytest.mark.parametrize("room", [-1, 10**6], ids=["too large", "kept"])
def test_a_graph_of_more_weights_than_a_file_may_have_is_not_written_into_memory(folder, monkeypatch, room):
    matrix, export, exports = (
        np.random.default_rng(0).standard_normal((64, 64), np.float32),
        ov.CompiledModel.export_model,
        [],
    )
    monkeypatch.setattr(ov.CompiledModel, "export_model", lambda model: exports.append(model) or export(model))
    monkeypatch.setattr(compiled, "LARGEST", matrix.nbytes + room)

    def product(ops):
        return {"out": ops.matmul(ops.input("x", "float", (-1, 64)), ops.constant(matrix))}

    runtime = OpenVINORuntime(precision="float32")
    graph = COMPILED.get(runtime, lambda: "product", product, label="product", layers=True)
    rows = np.ones((3, 64), np.float32)
    np.testing.assert_allclose(graph({"x": rows})["out"], rows @ matrix, rtol=0, atol=1e-4)
    assert len(exports) == folder.exists() == (room > 0)


def test_the_weights_of_a_trunk_are_not_hashed_again_for_its_graphs(tmp_path, folder, compilations, monkeypatch):
    bundle, digest, hashed = Bundle.open(_bundle(tmp_path / "bundle")), data.arrays_digest, []
    bundle.trunk()
    for module in (data, arrangement):
        monkeypatch.setattr(module, "arrays_digest", lambda arrays: hashed.append(set(arrays)) or digest(arrays))
    _outputs(bundle)
    assert compilations and hashed and not any(WORD_VECTORS in names for names in hashed)


def test_a_task_that_left_its_seat_is_not_taken_for_another(tmp_path, folder):
    """The arrays of who left are known to one process alone, by a number; the graph is then not kept."""
    root = _bundle(tmp_path / "bundle")
    session = Session(root, backend="openvino", precision="float32")
    session.predict(TEXTS)
    arranged = session.backend._loaded.arranged
    token = arranged.tokens(session.records["mood"].path.head)[0]
    assert arranged.digest_maker((token,))() == arranged.digest_maker((token,))() is not None
    session.detach("mood")
    assert session.backend._loaded.arranged.digest_maker((token,))() is None


def test_the_folder_is_the_users_own():
    assert str(user_folder({"HOME": "/home/ann"})) == "/home/ann/.cache/polyhead/compiled"
    assert str(user_folder({"HOME": "/home/ann", "XDG_CACHE_HOME": "/fast"})) == "/fast/polyhead/compiled"
    assert user_folder({}) is None and user_folder({"XDG_CACHE_HOME": "not/absolute"}) is None
