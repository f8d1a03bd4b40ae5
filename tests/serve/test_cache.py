"""The cache: what it answers is what the encoder would, of the versions of now, within its bytes."""

import asyncio
import itertools
import json
import threading

import msgspec
import numpy as np
import pytest
from starlette.testclient import TestClient

from polyhead.bundle.create import write_bundle
from polyhead.engine.inputs import Passage
from polyhead.plan import Path, Pool, Prompt
from polyhead.serve.app import application
from polyhead.serve.cache import OVERHEAD
from polyhead.serve.exchange import versions_served
from polyhead.serve.settings import ServeSettings
from polyhead.tasks.task import Task
from polyhead.testing import tiny_path, tiny_tasks, tiny_trunk
from polyhead.testing.strategies import add_tiny
from polyhead.text.question import Question
from support import admin_server
from support.loopback_server import LONG, TASKS, TEXT_TASKS, replace_task, service_of, tiny_root, until
from support.tiny_project import messages

CACHED = ServeSettings(cache_bytes=2**20)
INPUTS = [
    ("good lamp",),
    ("good", "lamp"),
    Passage(question="where is it", context="the lamp is in the box"),
    Question(text="which one", options=("good", "lamp")),
    (LONG,),
]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tiny_root(tmp_path_factory.mktemp("cache") / "b")


def asking(service, *calls):
    """The tickets of these calls, one after another; each is inputs and tasks, or a function to be called."""

    async def run():
        await service.start()
        try:
            tickets = []
            for call in calls:
                if callable(call):
                    call()
                else:
                    inputs, tasks, *more = call
                    tickets.append(await service.ask(inputs, tasks, **(more[0] if more else {})))
            return tickets
        finally:
            await service.stop()

    return asyncio.run(run())


def answers(ticket):
    return [(result.answers, result.skipped) for result in ticket.results]


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_cached_answer_is_the_one_that_was_computed(root, deterministic):
    service = service_of(root, CACHED, deterministic=deterministic)
    first, again = asking(service, (INPUTS, TASKS), (INPUTS, TASKS))
    assert answers(again) == answers(first)
    assert (first.cached, again.cached) == (0, len(INPUTS))
    for computed, cached in zip(first.results, again.results, strict=True):
        assert (cached.receipt.passes, cached.receipt.layers) == (0, 0)
        assert cached.receipt.tokens == computed.receipt.tokens > 0
        assert cached.receipt.cut == computed.receipt.cut
    assert again.results[-1].receipt.cut > 0
    assert (service.cache.hits, service.cache.misses) == (len(INPUTS), len(INPUTS))
    assert versions_served(again) == versions_served(first)


def test_inputs_that_are_not_known_are_asked_alone_and_stand_in_their_place(root):
    texts = [(row["text"],) for row in messages(9)]
    whole = asking(service_of(root), (texts, TEXT_TASKS))[0]
    facts = []
    service = service_of(root, CACHED)
    service.observers.append(facts.append)
    _, mixed = asking(service, (texts[::2], TEXT_TASKS), (texts, TEXT_TASKS))
    assert mixed.cached == 5 and len(mixed.results) == 9
    assert sum(each.inputs for each in facts[-1:]) == 4
    for one, other in zip(whole.results, mixed.results, strict=True):
        _close(one.answers, other.answers)


def _close(one, other):
    """Equal but for rounding: batches differed."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            _close(one[key], other[key])
    elif isinstance(one, list | tuple):
        for a, b in zip(one, other, strict=True):
            _close(a, b)
    elif isinstance(one, float):
        assert other == pytest.approx(one, abs=1e-5)
    else:
        assert one == other


def test_another_set_of_tasks_is_a_hit_only_where_each_is_known(root):
    service = service_of(root, CACHED)
    texts = [("good lamp",)]
    _, fewer, more, again = asking(
        service, (texts, ["mood", "topics"]), (texts, ["topics"]), (texts, ["urgency", "mood"]), (texts, TEXT_TASKS[:3])
    )
    assert (fewer.cached, more.cached, again.cached) == (1, 0, 1)
    assert set(fewer.results[0].answers) == {"topics"} and set(again.results[0].answers) == set(TEXT_TASKS[:3])


@pytest.fixture(scope="module")
def both_ways(tmp_path_factory):
    """A bundle of which `mood` cuts long texts, and `topics` reads them in windows."""
    root = admin_server.make(tmp_path_factory.mktemp("ways") / "b", "mood")
    windowed = msgspec.structs.replace(admin_server.TASKS["topics"], long_texts="windows")
    admin_server.add(root, "topics", 5, task=windowed)
    return root


def test_a_receipt_says_how_the_asked_tasks_read_a_text_whatever_was_asked_before(both_ways):
    """Each set of tasks in every order, each order with a long text of its own."""

    def read(service):
        sets = (["mood"], ["topics"], ["mood", "topics"], ["topics", service.vectors])
        orders = enumerate(itertools.permutations(sets))
        calls = [([(f"{LONG} {number}",)], tasks) for number, order in orders for tasks in (*order, *order)]
        receipts = [ticket.results[0].receipt for ticket in asking(service, *calls)]
        return [(receipt.tokens, receipt.cut, receipt.windows) for receipt in receipts]

    service = service_of(both_ways, CACHED)
    known, computed = read(service), read(service_of(both_ways))
    assert known == computed and service.cache.hits >= len(known) // 2
    assert {(cut > 0, windows > 1) for _, cut, windows in known} == {(True, False), (False, True), (True, True)}


def test_a_receipt_says_how_many_tokens_the_asked_tasks_read(tmp_path):
    """A task behind shifted prompts reads 42 tokens of 48: what it cut was then said of a task that reads all."""
    trunk, by_name = tiny_trunk(), {task.name: task for task in tiny_tasks()}
    write_bundle(tmp_path, trunk)
    path = tiny_path(by_name["topics"], trunk, pool=Pool())
    prompts = (Prompt(part=path.head.part, rows=6),)
    shifted = Path(nodes=(msgspec.structs.replace(path.embed, prompts=prompts, shift=True), *path.nodes[1:]))
    add_tiny(tmp_path, trunk, by_name["mood"], tiny_path(by_name["mood"], trunk, pool=Pool()), seed=1)
    add_tiny(tmp_path, trunk, by_name["topics"], shifted, seed=2)
    calls = [([("good " * 45,)], tasks) for tasks in (["mood"], ["topics"], ["mood"], ["mood", "topics"], ["topics"])]
    known, computed = (
        [(ticket.results[0].receipt.tokens, ticket.results[0].receipt.cut) for ticket in asking(service, *calls)]
        for service in (service_of(tmp_path, CACHED), service_of(tmp_path))
    )
    assert known == computed and computed[:2] == [(47, 0), (42, 5)]


def test_a_receipt_says_in_how_many_passes_the_asked_tasks_read_a_pair(tmp_path):
    """An imported span task shares the pass of others, but for those that read words at their first token alone."""
    trunk = tiny_trunk()
    write_bundle(tmp_path / "b", trunk)
    by_name = {task.name: task for task in tiny_tasks()}
    imported = Task(name="imported", kind="span", null_answers=True, ends="last")
    for seed, task in enumerate((by_name["same"], by_name["where"], imported)):
        add_tiny(tmp_path / "b", trunk, task, tiny_path(task, trunk, pool=Pool()), seed=seed)
    pair = [("who was broken?", "my lamp was broken")]
    calls = [(pair, tasks) for tasks in (["same", "where", "imported"], ["same", "imported"])] * 2
    known, computed = (
        [ticket.results[0].receipt.tokens for ticket in asking(service_of(tmp_path / "b", settings), *calls)]
        for settings in (CACHED, ServeSettings())
    )
    assert known == computed and known[0] == 2 * known[1]


def test_a_long_text_is_refused_for_tasks_that_cut_it_whatever_is_known_of_others(both_ways):
    service = service_of(both_ways, ServeSettings(cache_bytes=2**20, long_texts="refuse"))
    asked = [["mood"], ["topics"], ["mood"], ["mood", "topics"], ["topics"]]
    with TestClient(application(service)) as client:
        bodies = [{"inputs": [LONG], "tasks": tasks} for tasks in asked]
        assert [client.post("/v1/predict", json=body).status_code for body in bodies] == [422, 200, 422, 422, 200]


def test_vectors_are_kept_beside_answers_and_are_those_of_the_pass(root):
    service = service_of(root, CACHED)
    texts, vector = [("good lamp",), ("sad phone",)], service.vectors
    plain, first, again = asking(service, (texts, ["mood"]), (texts, ["mood", vector]), (texts, [vector, "mood"]))
    assert (plain.cached, first.cached, again.cached) == (0, 0, 2)
    for computed, cached in zip(first.outputs, again.outputs, strict=True):
        np.testing.assert_array_equal(cached[vector], computed[vector])
        with pytest.raises(ValueError, match="read-only"):
            cached[vector][:] = 0
    assert plain.outputs == [{}, {}]


def test_different_inputs_are_told_apart(root):
    words = np.array([[0, 4], [5, 9]])
    service = service_of(root, CACHED)
    alike = [
        [("good lamp",)],
        [("good", " lamp")],
        [("good ", "lamp")],
        [Passage(question="good ", context="lamp")],
        [Question(text="good", context="", options=("lamp", "x"))],
        [Question(text="good", context="lamp", options=("", "x"))],
        [("good\ud800 lamp",)],
    ]
    tickets = asking(service, *((inputs, TASKS) for inputs in alike), (alike[0], TASKS, {"words": [words]}))
    assert [ticket.cached for ticket in tickets] == [0] * 8


def test_an_answer_is_never_of_an_earlier_version(tmp_path):
    root = tiny_root(tmp_path / "b")
    service = service_of(root, CACHED)
    texts = [("good lamp",)]

    def change():
        replace_task(root, "mood", seed=99)
        service.session.refresh()

    before, after, again = asking(service, (texts, TEXT_TASKS), change, (texts, TEXT_TASKS), (texts, TEXT_TASKS))
    fresh = asking(service_of(root), (texts, TEXT_TASKS))[0]
    assert (after.cached, again.cached) == (0, 1)
    assert answers(after) == answers(again) != answers(before)
    _close(again.results[0].answers, fresh.results[0].answers)
    assert versions_served(again)["mood"].version == "v0002"
    other = {name: answer for name, answer in before.results[0].answers.items() if name != "mood"}
    _close({name: again.results[0].answers[name] for name in other}, other)


def test_a_change_between_the_look_and_the_queue_touches_no_request_that_has_begun(tmp_path):
    """Two texts are asked, one of them cached; the task is replaced after the cache was looked at."""
    root = tiny_root(tmp_path / "b")
    service = service_of(root, CACHED)
    known, other = ("good lamp",), ("sad phone",)
    submit = service._submitted

    async def late(inputs, **more):
        if len(inputs) == 1 and inputs[0] == other and not changed:
            changed.append(True)
            replace_task(root, "mood", seed=99)
            service.session.refresh()
        return await submit(inputs, **more)

    changed = []
    before = asking(service_of(root), ([known, other], ["mood"]))[0]
    service._submitted = late
    _, both = asking(service, ([known], ["mood"]), ([known, other], ["mood"]))
    assert changed and both.cached == 1
    assert versions_served(both)["mood"].version == "v0001"
    for one, two in zip(both.results, before.results, strict=True):
        _close(one.answers, two.answers)


def test_tasks_that_are_not_as_the_bundle_has_them_are_always_computed(root):
    service = service_of(root, CACHED)
    record = service.session.records["mood"]
    arrays = dict(service.session.bundle.part("mood"))

    def attach():
        changed = {name: array * 0 for name, array in arrays.items()}
        service.session.attach(record.__class__(task=record.task, path=record.path, trunk=record.trunk), changed)

    texts = [("good lamp",)]
    _, attached, again = asking(service, (texts, ["mood"]), attach, (texts, ["mood"]), (texts, ["mood"]))
    assert (attached.cached, again.cached, len(service.cache)) == (0, 0, 1)


def test_what_is_late_or_empty_is_not_kept(root):
    service = service_of(root, CACHED)
    texts = [("good lamp",), ("  ",)]
    late, whole, again = asking(service, (texts, ["mood"], {"deadline": 0}), (texts, ["mood"]), ([("  ",)], ["mood"]))
    assert late.results[0].late == ("mood",) and late.results[1].skipped
    assert whole.results[0].answers and whole.cached == again.cached == 0
    assert len(service.cache) == 1


def test_bytes_are_bounded_and_the_least_used_goes_first(root):
    limit = 8 * OVERHEAD + 1200
    service = service_of(root, ServeSettings(cache_bytes=limit))
    texts = [(row["text"],) for row in messages(40)]
    calls = []
    for text in texts:
        calls += [([texts[0]], ["mood"]), ([text], ["mood"])]
    tickets = asking(service, *calls)
    cache = service.cache
    assert 0 < cache.bytes <= limit and 2 < len(cache) < 10
    assert cache.bytes == sum(entry.size for entry in cache._entries.values())
    assert all(ticket.cached == 1 for ticket in tickets[2::2])  # what is asked often stays
    assert cache.dropped == len(texts) - len(cache)


def test_an_entry_larger_than_the_cache_is_not_kept(root):
    service = service_of(root, ServeSettings(cache_bytes=OVERHEAD))
    first, again = asking(service, ([("good lamp",)], ["mood"]), ([("good lamp",)], ["mood"]))
    assert answers(first) == answers(again) and again.cached == 0
    assert len(service.cache) == service.cache.bytes == 0


def test_a_stream_is_told_from_the_cache_too(root):
    service = service_of(root, CACHED)
    with TestClient(application(service)) as client:

        def lines(inputs):
            body = {"inputs": inputs, "tasks": ["mood", "topics"]}
            return [json.loads(line) for line in client.post("/v1/predict/stream", json=body).text.splitlines()]

        first, again, mixed = lines(["good lamp"]), lines(["good lamp"]), lines(["sad phone", "good lamp"])
    by_task = {line["task"]: line["answers"] for line in first[:-1]}
    assert {line["task"]: line["answers"] for line in again[:-1]} == by_task
    assert again[-1]["receipt"] == first[-1]["receipt"] | {"passes": 0, "layers": 0, "cached": 1}
    assert mixed[-1]["receipt"]["cached"] == 0 and mixed[-1]["receipt"]["passes"] == 2  # all or none


def test_hits_stand_in_the_counts_and_in_the_receipt(root):
    service = service_of(root, CACHED)
    with TestClient(application(service)) as client:
        body = {"inputs": ["good lamp", "sad phone"], "tasks": ["mood"]}
        receipts = [client.post("/v1/predict", json=body).json()["receipt"] for _ in range(2)]
        assert [receipt["cached"] for receipt in receipts] == [0, 2]
        until(lambda: service.queue.is_idle)
        text = client.get("/metrics").text
    assert "polyhead_cache_hits_total 2.0" in text and "polyhead_cache_misses_total 2.0" in text
    assert "polyhead_cache_inputs 2.0" in text
    assert 'polyhead_task_answers_total{task="mood",version="v0001"} 4.0' in text


def test_without_being_asked_for_nothing_is_kept(root):
    service = service_of(root)
    first, again = asking(service, ([("good lamp",)], ["mood"]), ([("good lamp",)], ["mood"]))
    assert service.cache is None and again.results[0].receipt.passes == 1 and first.cached == again.cached == 0


@pytest.mark.slow
def test_it_is_right_while_many_ask_and_tasks_change(tmp_path):
    """Versions alternate while texts are asked again and again: each answer is its version's own."""
    root = tiny_root(tmp_path / "b")
    service = service_of(root, CACHED)
    texts = [(row["text"],) for row in messages(6)]
    seen, stop = [], threading.Event()

    def change():
        seed = 50
        while not stop.is_set():
            replace_task(root, "mood", seed=seed)
            service.session.refresh()
            seed += 1

    async def run():
        await service.start()
        thread = threading.Thread(target=change)
        thread.start()
        try:
            for number in itertools.count():
                if number >= 120 and len({version for version, _, _ in seen}) > 2:
                    break
                chosen = [texts[number % 6], texts[number % 5]]
                ticket = await service.ask(chosen, ["mood"])
                version = versions_served(ticket)["mood"].digest
                seen.extend(
                    (version, text, json.dumps(result.answers))
                    for text, result in zip(chosen, ticket.results, strict=True)
                )
        finally:
            stop.set()
            thread.join()
            await service.stop()

    asyncio.run(run())
    by_version = {}
    for version, text, answer in seen:
        scores = by_version.setdefault((version, text), json.loads(answer))
        _close(scores, json.loads(answer))
    assert len({version for version, _, _ in seen}) > 2 and service.cache.hits > 0
