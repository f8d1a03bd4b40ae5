"""A set of bundles at one address: every route asks, tells and changes each task in its own bundle."""

import asyncio
import contextlib
import json

import httpx
import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from polyhead.bundle import write
from polyhead.engine.session import Session
from polyhead.errors import ConfigError, Overloaded
from polyhead.serve.app import application
from polyhead.serve.formats import admin as admin_format
from polyhead.serve.service import Service
from polyhead.serve.settings import Renamed, ServeSettings
from polyhead.serve.several import ServiceSet
from polyhead.tasks.calibration import Calibration, CalibrationChoice
from polyhead.tasks.task import Task
from polyhead.testing import tiny_trunk
from polyhead.values import few_digits
from support.admin_server import ADMIN, draft, in_a_thread, lines, upload
from support.bundle_sets import CHEAP, DEEP, EXACT, TEXTS, bundle_of, set_of, two_bundles

PAIR = {"text": "is the lamp good?", "text_b": "the lamp is late"}


@pytest.fixture
def bundles(tmp_path):
    return two_bundles(tmp_path)


@contextlib.asynccontextmanager
async def served(bundles, settings=ADMIN, **cascades):
    """A client of a server of the set in this process, and its service."""
    service = ServiceSet(set_of(bundles, **cascades), settings)
    original, admin_format.Admin = admin_format.Admin, lambda member: original(member, make=in_a_thread)
    try:
        app = application(service)
    finally:
        admin_format.Admin = original
    await service.start()
    try:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False, client=("127.0.0.1", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=60) as client:
            yield client, service
    finally:
        await service.stop()


def ask(bundles, work, settings=ADMIN, **cascades):
    """What `work` of a client and its service gives."""

    async def asked():
        async with served(bundles, settings, **cascades) as (client, service):
            return await work(client, service)

    return asyncio.run(asked())


async def predicted(client, inputs=TEXTS, **more):
    response = await client.post("/v1/predict", json={"inputs": inputs, **more})
    assert response.status_code == 200, response.text
    return response.json()


def alone(root, inputs=TEXTS, tasks=None):
    """The answers of a session of one bundle, as replies write them."""
    results = Session(root, **EXACT).predict(inputs, tasks=tasks)
    return [few_digits(json.loads(json.dumps(result.answers))) for result in results]


def test_a_request_is_answered_by_the_trunks_of_its_tasks(bundles):
    async def work(client, _):
        return await predicted(client), await predicted(client, tasks=["urgency"])

    both, one = ask(bundles, work, mood=2.0)
    cheap, deep = alone(bundles[0]), alone(bundles[1])
    for result, first, second in zip(both["results"], cheap, deep, strict=True):
        assert result["answers"] == {"urgency": first["urgency"], **second}
        assert result["receipt"]["bundles"] == {"mood": "deep", "urgency": "cheap", "topics": "deep"}
        assert (result["receipt"]["passes"], result["receipt"]["layers"]) == (2, 6)
    assert both["bundles"] == {"cheap": CHEAP.digest, "deep": DEEP.digest}
    assert both["receipt"]["layers"] == 6 * len(TEXTS)
    served_by = both["versions"]["mood"]
    assert served_by["version"] == "v0001" and served_by["before"][0]["digest"] != served_by["digest"]
    assert [result["receipt"]["layers"] for result in one["results"]] == [2] * len(TEXTS)


def counted(text):
    """By name and bundle, what the metrics count of layers, requests and readiness."""
    return {
        (sample.name, sample.labels.get("bundle")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name in ("polyhead_encoder_layers_total", "polyhead_requests_total", "polyhead_ready")
    }


def test_a_cascade_answers_as_in_python(bundles):
    threshold = 0.56
    wanted = set_of(bundles, mood=threshold).predict(TEXTS, tasks=["mood"])
    assert {result.receipt.bundles["mood"] for result in wanted} == {"cheap", "deep"}

    async def work(client, service):
        body = await predicted(client, tasks=["mood"])
        stream = await client.post("/v1/predict/stream", json={"inputs": TEXTS, "tasks": ["mood"]})
        wanted_layers = 2 * 4 * deep
        for _ in range(3000):  # a pass is counted after its answers were sent
            counts = counted((await client.get("/metrics")).text)
            if counts["polyhead_encoder_layers_total", "deep"] >= wanted_layers:
                break
            await asyncio.sleep(0.01)
        return body["results"], [json.loads(line) for line in stream.text.splitlines()], counts

    deep = sum(own.receipt.bundles["mood"] == "deep" for own in wanted)
    results, (*stages, end), counts = ask(bundles, work, mood=threshold)
    for result, own in zip(results, wanted, strict=True):
        assert result == {"answers": few_digits(own.answers), "receipt": json.loads(json.dumps(own.receipt.to_dict()))}
    told = {int(number): answer for stage in stages for number, answer in stage["answers"].items()}
    assert [told[number] for number in range(len(TEXTS))] == [few_digits(own.answers["mood"]) for own in wanted]
    assert [result["receipt"]["layers"] for result in end["results"]] == [own.receipt.layers for own in wanted]
    assert counts["polyhead_encoder_layers_total", "cheap"] == 2 * 2 * len(TEXTS)  # asked twice
    assert counts["polyhead_encoder_layers_total", "deep"] == 2 * 4 * deep
    assert counts["polyhead_ready", None] == 1


WISHES = {"another": {"urgency": False}, "left out": {"mood": False}, "a choice": {"mood": {"unsure_below": 0.99}}}


@pytest.mark.parametrize("wish", WISHES.values(), ids=WISHES)
def test_a_cascade_is_calibrated_as_in_python(tmp_path, wish):
    """Each answer by the bundle that gave it: it lost its calibrated values as soon as a request said anything."""
    roots = bundle_of(tmp_path / "cheap", CHEAP, {"urgency": 1}), bundle_of(tmp_path / "deep", DEEP, {})
    for root, trunk, seed, scale in zip(roots, (CHEAP, DEEP), (0, 5), (0.5, 2.0), strict=True):
        own = draft("mood", seed, trunk=trunk)
        record = msgspec.structs.replace(own.record, calibration=Calibration(scale=(scale,)))
        write.add_tasks(root, [msgspec.structs.replace(own, record=record)])
    choices = msgspec.convert(wish, dict[str, bool | CalibrationChoice])
    own = set_of(roots, mood=0.525).predict(TEXTS, tasks=["mood", "urgency"], calibrated=choices)
    assert {result.receipt.bundles["mood"] for result in own} == {"cheap", "deep"}

    async def work(client, _):
        options = {"tasks": ["mood", "urgency"], "options": {"calibrated": wish}}
        stream = await client.post("/v1/predict/stream", json={"inputs": TEXTS, **options})
        unknown = {"calibrated": {"mood": {"thresholds": {"nonsense": 0.3}}}}
        refused = await client.post("/v1/predict", json={"inputs": TEXTS, "options": unknown})
        return (await predicted(client, **options))["results"], stream.text.splitlines(), refused

    results, (*stages, _), refused = ask(roots, work, mood=0.525)
    wanted = [few_digits(result.answers["mood"]) for result in own]
    moods = [stage["answers"] for stage in map(json.loads, stages) if stage["task"] == "mood"]
    told = {int(row): answer for answers in moods for row, answer in answers.items()}
    assert [result["answers"]["mood"] for result in results] == [told[row] for row in range(len(TEXTS))] == wanted
    assert refused.status_code == 422 and "no such label" in refused.text


def test_a_stream_tells_nothing_before_it_is_known_that_no_bundle_cuts(tmp_path):
    short = tiny_trunk(layers=4, seed=3, max_tokens=8)
    roots = bundle_of(tmp_path / "cheap", CHEAP, {"urgency": 1}), bundle_of(tmp_path / "deep", short, {"topics": 6})

    async def work(client, _):
        return [await client.post("/v1/predict/stream", json={"inputs": [text]}) for text in ("good", TEXTS[0] * 3)]

    whole, cut = ask(roots, work, msgspec.structs.replace(ADMIN, long_texts="refuse"))
    assert [json.loads(line).get("task") for line in whole.text.splitlines()] == ["urgency", "topics", None]
    assert cut.status_code == 422 and "longer than the encoder reads" in cut.text
    assert "8 tokens in all" in cut.text  # of the trunk that cuts, not of the first one


def test_an_error_of_the_deeper_trunk_names_the_input_of_the_call(tmp_path):
    """It was named by its place among the texts that went on."""
    short = tiny_trunk(layers=4, seed=3, max_tokens=8)  # which reads fewer tokens
    cheap, deep = bundle_of(tmp_path / "cheap", CHEAP, {"mood": 0}), bundle_of(tmp_path / "deep", short, {"mood": 5})
    sure = [result.answers["mood"]["scores"] for result in Session(cheap, **EXACT).predict(TEXTS)]
    texts = sorted(TEXTS, key=lambda text: -max(sure[TEXTS.index(text)].values()))  # the surest first
    long = f"{texts[-1]} {texts[-1]}"
    (scores,) = (result.answers["mood"]["scores"] for result in Session(cheap, **EXACT).predict([long]))
    first = Session(cheap, **EXACT).predict(texts[:1])[0].answers["mood"]["scores"]
    threshold = (max(scores.values()) + max(first.values())) / 2
    assert max(scores.values()) < threshold < max(first.values())

    async def work(client, _):
        return await client.post("/v1/predict", json={"inputs": [texts[0], texts[0], long], "tasks": ["mood"]})

    response = ask((cheap, deep), work, msgspec.structs.replace(ADMIN, long_texts="refuse"), mood=threshold)
    assert response.status_code == 422 and "input 2 is longer than the encoder reads" in response.text


def test_routes_tell_which_bundle_has_a_task(bundles):
    async def work(client, _):
        return [(await client.get(path)).json() for path in ("/v1/tasks", "/v1/tasks/urgency", "/health")]

    listed, one, health = ask(bundles, work, mood=0.75)
    facts = {task["name"]: task for task in listed["tasks"]}
    assert {name: task["bundles"] for name, task in facts.items()} == {
        "mood": ["cheap", "deep"],
        "urgency": ["cheap"],
        "same": ["cheap"],
        "topics": ["deep"],
    }
    assert {name: task.get("sure_from") for name, task in facts.items() if "sure_from" in task} == {"mood": 0.75}
    assert one["path"] and one["card"] == "# urgency\n"
    assert listed["bundles"] == health["bundles"] == {"cheap": CHEAP.digest, "deep": DEEP.digest}
    assert health["tasks"] == 4


def test_a_single_bundle_tells_nothing_of_sets(bundles):
    async def work():
        service = Service(Session(bundles[0], **EXACT), ServeSettings())
        app = application(service)
        await service.start()
        try:
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
                found = [await client.get(path) for path in ("/v1/tasks", "/health", "/metrics")]
                return [*found, await client.post("/v1/predict", json={"text": TEXTS[0]})]
        finally:
            await service.stop()

    for response in asyncio.run(work()):
        assert response.status_code == 200 and "bundle" not in response.text.replace("the bundle", "")


def test_a_change_goes_to_the_bundle_of_its_task(bundles, tmp_path):
    cheap, deep = bundles

    async def work(client, _):
        put = await client.put("/v1/tasks/topics", content=upload(tmp_path, "topics", 40, trunk=DEEP))
        assert put.status_code == 200, put.text
        changed = await predicted(client)
        back = await client.post("/v1/tasks/topics/rollback")
        assert back.status_code == 200, back.text
        gone = await client.delete("/v1/tasks/urgency")
        assert gone.status_code == 200, gone.text
        new = await client.put("/v1/tasks/names?bundle=deep", content=upload(tmp_path, "names", 41, trunk=DEEP))
        assert new.status_code == 201, new.text
        return changed, await predicted(client), (await client.get("/v1/changes")).json()

    before = alone(deep, tasks=["topics"])
    changed, last, changes = ask(bundles, work, mood=0.0)
    after = alone(tmp_path / f"topics-40-{DEEP.digest[:8]}", tasks=["topics"])
    topics = [[{"topics": each["answers"]["topics"]} for each in body["results"]] for body in (changed, last)]
    assert topics == [after, before]
    assert lines(cheap) == {"mood": "v0001", "same": "v0001"}
    assert lines(deep) == {"mood": "v0001", "topics": "v0001", "names": "v0001"}
    past = [(each["operation"], each["bundle"]) for each in changes["changes"]]
    assert sorted(past) == [("add", "deep"), ("remove", "cheap"), ("rollback", "deep"), ("update", "deep")]
    assert changes["server"]["taken"] == 4


def test_a_version_of_a_cascade_goes_to_the_bundle_that_is_named(bundles, tmp_path):
    async def work(client, _):
        content = upload(tmp_path, "mood", 40, trunk=DEEP)
        task = Task(name="mood", kind="single_label", labels=("bad", "fine"))
        (tmp_path / "other").mkdir()
        turned = upload(tmp_path / "other", "mood", 40, trunk=DEEP, task=task)
        refused = [
            await client.put("/v1/tasks/mood", content=content),
            await client.put("/v1/tasks/mood?bundle=third", content=content),
            await client.put("/v1/tasks/mood?bundle=cheap", content=content),
            await client.put("/v1/tasks/urgency?bundle=deep", content=content),
            await client.delete("/v1/tasks/mood?bundle=deep"),
            await client.put("/v1/tasks/mood?bundle=deep&allow_lost_labels=true", content=turned),
        ]
        put = await client.put("/v1/tasks/mood?bundle=deep", content=content)
        assert put.status_code == 200, put.text
        return refused, await predicted(client, tasks=["mood"])

    refused, body = ask(bundles, work, mood=2.0)
    assert [response.status_code for response in refused] == [422] * 6
    words = (
        "?bundle=NAME",
        "no such bundle",
        "another trunk",
        "in another bundle",
        "needs all its bundles",
        "differ in its labels",
    )
    assert all(said in response.text for said, response in zip(words, refused, strict=True))
    assert [result["answers"] for result in body["results"]] == alone(bundles[1], tasks=["mood"])
    assert lines(bundles[0])["mood"] == "v0001" and lines(bundles[1])["mood"] == "v0002"


def test_a_task_that_clashes_is_not_taken_over(bundles):
    """It is written into the folder of one bundle, and the other one has it."""

    async def work(client, service):
        write.add_tasks(bundles[1], [draft("urgency", 8, trunk=DEEP)])
        with pytest.raises(ConfigError, match="several bundles have a task 'urgency'"):
            await service.members["deep"].changes.take()
        health = (await client.get("/health")).json()
        return health["changes"], await predicted(client)

    changes, body = ask(bundles, work, mood=0.0)
    assert (changes["taken"], changes["refused"]) == (0, 1)
    cheap = alone(bundles[0])
    assert [result["answers"]["urgency"] for result in body["results"]] == [each["urgency"] for each in cheap]


def test_what_was_answered_once_comes_from_the_caches(bundles):
    async def work(client, _):
        return await predicted(client), await predicted(client)

    first, second = ask(bundles, work, ServeSettings(cache_bytes=2**20), mood=0.56)
    assert [each["answers"] for each in first["results"]] == [each["answers"] for each in second["results"]]
    assert second["receipt"]["layers"] == 0 and second["receipt"]["cached"] == len(TEXTS)
    bundles_of = [[each["receipt"]["bundles"] for each in body["results"]] for body in (first, second)]
    assert bundles_of[0] == bundles_of[1]


def test_other_formats_ask_the_tasks_of_all_bundles(bundles):
    async def work(client, _):
        found = {}
        for name in ("urgency", "topics", "mood"):
            response = await client.post(f"/models/{name}", json={"inputs": TEXTS[0]})
            found[name] = (response.status_code, response.json())
        vectors = await client.post("/v1/embeddings", json={"input": TEXTS[0], "model": "any"})
        return found, vectors.json()["data"][0]["embedding"]

    found, vector = ask(bundles, work, mood=0.0)
    assert {name: status for name, (status, _) in found.items()} == dict.fromkeys(found, 200)
    assert len(vector) == CHEAP.architecture.width  # of the first bundle
    (wanted,) = alone(bundles[1], TEXTS[:1], tasks=["topics"])
    (ranked,) = found["topics"][1]
    assert {each["label"]: each["score"] for each in ranked} == pytest.approx(wanted["topics"]["scores"])


def test_questions_may_be_renamed_to_the_task_of_any_bundle(bundles):
    settings = ServeSettings(labels={"about": Renamed(task="topics")})
    assert ask(bundles, lambda client, service: asyncio.sleep(0, service.settings), settings, mood=0.0) == settings
    with pytest.raises(ConfigError, match="a task that is not in the bundle"):
        ServiceSet(set_of(bundles, mood=0.0), ServeSettings(labels={"about": Renamed(task="nothing")}))


def test_what_a_set_does_not_answer_is_refused(bundles):
    async def work(client, _):
        body = {"inputs": TEXTS[:1], "options": {"explain": True}}
        cascade = await client.post("/v1/predict", json={**body, "tasks": ["mood"]})
        single = await client.post("/v1/predict", json={**body, "tasks": ["topics"]})
        unknown = await client.post("/v1/predict", json={"inputs": TEXTS[:1], "tasks": ["nothing"]})
        return cascade, single, unknown

    cascade, single, unknown = ask(bundles, work, mood=0.0)
    assert cascade.status_code == 422 and "a cascade is not explained" in cascade.text
    assert single.status_code == 200 and single.json()["results"][0]["explained"]
    assert unknown.status_code == 404 and "no task 'nothing'" in unknown.text


def test_what_the_second_bundle_cannot_read_in_time_is_late(bundles, monkeypatch):
    """Its queue is too long; what the first one answered is told, and what it was not sure of is not."""

    async def full(*_, **__):
        raise Overloaded("too much waits", retry_after=1.0)

    async def work(client, service):
        monkeypatch.setattr(service.members["deep"], "ask", full)
        body = await predicted(client)
        alone = await client.post("/v1/predict", json={"inputs": TEXTS, "tasks": ["topics"]})
        return body, alone.status_code

    body, status = ask(bundles, work, mood=2.0)
    for result, cheap in zip(body["results"], alone(bundles[0]), strict=True):
        assert result["answers"] == {"urgency": cheap["urgency"]}
        assert sorted(result["late"]) == ["mood", "topics"] and result["receipt"]["layers"] == 2
    assert status == 429


def test_a_candidate_is_tried_beside_the_task_of_its_bundle(bundles, tmp_path):
    async def work(client, _):
        path = "/v1/tasks/topics/shadow"
        put = await client.put(f"{path}?share=1", content=upload(tmp_path, "topics", 41, trunk=DEEP))
        assert put.status_code == 201, put.text
        body = await predicted(client)
        for _ in range(200):
            told = (await client.get(path)).json()
            if told["compared"] == len(TEXTS):
                break
            await asyncio.sleep(0.01)
        return body, told, (await client.delete(path)).status_code

    body, told, status = ask(bundles, work, mood=0.0)
    assert [each["answers"]["topics"] for each in body["results"]] == [
        each["topics"] for each in alone(bundles[1], tasks=["topics"])
    ]
    assert told["compared"] == len(TEXTS) and status == 200


def test_questions_that_no_task_answers_are_compared_by_the_first_trunk(bundles):
    async def work(client, _):
        questions = [
            {"type": "choice", "name": name, "instructions": "Which?", "choices": [{"value": each} for each in values]}
            for name, values in (("mood", ["bad", "good"]), ("colour", ["good lamp", "bad bill"]))
        ]
        response = await client.post("/v1/decisions", json={"input": TEXTS[0], "questions": questions, "model": "any"})
        return response.status_code, response.text

    status, text = ask(bundles, work, ServeSettings(unknown="similarity"), mood=0.0)
    assert status == 200, text
    assert [each["name"] for each in json.loads(text)["answers"]] == ["mood", "colour"]
