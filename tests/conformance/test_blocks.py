"""Rows cut into blocks for layers with a window: checks of backends again, with blocks of few positions."""

from functools import partial

import msgspec
import numpy as np
import pytest

from polyhead.encoder import window_blocks
from polyhead.engine.backends import open_backend
from polyhead.engine.compile.layout import RowLayout, Shape
from polyhead.plan import Pool, merge
from polyhead.plan.cost import flops
from polyhead.testing import tiny_batch, tiny_trunk, yield_backend_checks, yield_deterministic_checks
from polyhead.testing.tiny import tiny_conditioned, tiny_path, tiny_tasks
from support.numpy_graphs import NumpyRuntime

TRUNK = tiny_trunk(family="modernbert")
ONCE = ("equals the reference, float32", "does not depend on padding")


@pytest.fixture(params=[4, 7])
def block(request, monkeypatch):
    """Positions of a block; texts of the checks have up to 48, and windows are of 4."""
    monkeypatch.setattr(window_blocks, "BLOCK", request.param)
    monkeypatch.setattr(window_blocks, "WORTH", 1)
    return request.param


def make(name, trunk, tasks, *, deterministic=False):
    backend = NumpyRuntime() if name == "numpy" else name
    return open_backend(backend, trunk, tasks, precision="float32", deterministic=deterministic)


def ran(checks):
    count = 0
    for check in checks:
        count += 1
        try:
            check.run()
        except Exception as error:
            raise AssertionError(f"{check.tasks}: {check.name}: {error}") from error
    return count


@pytest.mark.parametrize(
    "name", ["numpy", "torch", *(pytest.param(name, marks=pytest.mark.slow) for name in ("openvino", "onnxruntime"))]
)
def test_blocks_give_what_the_reference_gives_of_whole_rows(name, block):
    """Packed and padded, with prompts that are joint or isolated, prefixes and other deltas, several lanes at once."""
    checks = yield_backend_checks(name, partial(make, name), family="modernbert")
    kept = ("prompts and adapters, ragged", "prompts and adapters, longest", "tasks alike but for their arrays")
    assert ran(check for check in checks if check.name.startswith(ONCE) or check.name.endswith(kept)) == 9


@pytest.mark.slow
@pytest.mark.parametrize("name", ["torch", "onnxruntime"])
def test_no_task_moves_a_bit_of_another_where_rows_are_cut(name, block):
    checks = yield_deterministic_checks(name, partial(make, name, deterministic=True), family="modernbert")
    assert ran(check for check in checks if "384" not in check.name) == 4


@pytest.mark.slow
def test_blocks_pass_every_check_in_deterministic_mode(block):
    checks = yield_backend_checks("onnxruntime", partial(make, "onnxruntime", deterministic=True), family="modernbert")
    assert ran(check for check in checks if "float32" in check.name or "prompts" in check.name) > 9


@pytest.mark.parametrize("lengths", [(48, 3, 20, 7), (48,), (9, 4, 7, 3)])
@pytest.mark.parametrize("prompts", [(), (3,), (2, 4)])
@pytest.mark.parametrize("isolated", [True, False])
def test_blocks_read_each_pair_that_a_whole_row_reads_and_no_other(lengths, prompts, isolated, block):
    """Every position sees in its block, or if it is a prompt row apart, what the rule says: once."""
    settings = {"first_position": 0, "segments": 1, "width": 16, "window": 4, "prompts": prompts, "isolated": isolated}
    laid = RowLayout(tiny_batch(TRUNK, lengths), Shape(**settings))
    rows, positions = laid.size
    assert rows * positions // laid.near.shape[2] == len(laid.near)
    found = np.zeros((rows * positions, rows * positions), int)
    places = np.arange(rows * positions).reshape(len(laid.near), -1)
    for asking, reading, near_ in zip(places, laid.reads[:, 0], laid.near[:, 0] == 0, strict=True):
        np.add.at(found, (asking[:, None], reading), near_)
    if prompts:
        found = np.insert(found.reshape(rows, positions, -1), positions, 0, axis=1)[:, :positions].reshape(found.shape)
        for asking, seen in zip(laid.asks, laid.asked[:, 0] == 0, strict=True):
            row = asking[0] // positions
            found[asking] = 0
            found[asking, row * positions : (row + 1) * positions] = seen
    added = np.broadcast_to(laid.added == 0, (rows, 1, positions, positions))[:, 0]
    at, which = np.arange(positions), laid.which
    is_near = np.abs(at[:, None] - at) <= 4
    for row in range(rows):
        is_prompt = which[row] > 0
        mine = slice(row * positions, (row + 1) * positions)
        expected = added[row] & (is_near | is_prompt | is_prompt[:, None])
        texts = np.isin(np.arange(rows * positions)[mine], np.concatenate([laid.places.ravel(), _prompts(laid)]))
        np.testing.assert_array_equal(found[mine, mine][texts], expected[texts])
    assert found.sum() == sum(
        found[r : r + positions, r : r + positions].sum() for r in range(0, len(found), positions)
    )


def _prompts(laid):
    return np.flatnonzero(laid.which.ravel() > 0)


def test_what_blocks_read_grows_with_the_row_and_not_with_its_square():
    sizes = []
    for tokens in (2048, 4096, 8192):
        batch = tiny_batch(tiny_trunk(family="modernbert", max_tokens=tokens), (tokens,))
        laid = RowLayout(batch, Shape(first_position=0, segments=1, width=16, window=64))
        assert laid.near.shape == (tokens // 128, 1, 128, 256) and laid.reads.shape == (tokens // 128, 1, 256)
        sizes.append(laid.near.size)
    assert sizes == [256 * tokens for tokens in (2048, 4096, 8192)]


@pytest.mark.parametrize("tokens", [100, 600, 2048])
def test_costs_count_the_pairs_that_are_in_a_window_and_blocks_compute_few_more(tokens):
    trunk = tiny_trunk(family="modernbert", max_tokens=tokens)
    windows, whole = (msgspec.structs.replace(trunk.architecture, window=window) for window in (64, tokens))
    plan = merge({"mood": tiny_path(tiny_tasks()[0], trunk, pool=Pool())})
    fewer = flops(plan, whole, tokens) - flops(plan, windows, tokens)
    counted = tokens**2 - fewer // (4 * windows.width)  # one of its two layers has a window
    settings = {"first_position": 0, "segments": 1, "width": 16, "window": 64, "pack": False}
    laid = RowLayout(tiny_batch(trunk, (tokens,)), Shape(**settings))
    assert counted == (laid.near == 0).sum()
    assert tokens < 512 or laid.near.size < 2.4 * counted


def test_lanes_of_a_layer_with_a_window_read_their_own_rows():
    """Two tasks whose upper layer differs in arrays alone run it as one; what fails at once would run one by one."""
    tasks = {name: task for name, task in tiny_conditioned(TRUNK).items() if name in ("upper", "by-depth")}
    plan, batch = merge({name: task.path for name, task in tasks.items()}), tiny_batch(TRUNK, (9, 4, 7))
    expected = open_backend("reference", TRUNK, tasks, precision="float32").run(plan, batch)
    for name in ("openvino", "onnxruntime"):
        found = open_backend(name, TRUNK, tasks, precision="float32").run(plan, batch)
        for task in tasks:
            np.testing.assert_allclose(found[task], expected[task], atol=1e-4, err_msg=f"{name}, {task}")
