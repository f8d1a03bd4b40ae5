"""Texts side by side in a row give what each gives alone, with prompts before them or without."""

import msgspec
import numpy as np
import pytest

from polyhead import plan
from polyhead.engine.backends.graph import GraphBackend
from polyhead.engine.backends.reference import ReferenceBackend
from polyhead.engine.compile.layout import RowLayout, Shape
from polyhead.errors import BackendError
from polyhead.testing import tiny_batch, tiny_conditioned, tiny_loaded, tiny_owned, tiny_trunk
from polyhead.text.batch import LINES, few
from support.cases import cases
from support.numpy_graphs import NumpyRuntime

TRUNK = tiny_trunk(max_tokens=90)
RAGGED = (3, 40, 1, 7, 12, 30, 2, 2, 9, 5, 17, 11)


def laid(lengths, **settings):
    batch = tiny_batch(TRUNK, lengths)
    return batch, RowLayout(batch, Shape(first_position=0, segments=2, width=16, **settings))


@cases("prompts", [(), (2, 1, 3)], ids=["plain", "prompted"])
@cases("lengths", [RAGGED, (5,), (70, 2, 3, 64), (4, 4)], ids=str)
def test_every_token_stands_where_its_place_says(lengths, prompts):
    batch, found = laid(lengths, prompts=prompts)
    for name, array in (("ids", batch.ids), ("segments", batch.segments)):
        there = getattr(found, name).ravel()[found.places]
        assert np.array_equal(there[batch.mask], array[batch.mask])
    positions = found.positions.ravel()[found.places]
    assert np.array_equal(positions[batch.mask], np.broadcast_to(np.arange(max(lengths)), batch.mask.shape)[batch.mask])
    assert found.text.sum() == sum(lengths)
    before = found.which.ravel()[found.before[:, None] + np.arange(sum(prompts))]
    assert np.array_equal(before, np.tile(np.arange(1, 1 + sum(prompts)), (len(lengths), 1)))
    words = np.where(batch.words >= 0, batch.words, 0)
    assert np.array_equal(found.words, np.take_along_axis(found.places, words, axis=1))


def test_short_texts_share_rows_and_equal_ones_do_not():
    _, ragged = laid(RAGGED)
    assert ragged.ids.size < 0.5 * len(RAGGED) * max(RAGGED)
    _, equal = laid((60,) * 5)
    assert equal.ids.shape == (5, 60), "packing would only make them longer"
    _, alone = laid(RAGGED, pack=False)
    assert alone.ids.shape == (len(RAGGED), max(RAGGED))


def test_layers_see_few_shapes_whatever_is_asked():
    """A runtime keeps about a megabyte for each: a server of mixed texts grew by gigabytes."""
    trunk, seen, rng = tiny_trunk(max_tokens=510), set(), np.random.default_rng(0)
    for _ in range(600):
        longest = rng.integers(1, 511)
        lengths = rng.integers(1, longest + 1, size=rng.integers(1, 1 + 2048 // longest))
        batch = tiny_batch(trunk, tuple(lengths.tolist()))
        rows, positions = RowLayout(batch, Shape(first_position=0, segments=2, width=384)).ids.shape
        assert positions <= 512 * 3 and rows * positions <= 2.6 * batch.ids.size + 64
        seen.add((rows, positions))
    assert len(seen) <= 220


def test_few_texts_stand_in_one_row_of_one_of_sixteen_shapes():
    """All of them can be prepared before callers come."""
    trunk, seen, rng = tiny_trunk(max_tokens=128), set(), np.random.default_rng(0)
    for _ in range(400):
        lengths = rng.integers(1, 64, size=rng.integers(1, 5)).tolist()
        layout = RowLayout(tiny_batch(trunk, tuple(lengths)), Shape(first_position=0, segments=2, width=384))
        rows, positions = layout.ids.shape
        assert rows == 1 and 0 <= positions - sum(lengths) < max(8, 1 + sum(lengths) / 4)
        assert layout.added.shape == (1, 1, positions, positions), "also of one text alone"
        seen.add(positions)
    assert seen <= set(LINES) and len(LINES) == 16


@pytest.mark.parametrize("lengths", [(7,), (40, 3, 20), (64, 64, 64, 64)])
def test_texts_of_a_row_do_not_see_each_other_nor_what_fills_it(lengths):
    batch, found = laid(lengths)
    owner = np.full(found.ids.size, -1)
    for text, places in enumerate(found.places):
        owner[places[batch.mask[text]]] = text
    seen = found.added[0, 0] == 0
    assert np.array_equal(seen, owner[:, None] == owner)


@cases("size", [2, 5, 8, 9, 31, 33, 63, 64, 65, 100, 129, 300, 511, 512])
def test_a_size_is_filled_up_by_an_eighth_at_most(size):
    rows, positions = few(size, size)
    assert size <= rows <= max(size, size * 1.125) and size <= positions <= max(size, size * 1.125)
    assert few(rows, positions) == (rows, positions)


@pytest.mark.parametrize("pack", [True, False], ids=["packed", "padded"])
def test_a_text_sees_itself_and_isolated_prompts_are_seen_by_themselves_alone(pack):
    prompts = (2, 1)
    batch, found = laid(RAGGED, prompts=prompts, isolated=True, pack=pack)
    whose = np.full(found.ids.size, -1)  # text * 10 + 0 for the text, or the prompt's number
    numbers = np.repeat([1, 2], prompts)
    for text, size in enumerate(RAGGED):
        whose[found.before[text] + np.arange(3)] = 10 * text + numbers
        whose[found.places[text, :size]] = 10 * text
    whose = whose.reshape(found.ids.shape)
    seen = np.broadcast_to(found.added[:, 0] == 0, (*whose.shape, whose.shape[1]))
    for row, at in zip(*np.nonzero(whose >= 0), strict=True):
        text, number = divmod(whose[row, at], 10)
        wanted = (whose[row] == 10 * text) | (whose[row] == 10 * text + number)
        assert np.array_equal(seen[row, at], wanted)


def test_a_batch_with_padding_before_a_text_is_refused():
    batch = tiny_batch(TRUNK, (3, 2))
    with pytest.raises(BackendError, match="before its padding"):
        RowLayout(
            msgspec.structs.replace(batch, mask=batch.mask[:, ::-1]), Shape(first_position=0, segments=2, width=16)
        )


@pytest.mark.parametrize("make", [tiny_loaded, tiny_conditioned], ids=["pooled", "conditioned"])
def test_packed_rows_give_what_padded_rows_give(make):
    tasks, batch = make(TRUNK), tiny_batch(TRUNK, RAGGED)
    merged = plan.merge({name: task.path for name, task in tasks.items()})
    packed = GraphBackend(NumpyRuntime(), TRUNK, tasks).run(merged, batch)
    padded = ReferenceBackend(TRUNK, tasks).run(merged, batch)
    for name, task in tasks.items():
        seen = batch.words >= 0 if task.path.pool.positions == "tokens" else slice(None)
        np.testing.assert_allclose(packed[name][seen], padded[name][seen], atol=2e-5, err_msg=name)


def test_a_row_of_a_pack_does_not_depend_on_its_mates():
    tasks = tiny_owned({n: t.path for n, t in tiny_loaded(TRUNK).items()}, TRUNK.architecture)
    merged = plan.merge({name: task.path for name, task in tasks.items()})
    backend = GraphBackend(NumpyRuntime(), TRUNK, tasks)
    whole = backend.run(merged, tiny_batch(TRUNK, RAGGED))
    other = tiny_batch(TRUNK, RAGGED, seed=1)
    batch = tiny_batch(TRUNK, RAGGED)
    mixed = {f: getattr(other, f).copy() for f in ("ids", "mask", "segments", "words")}
    for field, array in mixed.items():
        array[4] = getattr(batch, field)[4]
    found = backend.run(merged, type(batch)(**mixed))
    for name in tasks:
        np.testing.assert_allclose(found[name][4], whole[name][4], atol=2e-6, err_msg=name)
