"""A candidate in the shadow answers a share of requests unseen, is compared, and touches no answer."""

import asyncio
import random

import msgspec
import numpy as np
import pytest

from polyhead.bundle.read import Bundle
from polyhead.bundle.remove import remove_tasks
from polyhead.certify import verify
from polyhead.engine.backends.reference import ReferenceBackend
from polyhead.serve.settings import ServeSettings
from polyhead.serve.shadow import FAILURES, FLIPS, difference_of
from polyhead.tasks.agreement import same_answer, wilson
from support.admin_server import (
    ADMIN,
    TASKS,
    TEXTS,
    add,
    asked,
    beside,
    draft,
    in_a_thread,
    labelled,
    lines,
    make,
    served,
    sha,
    upload,
)
from support.loopback_server import LONG


@pytest.fixture
def root(tmp_path):
    return make(tmp_path / "b", "mood", "topics", "urgency", "names")


async def state(client, name="mood", query=""):
    response = await client.get(f"/v1/tasks/{name}/shadow{query}")
    assert response.status_code == 200, response.text
    return response.json()


async def put(client, content, name="mood", share=1.0, status=201):
    response = await client.put(f"/v1/tasks/{name}/shadow?share={share}", content=content)
    assert response.status_code == status, response.text
    return response.json()


async def settle(service):
    await asyncio.to_thread(service.hidden_tasks[-1].settle)


@pytest.mark.slow
def test_callers_see_nothing_of_a_candidate_and_its_flips_are_those_of_its_own_answers(root, tmp_path):
    texts = [f"{text} {number}" for number in range(8) for text in TEXTS]

    async def scenario():
        async with served(root) as (client, service):
            before = await client.post("/v1/predict", json={"inputs": texts})
            listed = (await client.get("/v1/tasks")).json()
            begun = await put(client, upload(tmp_path, "mood", 6))
            assert begun["compared"] == 0 and begun["agreement"] is None and begun["share"] == 1.0
            assert begun["version"] == "v0001" and begun["cost"]["milliseconds"] >= 0
            after = await client.post("/v1/predict", json={"inputs": texts})
            assert after.content == before.content and (await client.get("/v1/tasks")).json() == listed
            await settle(service)
            told = await state(client)
            hidden = service.hidden_tasks[-1].candidates["mood"].hidden
            unseen = await client.post("/v1/predict", json={"inputs": texts, "tasks": [hidden]})
            assert unseen.status_code == 404 and hidden not in unseen.json()["error"]["allowed"]
            await client.post("/v1/tasks/mood/shadow/promote")
            promoted = [each["mood"] for each in (await asked(client, *texts))[0]]
        live = [result["answers"]["mood"] for result in before.json()["results"]]
        flips = [n for n in range(len(texts)) if live[n]["label"] != promoted[n]["label"]]
        assert told["compared"] == len(texts) == told["flips"] + round(told["agreement"] * len(texts))
        assert told["flips"] == len(flips) > 0 and told["version"] == "v0001"
        assert {flip["id"] for flip in told["newest_flips"]} == {sha(texts[n].encode()) for n in flips}
        assert all(set(flip) == {"id", "before", "after", "difference"} for flip in told["newest_flips"])
        low, high = told["interval"]
        assert 0 <= low <= told["agreement"] <= high <= 1
        apart = [abs(a["scores"]["good"] - b["scores"]["good"]) for a, b in zip(live, promoted, strict=True)]
        assert told["largest_difference"] == pytest.approx(max(apart), abs=1e-6)
        assert told["mean_difference"] == pytest.approx(sum(apart) / len(apart), abs=1e-6)

    asyncio.run(scenario())


def test_promoting_makes_the_certified_change_and_dropping_forgets(root, tmp_path):
    async def scenario():
        async with served(root) as (client, service):
            content = upload(tmp_path, "mood", 6)
            assert (await client.get("/v1/tasks/mood/shadow")).status_code == 404
            await put(client, content)
            assert len(beside(root)) == 1, "the upload waits beside the bundle"
            answer = (await client.post("/v1/tasks/mood/shadow/promote")).json()
            assert (answer["before"], answer["after"]) == ("v0001", "v0002")
            assert answer["certificate"]["operation"] == "update" and lines(root)["mood"] == "v0002"
            assert (await client.get("/v1/tasks/mood/shadow")).status_code == 404 and beside(root) == []
            await put(client, upload(tmp_path, "mood", 7))
            await put(client, upload(tmp_path, "mood", 8))
            assert len(beside(root)) == 1 and len(service.loaded.hidden) == 2, "one takes the place of the other"
            assert (await client.delete("/v1/tasks/mood/shadow")).status_code == 200
            assert beside(root) == [] and len(service.loaded.hidden) == 1
            assert (await client.delete("/v1/tasks/mood/shadow")).status_code == 404
            assert lines(root)["mood"] == "v0002"
            await put(client, upload(tmp_path, "mood", 9))
        assert beside(root) == [] and verify(root) == []

    asyncio.run(scenario())


@pytest.mark.slow
def test_a_candidate_that_is_being_promoted_keeps_its_files(root, tmp_path):
    """Dropping it, another candidate and a second promotion are refused meanwhile, also once the caller hung up."""

    async def scenario():
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def slow(order):
            begun.set()
            await go_on.wait()
            return await in_a_thread(order)

        async with served(root, make=slow) as (client, _):
            await put(client, upload(tmp_path, "mood", 6))
            first = asyncio.create_task(client.post("/v1/tasks/mood/shadow/promote"))
            await begun.wait()
            for hangs_up in (False, True):
                requests = [
                    client.delete("/v1/tasks/mood/shadow"),
                    client.put("/v1/tasks/mood/shadow", content=upload(tmp_path, "mood", 7)),
                    client.post("/v1/tasks/mood/shadow/promote"),
                ]
                for request in requests:
                    response = await request
                    assert response.status_code == 409 and "is being promoted" in response.json()["error"]["message"]
                if not hangs_up:
                    first.cancel()
                    await asyncio.gather(first, return_exceptions=True)
            assert len(beside(root)) == 1
            go_on.set()
            while lines(root)["mood"] == "v0001":
                await asyncio.sleep(0.01)
        assert lines(root)["mood"] == "v0002" and beside(root) == [] and verify(root) == []

    asyncio.run(scenario())


@pytest.mark.parametrize("is_outside", [False, True], ids=["by this server", "by another program"])
def test_a_candidate_goes_with_its_task(root, tmp_path, is_outside):
    async def scenario():
        async with served(root) as (client, service):
            for name in ("mood", "topics"):
                await put(client, upload(tmp_path, name, 6), name)
            if is_outside:
                remove_tasks(root, ["mood"])
                await service.changes.take()
            else:
                assert (await client.delete("/v1/tasks/mood")).status_code == 200
            assert list(service.hidden_tasks[-1].candidates) == ["topics"]
            add(root, "mood", 7)
            await service.changes.take()
            while len(beside(root)) > 1:
                await asyncio.sleep(0.01)
            assert len(service.loaded.hidden) == 2
            told = await client.get("/v1/tasks/mood/shadow")
            assert told.status_code == 404 and "has no candidate" in told.json()["error"]["message"]
            assert (await state(client, "topics"))["is_asked"]
        assert beside(root) == []

    asyncio.run(scenario())


def test_a_candidate_whose_task_is_removed_while_it_comes_is_refused(root, tmp_path):
    content = upload(tmp_path, "mood", 6)

    async def scenario():
        async with served(root) as (client, service):

            async def parts():
                yield content[:1000]
                remove_tasks(root, ["mood"])
                await service.changes.take()
                yield content[1000:]

            told = await put(client, parts(), status=404)
            assert "'mood'" in told["error"]["message"] and beside(root) == [] and len(service.loaded.hidden) == 1

    asyncio.run(scenario())


def test_a_candidate_that_fails_touches_no_answer_and_is_asked_no_more(root, tmp_path, monkeypatch):
    async def scenario():
        async with served(root) as (client, service):
            before, versions = await asked(client)
            await put(client, upload(tmp_path, "mood", 6))
            hidden = service.hidden_tasks[-1].candidates["mood"].hidden
            headed, calls = ReferenceBackend._headed, []

            def failing(self, name, features):
                if name == hidden:
                    calls.append(name)
                    raise ValueError("no such head")
                return headed(self, name, features)

            monkeypatch.setattr(ReferenceBackend, "_headed", failing)
            for _ in range(FAILURES + 2):
                response = await client.post("/v1/predict", json={"inputs": TEXTS})
                results = response.json()["results"]
                assert [result["answers"] for result in results] == before and response.status_code == 200
                assert all("failed" not in result and "late" not in result for result in results)
                assert hidden not in response.text
            told = await state(client)
            assert told["is_asked"] is False and told["failed"] >= FAILURES and "no such head" in told["failure"]
            assert hidden not in str(told) and told["compared"] == 0
            count = len(calls)
            assert (await asked(client))[1] == versions and len(calls) == count

    asyncio.run(scenario())


@pytest.mark.parametrize("live, candidate", [("windows", "cut"), ("cut", "windows")])
def test_a_candidate_that_reads_long_texts_otherwise_changes_no_receipt(tmp_path, live, candidate):
    """A server that refuses to cut texts refuses none for the candidate's sake."""
    by_way = {way: msgspec.structs.replace(TASKS["mood"], long_texts=way) for way in (live, candidate)}
    root = make(tmp_path / "b")
    add(root, "mood", 1, task=by_way[live])
    settings = msgspec.structs.replace(ADMIN, long_texts="refuse" if live == "windows" else "cut")

    async def scenario():
        async with served(root, settings) as (client, service):
            before = await client.post("/v1/predict", json={"inputs": [LONG, "good"]})
            await put(client, upload(tmp_path, "mood", 6, task=by_way[candidate]))
            after = await client.post("/v1/predict", json={"inputs": [LONG, "good"]})
            assert after.json() == before.json() and after.status_code == 200
            await settle(service)
            assert (await state(client))["compared"] == 2

    asyncio.run(scenario())


def test_a_candidate_without_numbers_is_refused(root, tmp_path):
    arrays = {name: np.full_like(array, 3e38) for name, array in draft("mood", 5).arrays.items()}

    async def scenario():
        async with served(root) as (client, service):
            with np.errstate(all="ignore"):
                told = await put(client, upload(tmp_path, "mood", 6, arrays=arrays), status=422)
            assert "finite" in told["error"]["message"] and "shadow-" not in str(told)
            assert beside(root) == [] and len(service.loaded.hidden) == 1

    asyncio.run(scenario())


def test_a_share_of_requests_sees_it(root, tmp_path):
    async def scenario():
        async with served(root) as (client, service):
            await put(client, upload(tmp_path, "mood", 6), share=0.25)
            service.hidden_tasks[-1]._chance = random.Random(5)
            for _ in range(80):
                await asked(client, "good", tasks=["mood"])
            await asked(client, "good", tasks=["topics"])
            await settle(service)
            chance = random.Random(5)
            expected = sum(chance.random() < 0.25 for _ in range(80))
            assert (await state(client))["compared"] == expected > 5

    asyncio.run(scenario())


def test_texts_of_flips_are_shown_where_they_are_asked_for_and_memory_is_bounded(root, tmp_path):
    async def scenario():
        async with served(root) as (client, service):
            await put(client, upload(tmp_path, "mood", 6))
            texts = [f"{text} {number}" for number in range(150) for text in TEXTS]
            await asked(client, *texts, tasks=["mood"])
            await settle(service)
            told = await state(client)
            assert told["flips"] > FLIPS == len(told["newest_flips"]) and "texts" not in told["newest_flips"][0]
            shown = (await state(client, query="?texts=true"))["newest_flips"]
            assert all(sha(flip["texts"][0].encode()) == flip["id"] for flip in shown)
            candidate = service.hidden_tasks[-1].candidates["mood"]
            live = {"label": "bad", "scores": {"bad": 1.0, "good": 0.0}}
            for output in ([9.0, -9.0], [-9.0, 9.0]):
                candidate.compare(("v0001", None), live, np.array(output, np.float32), ("x" * 10**5,), None)
            assert len(candidate.state(has_texts=True).newest_flips[0].texts[0]) == 2000

    asyncio.run(scenario())


@pytest.mark.slow
@pytest.mark.parametrize("is_removed", [False, True], ids=["replaced", "removed, and added by the same name"])
def test_a_change_of_the_live_task_begins_the_count_anew(root, tmp_path, is_removed):
    """A task that was removed and added was compared together with the one before: both are v0001."""

    async def scenario():
        async with served(root) as (client, service):
            await put(client, upload(tmp_path, "mood", 6))
            await asked(client)
            await settle(service)
            if is_removed:
                remove_tasks(root, ["mood"])
            add(root, "mood", 7, replace=not is_removed)
            await service.changes.take()
            assert len(service.loaded.hidden) == 2, "a change of the bundle forgets no candidate"
            await asked(client, "good")
            await settle(service)
            told = await state(client)
            assert (told["version"], told["compared"]) == ("v0001" if is_removed else "v0002", 1)

    asyncio.run(scenario())


@pytest.mark.parametrize("name", ["topics", "urgency", "names"])
def test_every_kind_is_compared_by_its_answers(root, tmp_path, name):
    async def scenario():
        async with served(root) as (client, service):
            live = Bundle.open(root)
            same = upload(tmp_path, name, {"topics": 1, "urgency": 2, "names": 3}[name])
            assert live.record(name).arrays == (await put(client, same, name))["digest"]
            await asked(client)
            await settle(service)
            told = await state(client, name)
            assert (told["compared"], told["flips"], told["agreement"]) == (4, 0, 1.0)
            assert told["largest_difference"] in (None, 0.0)

    asyncio.run(scenario())


def test_streams_words_and_pairs_are_left_as_they_are(tmp_path):
    root = make(tmp_path / "b", "mood", "same")

    async def scenario():
        async with served(root) as (client, service):
            await put(client, upload(tmp_path, "mood", 6))
            lines = (await client.post("/v1/predict/stream", json={"inputs": "good"})).text
            assert "shadow-" not in lines and '"task":"mood"' in lines
            mixed = ["good", {"text": "a b", "text_b": "c"}]
            response = await client.post("/v1/predict", json={"inputs": mixed})
            assert "shadow-" not in response.text and response.json()["results"][1]["skipped"].keys() == {"mood"}
            await settle(service)
            assert (await state(client))["compared"] == 1

    asyncio.run(scenario())


def test_added_flops_are_those_of_its_own_path_at_the_probes_length(root, tmp_path):
    async def scenario():
        async with served(root) as (client, service):
            told = (await put(client, upload(tmp_path, "mood", 6)))["cost"]
            results = (await client.post("/v1/predict", json={"inputs": TEXTS})).json()["results"]
            tokens = round(sum(result["receipt"]["tokens"] for result in results) / len(TEXTS))
            assert told["texts"] == len(TEXTS) and told["flops"] == service.loaded.flops(("mood",), tokens)["mood"] > 0
            assert -1000 < told["milliseconds"] < 1000

    asyncio.run(scenario())


def test_what_cannot_have_a_candidate_is_said(root, tmp_path):
    async def scenario():
        async with served(root) as (client, _):
            content = upload(tmp_path, "reply", 6, task=labelled("reply", "a", "b"))
            await put(client, content, "reply", status=404)
            await put(client, content, "mood", status=422)
            for share in ("0", "1.5", "x", "nan"):
                await put(client, content, "mood", share=share, status=422)
            assert beside(root) == []
        several = ServeSettings(admin=True, workers=2)
        async with served(root, several) as (client, _):
            told = await put(client, upload(tmp_path, "mood", 6), status=501)
            assert "--workers" in told["error"]["do"]

    asyncio.run(scenario())


def test_the_interval_is_wilsons_by_hand():
    low, high = wilson(8, 10)  # by hand: (0.8 + 0.19207) / 1.38415 -+ 1.95996 / 1.38415 * sqrt(0.016 + 0.0096036)
    assert (low, high) == pytest.approx((0.49016, 0.94332), abs=1e-4)
    assert wilson(10, 10)[1] == pytest.approx(1.0) and wilson(0, 10)[0] == 0.0


def test_answers_are_equal_by_their_kind():
    mood, urgency = TASKS["mood"], TASKS["urgency"]
    assert same_answer(mood, {"label": "bad", "scores": {"bad": 0.9}}, {"label": "bad", "scores": {"bad": 0.6}})
    assert not same_answer(mood, {"label": "bad"}, {"label": "good"})
    assert same_answer(urgency, {"value": 0.50}, {"value": 0.505}) and not same_answer(
        urgency, {"value": 0.5}, {"value": 0.52}
    )
    assert difference_of({"value": 0.5}, {"value": 0.75}) == 0.25
    assert difference_of({"scores": {"a": 0.5, "b": 0.5}}, {"scores": {"a": 0.4, "c": 0.6}}) == pytest.approx(0.1)
    assert difference_of({"spans": []}, {"spans": []}) is None
