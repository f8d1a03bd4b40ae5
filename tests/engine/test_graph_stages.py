"""Answers come as soon as they are known, and what fails for one task fails for no other."""

import numpy as np
import pytest

from polyhead import plan
from polyhead.engine.backends.base import TokenBatch
from polyhead.engine.backends.graph import GraphBackend
from polyhead.engine.backends.reference import ReferenceBackend
from polyhead.engine.compile import execution, heads, program
from polyhead.plan import Embed, Head, Layers, Path, Pool, Prompt, cost
from polyhead.testing import tiny_batch, tiny_owned, tiny_trunk
from polyhead.testing.tiny import prompted_path
from support.numpy_graphs import NumpyRuntime

TRUNK = tiny_trunk(layers=4, max_tokens=24)
BATCH = tiny_batch(TRUNK, (7, 3, 5))


def path(name, *layers, **pool):
    head = Head(kind="single_label", width=3, part=f"task:{name}")
    return Path(nodes=(Embed(trunk=TRUNK.digest), *layers, Pool(**pool), head))


def own(name, tap, stop=4):
    return Layers(start=tap, stop=stop, weights=f"task:{name}")


PROMPTS = [Prompt(part="task:mood", rows=2), Prompt(part="task:tone", rows=1)]
# In an order in which none of them comes.
PATHS = {
    "top": path("top", Layers(start=0, stop=4)),
    "middle": path("middle", Layers(start=0, stop=2), layers="mean", of=2),
    "long": path("long", Layers(start=0, stop=1), own("long", 1)),
    "short": path("short", Layers(start=0, stop=1), own("short", 1, 2)),
    "low": path("low", Layers(start=0, stop=1)),
    "twin": path("twin", Layers(start=0, stop=1), own("twin", 1)),
}
MERGED = plan.merge(PATHS)


def backend_of(paths=PATHS, **settings):
    runtime = NumpyRuntime()
    return GraphBackend(runtime, TRUNK, tiny_owned(paths, TRUNK.architecture), **settings), runtime


WANTED = ReferenceBackend(TRUNK, tiny_owned(PATHS, TRUNK.architecture)).run(MERGED, BATCH)


def assert_answers(found, names=PATHS):
    assert set(found) == set(names)
    for name, values in found.items():
        np.testing.assert_allclose(values, WANTED[name], atol=2e-5, err_msg=name)


@pytest.mark.parametrize("deterministic", [False, True], ids=["stacked", "deterministic"])
def test_what_needs_the_fewest_layers_comes_first(deterministic):
    backend, _ = backend_of(deterministic=deterministic)
    order, left, found = [], [], {}
    for stage in backend.stages(MERGED, BATCH):
        assert backend.layers_run + stage.layers_left == cost.layer_evaluations(MERGED)
        order += list(stage.outputs)
        left.append(stage.layers_left)
        found |= stage.outputs
        assert not stage.failed
    assert_answers(found)
    assert order[:2] == ["low", "middle"] or order[:2] == ["low", "short"]
    assert set(order[:4]) == {"low", "middle", "short", "top"}
    assert left == sorted(left, reverse=True) and left[0] == cost.layer_evaluations(MERGED) - 1 and left[-1] == 0


def test_layers_above_are_not_run_before_they_are_asked_for():
    backend, _ = backend_of()
    stages = backend.stages(MERGED, BATCH)
    assert list(next(stages).outputs) == ["low"]
    assert backend.layers_run == 1
    stages.close()
    assert backend.layers_run == 1


def test_poolers_and_heads_take_some_texts_after_others(monkeypatch):
    tasks = {
        "first": path("first", Layers(start=0, stop=2)),
        "attention": path(
            "attention",
            Layers(start=0, stop=4),
            positions="attention",
            layers="mean",
            of=2,
            heads=2,
            part="task:attention",
        ),
        "mean": path("mean", Layers(start=0, stop=4), positions="mean"),
        "words": path("words", Layers(start=0, stop=4), positions="tokens"),
        **{name: prompted_path(TRUNK, name, PROMPTS) for name in ("mood", "tone")},
    }
    batch = tiny_batch(TRUNK, (7, 3, 5, 2, 9, 4, 6, *range(3, 12), 5, 6, 4))  # 19 texts, 11 tokens at most
    merged = plan.merge(tasks)
    wanted = ReferenceBackend(TRUNK, tiny_owned(tasks, TRUNK.architecture)).run(merged, batch)
    sizes = []
    inner = program.Graph.__call__
    monkeypatch.setattr(execution, "TEXTS", (4, 8))
    monkeypatch.setattr(
        program.Graph,
        "__call__",
        lambda graph, given: sizes.append(given.get("keep", np.zeros(0)).shape) or inner(graph, given),
    )
    backend, _ = backend_of(tasks)
    found = backend.run(merged, batch)
    # Of 19 texts three are left, for which four are computed; the longest of each call have 9, 11 and 6 tokens.
    assert [size for size in sizes if len(size) == 2] == [(8, 12), (8, 12), (4, 6)]
    there, wanted_shape = batch.words >= 0, found["words"].shape[1:]
    assert not found["words"][~there].any()
    wanted["words"], found["words"] = wanted["words"][there], found["words"][there]
    for name, values in wanted.items():
        np.testing.assert_allclose(found[name], values, atol=2e-5, err_msg=name)
    wordless = backend.run(merged, tiny_batch(TRUNK, (2,)))["words"]  # as a text without words among others
    np.testing.assert_array_equal(wordless, np.zeros((1, *wanted_shape), np.float32))


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [execution.TEXTS, execution.WORDS], ids=["texts", "words"])
def test_pieces_take_each_once_in_few_calls_of_known_sizes(sizes):
    for count in range(1, 3 * sizes[-1]):
        pieces = list(execution._pieces(np.ones(count, np.int64), sizes))
        assert [one for start, stop, _ in pieces for one in range(start, stop)] == list(range(count))
        alone = {2} if (count, sizes) == (1, execution.TEXTS) else set()  # one text has a call of two rows
        assert all(stop - start <= room and room in alone.union(sizes) for start, stop, room in pieces)
        assert len(pieces) <= count // sizes[-1] + len(sizes)


def least(lengths, sizes):
    """The least time of all ways to cut these, the longest first, into calls of these sizes."""
    if not len(lengths):
        return 0
    rooms = [room for room in sizes if room == sizes[0] or room * lengths[0] <= execution.PLACES]
    return min(time(room, lengths[0], sizes) + least(lengths[room:], sizes) for room in rooms)


def time(room, positions, sizes):
    return execution.CALL * sizes[0] + room * (1 + positions / execution.POSITIONS)


@pytest.mark.parametrize("count", [1, 4, 31, 110, 146, 231])
def test_pieces_take_no_more_time_than_any_others(count):
    sizes = execution.TEXTS[1:]
    for seed in range(5):
        lengths = np.sort(np.random.default_rng(seed).choice([8, 16, 32, 64, 96, 512], size=count))[::-1]
        pieces = execution._pieces(lengths, sizes)
        found = sum(time(room, lengths[start:stop].max(), sizes) for start, stop, room in pieces)
        assert found == pytest.approx(least(lengths, sizes))


@pytest.mark.parametrize("side", [1, 5, 8, 128], ids="{} heads side by side".format)
@pytest.mark.parametrize("hidden", [0, 6])
def test_slots_side_by_side_answer_as_each_alone(monkeypatch, side, hidden):
    """Seven tasks of two heads; without a hidden layer, those of each of three widths stand in a graph of their own."""
    tasks = {}
    for number, width in enumerate((3, 40, 3, 70, 5, 40, 2)):
        name = f"n{number}"
        head = Head(kind="single_label", width=width, part=f"task:{name}", hidden=hidden)
        pool = Pool(positions="attention", heads=2, part=f"task:{name}")
        tasks[name] = Path(nodes=(Embed(trunk=TRUNK.digest), Layers(start=0, stop=1), pool, head))
    merged = plan.merge(tasks)
    wanted = ReferenceBackend(TRUNK, tiny_owned(tasks, TRUNK.architecture)).run(merged, BATCH)
    parts, attended = [], heads._attended
    monkeypatch.setattr(heads, "SIDE", side)
    monkeypatch.setattr(
        heads,
        "_attended",
        lambda ops, x, some, form, **how: parts.append(len(some)) or attended(ops, x, some, form, **how),
    )
    backend, _ = backend_of(tasks)
    found = backend.run(merged, BATCH)
    by_width = {1: [1] * 7, 5: [2, 2, 2, 1], 8: [4, 2, 1], 128: [4, 2, 1]}
    assert parts == ({1: [1] * 7, 5: [3, 3, 1], 8: [4, 3], 128: [7]} if hidden else by_width)[side]
    for name, values in wanted.items():
        np.testing.assert_allclose(found[name], values, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("lengths", [[512, *[3] * 400], [200] * 70, [64] * 130, [5000, 5000, 1]])
def test_pieces_of_long_texts_are_small(lengths):
    """One long text among short ones would have the room of as many long ones read."""
    lengths = np.array(lengths)
    pieces = list(execution._pieces(lengths, execution.TEXTS))
    assert [one for start, stop, _ in pieces for one in range(start, stop)] == list(range(len(lengths)))
    for start, stop, room in pieces:
        assert room * lengths[start:stop].max() <= execution.PLACES or room == execution.TEXTS[0]
    assert len(pieces) <= 2 + sum(lengths) // (execution.PLACES // 2) + len(lengths) // (execution.TEXTS[-1] // 2)


def test_others_may_run_between_two_stages():
    backend, _ = backend_of()
    other, found = tiny_batch(TRUNK, (9, 9, 2, 1), seed=3), {}
    for stage in backend.stages(MERGED, BATCH):
        found |= stage.outputs
        backend.run(MERGED, other)
    assert_answers(found)


def outcome(backend, merged=MERGED):
    found, failed = {}, {}
    for stage in backend.stages(merged, BATCH):
        assert not stage.outputs.keys() & found.keys()
        found |= stage.outputs
        failed |= stage.failed
    assert found.keys() | failed.keys() == set(merged.tasks) and not found.keys() & failed.keys()
    return found, failed


@pytest.mark.parametrize("deterministic", [False, True], ids=["stacked", "deterministic"])
@pytest.mark.parametrize(
    ("broken", "fails"),
    [
        ("heads of low", {"low"}),
        ("of task:long", {"long"}),
        ("task:long, task:twin", set()),
        ("of task:", {"long", "twin", "short"}),
        ("poolers", set(PATHS)),
    ],
)
def test_a_task_that_fails_takes_no_other_down(broken, fails, deterministic):
    backend, runtime = backend_of(deterministic=deterministic)
    runtime.broken = broken
    found, failed = outcome(backend)
    assert set(failed) == fails and all("cannot compile" in str(error) for error in failed.values())
    assert_answers(found, set(PATHS) - fails)
    if fails:
        with pytest.raises(RuntimeError, match="cannot compile"):
            backend.run(MERGED, BATCH)


def test_a_head_that_fails_when_it_runs_fails_alone_among_those_of_its_graph():
    """Only the graph of all three, and the one of `b` alone, refuse."""
    paths = {name: path(name, Layers(start=0, stop=2)) for name in ("a", "b", "c")}
    backend, runtime = backend_of(paths)
    runtime.broken = "b"
    found, failed = outcome(backend, plan.merge(paths))
    assert set(found) == {"a", "c"} and set(failed) == {"b"}


def test_a_trunk_that_fails_fails_for_all():
    backend, runtime = backend_of()
    runtime.broken = "of trunk"
    with pytest.raises(RuntimeError, match="cannot compile"):
        list(backend.stages(MERGED, BATCH))


def test_a_text_too_long_for_prompts_is_answered_by_tasks_without():
    """Twenty-two tokens and shifted positions behind three rows of a trunk with twenty-four."""
    prompted = prompted_path(TRUNK, "p", [Prompt(part="task:p", rows=3)], shift=True)
    paths = {"p": prompted, "low": PATHS["low"]}
    backend, _ = backend_of(paths)
    [*stages] = backend.stages(plan.merge(paths), tiny_batch(TRUNK, (22, 3)))
    assert {name for stage in stages for name in stage.outputs} == {"low"}
    assert "no positions" in str([stage.failed["p"] for stage in stages if stage.failed][0])


def test_no_text_is_one_stage():
    nothing = np.zeros((0, 1), np.int64)
    empty = TokenBatch(ids=nothing, mask=nothing.astype(bool), segments=nothing, words=nothing)
    [stage] = backend_of()[0].stages(MERGED, empty)
    assert {values.shape for values in stage.outputs.values()} == {(0, 3)} and stage.layers_left == 0


@pytest.mark.parametrize("width", [22, 24])
def test_padding_behind_prompts_may_lie_beyond_the_positions(width):
    """Twenty tokens and three prompt rows fit into twenty-four positions, whatever the width of the batch."""
    prompted = {"p": prompted_path(TRUNK, "p", [Prompt(part="task:p", rows=3)], shift=True)}
    backend, _ = backend_of(prompted)
    narrow, reference = tiny_batch(TRUNK, (20, 3)), ReferenceBackend(TRUNK, tiny_owned(prompted, TRUNK.architecture))
    columns = ((0, 0), (0, width - 20))
    wide = TokenBatch(
        ids=np.pad(narrow.ids, columns),
        mask=np.pad(narrow.mask, columns),
        segments=np.pad(narrow.segments, columns),
        words=narrow.words,
    )
    expected = reference.run(plan.merge(prompted), narrow)["p"]
    for runner in (backend, reference):
        np.testing.assert_allclose(runner.run(plan.merge(prompted), wide)["p"], expected, atol=1e-5, rtol=0)
