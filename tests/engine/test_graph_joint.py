"""Poolers and heads of unlike forms are one graph, which answers as each form alone does."""

import msgspec
import numpy as np
import pytest

from polyhead import plan
from polyhead.engine.backends.graph import GraphBackend
from polyhead.engine.backends.reference import ReferenceBackend
from polyhead.engine.compile.slot_groups import GroupSlot, SlotGroup, merge_groups
from polyhead.plan import Embed, Head, Layers, Path, Pool
from polyhead.testing import tiny_batch, tiny_owned, tiny_trunk
from support.numpy_graphs import NumpyRuntime

TRUNK = tiny_trunk(layers=3, max_tokens=24)
RAGGED = (7, 3, 5, 2, 9, 4, 6, *range(3, 12), 5, 6, 4)


def path(name, *, positions, layers="last", of=1, hidden=0, width=3, separate=False, window=0):
    part = f"task:{name}"
    own = {"heads": 2, "part": part} if positions == "attention" else {}
    pool = Pool(layers=layers, of=of, positions=positions, **own)
    head = Head(kind="single_label", width=width, part=part, hidden=hidden, separate=separate, window=window)
    return Path(nodes=(Embed(trunk=TRUNK.digest), Layers(start=0, stop=3), pool, head))


PATHS = {
    "attention": path("attention", positions="attention", layers="mean", of=2, hidden=8),
    "wide": path("wide", positions="attention", layers="mean", of=2, hidden=8, width=40),
    "mean": path("mean", positions="mean"),
    "mean of two": path("mean of two", positions="mean", layers="mean", of=2, width=35),
    "first": path("first", positions="first"),
    "words": path("words", positions="tokens", layers="mean", of=2),
    "hidden words": path("hidden words", positions="tokens", layers="mean", of=2, hidden=8),
    "words and neighbours": path("words and neighbours", positions="tokens", layers="mean", of=2, window=1),
    "words and two on each side": path(
        "words and two on each side", positions="tokens", layers="mean", of=2, window=2, hidden=8
    ),
    "pair": path("pair", positions="mean", hidden=8, separate=True),
}
LOADED = tiny_owned(PATHS, TRUNK.architecture)


def without_words(batch):
    return msgspec.structs.replace(batch, words=np.full_like(batch.words, -1))


BATCHES = {
    "one text": tiny_batch(TRUNK, (9,)),
    "ragged": tiny_batch(TRUNK, RAGGED),
    "more than one call takes": tiny_batch(TRUNK, RAGGED * 4, words=5),
    "no word": without_words(tiny_batch(TRUNK, (7, 3))),
    "empty": tiny_batch(TRUNK, ()),
}


@pytest.mark.parametrize("name", BATCHES)
def test_one_graph_of_all_forms_answers_as_the_reference_does(name):
    batch, runtime = BATCHES[name], NumpyRuntime()
    backend = GraphBackend(runtime, TRUNK, LOADED)
    answers, wanted = (made.run(plan.merge(PATHS), batch) for made in (backend, ReferenceBackend(TRUNK, LOADED)))
    assert list(answers) == list(PATHS)
    for task, outputs in wanted.items():
        is_read = batch.words >= 0 if "words" in task else slice(None)
        assert answers[task].shape == outputs.shape
        np.testing.assert_allclose(answers[task][is_read], outputs[is_read], atol=1e-5, err_msg=task)
    if len(batch.ids):
        (graph,) = [label for label in runtime.compiled if "heads" in label]
        assert all(name in graph for name in PATHS)


def test_a_part_of_the_tasks_has_the_numbers_of_all():
    backend, batch = GraphBackend(NumpyRuntime(), TRUNK, LOADED), BATCHES["ragged"]
    every = backend.run(plan.merge(PATHS), batch)
    for names in (["mean"], ["words", "wide"], ["pair"], [name for name in PATHS if name != "first"]):
        answers = backend.run(plan.merge({name: PATHS[name] for name in names}), batch)
        assert list(answers) == names
        for name, outputs in answers.items():
            is_read = batch.words >= 0 if "words" in name else slice(None)
            np.testing.assert_allclose(outputs[is_read], every[name][is_read], atol=1e-6)


def test_in_deterministic_mode_every_form_is_a_graph_of_its_own():
    backend = GraphBackend(NumpyRuntime(), TRUNK, LOADED, deterministic=True)
    units = backend._loaded.arranged.units
    assert len(units) == len(backend._loaded.arranged.groups) > 4 and all(len(unit) == 1 for unit in units)


def group(form, *members):
    return SlotGroup(form, tuple(GroupSlot(member, ((member, 1),)) for member in members))


def test_groups_are_one_as_far_as_they_may_be():
    a, b, c = group("a", "x", "y"), group("b", "z"), group("c", "u", "v")
    units = merge_groups([a, b, c], (), may_be_one=lambda groups: sum(len(g.slots) for g in groups) < 4)
    assert units == ((a, b), (c,))
    gone = SlotGroup("a", (GroupSlot("x", (("x", 1),)), GroupSlot(None, (("y", 1),))))
    assert merge_groups([gone, c], units, may_be_one=lambda groups: True) == ((gone, b.emptied()), (c,))
    new = group("a", "x", "w")
    assert merge_groups([new, c], units, may_be_one=lambda groups: sum(len(g.slots) for g in groups) < 4) == (
        (new,),
        (c,),
    )
