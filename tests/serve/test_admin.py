"""Admins change tasks over HTTP: certified, one at a time, all or nothing, and only where that is allowed."""

import asyncio
import io
import json
import os

import msgspec
import numpy as np
import pytest

from polyhead.bundle.create import write_bundle
from polyhead.bundle.read import Bundle
from polyhead.bundle.task_archive import upload_bytes
from polyhead.bundle.write import add_tasks
from polyhead.certify import Prover, verify
from polyhead.certify.certificate import Ledger
from polyhead.errors import IsolationError
from polyhead.files import held
from polyhead.serve import change_process, orders
from polyhead.serve.change_process import ChangeProcess
from polyhead.serve.http import HttpError
from polyhead.serve.make_changes import make_changes
from polyhead.serve.settings import RequestLimits, ServeSettings
from polyhead.serve.trial import Isolation
from polyhead.testing import tiny_trunk
from support.admin_server import TRUNK, asked, beside, draft, in_a_thread, lines, make, served, upload
from support.writing_bundles import tiny_draft


@pytest.fixture
def root(tmp_path):
    return make(tmp_path / "b", "mood", "topics")


async def changed(response, status=200):
    answer = await response
    assert answer.status_code == status, answer.text
    return answer.json()


def test_a_task_is_added_replaced_rolled_back_and_removed(root, tmp_path):
    async def scenario():
        async with served(root) as (client, service):
            before, _ = await asked(client)
            names = upload(tmp_path, "names", 5)
            answer = await changed(client.put("/v1/tasks/names", content=names), 201)
            assert (answer["before"], answer["after"], answer["is_changed"]) == (None, "v0001", True)
            proof = answer["certificate"]
            assert proof["operation"] == "add" and proof["unchanged"] and set(proof["proven"]) == {"mood", "topics"}
            assert proof["probes"] == 8 and (root / "certificates" / proof["file"]).is_file()
            answer = await changed(client.put("/v1/tasks/mood", content=upload(tmp_path, "mood", 6)))
            assert (answer["before"], answer["after"]) == ("v0001", "v0002")
            assert answer["certificate"]["answers"]["mood"]["probes"] == 4
            after, versions = await asked(client)
            assert versions["mood"]["version"] == "v0002" and {"names", "mood", "topics"} == set(versions)
            assert [each["topics"] for each in after] == [each["topics"] for each in before]
            answer = await changed(client.post("/v1/tasks/mood/rollback"))
            assert (answer["before"], answer["after"]) == ("v0002", "v0001")
            assert [each["mood"] for each in (await asked(client))[0]] == [each["mood"] for each in before]
            answer = await changed(client.post("/v1/tasks/mood/rollback", json={"version": "v0002"}))
            assert answer["after"] == "v0002" and lines(root)["mood"] == "v0002"
            answer = await changed(client.delete("/v1/tasks/names"))
            assert (answer["before"], answer["after"]) == ("v0001", None)
            assert "names" not in service.tasks and not (root / "tasks" / "names").exists()
            for refused in (client.delete("/v1/tasks/names"), client.post("/v1/tasks/names/rollback")):
                assert (await changed(refused, 404))["error"]["allowed"] == ["mood", "topics"]
            history = await changed(client.get("/v1/changes"))
            told = [(each["operation"], each["by"]) for each in history["changes"]]
            by = "this machine"
            assert told == [(name, by) for name in ("remove", "rollback", "rollback", "update", "add")]
            assert history["changes"][3]["changed"] == {"mood": ["v0001", "v0002"]}
            assert history["versions"] == lines(root) and history["server"]["taken"] == 5
            assert len((await changed(client.get("/v1/changes?limit=2")))["changes"]) == 2
            for wrong in ("limit=0", "limit=many", "limit=1001", "limits=2", "bundle=b"):
                name, _, value = wrong.partition("=")
                error = (await changed(client.get(f"/v1/changes?{wrong}"), 422))["error"]
                assert error["got"] == (value if name == "limit" else [name]), error
            for wrong, allowed in (
                ("allow_lost_labels=1", ["true", "false"]),
                ("allow-lost-labels=true", ["allow_lost_labels", "bundle"]),
                ("bundle=b", None),
            ):
                refused = await changed(client.put(f"/v1/tasks/mood?{wrong}", content=upload(tmp_path, "mood", 7)), 422)
                assert refused["error"]["allowed"] == allowed
            assert lines(root)["mood"] == "v0002"
        assert verify(root) == [] and beside(root) == []

    asyncio.run(scenario())


def test_the_same_upload_again_changes_nothing_and_says_so(root, tmp_path):
    async def scenario():
        async with served(root) as (client, _):
            content = upload(tmp_path, "mood", 6)
            first = await changed(client.put("/v1/tasks/mood", content=content))
            kept = (root / "bundle.json").read_bytes()
            again = await changed(client.put("/v1/tasks/mood", content=content))
            assert again["is_changed"] is False and (again["before"], again["after"]) == ("v0002", "v0002")
            assert "nothing was changed" in again["note"] and again["certificate"] == first["certificate"]
            assert (root / "bundle.json").read_bytes() == kept and len(Ledger(root).files) == 1

    asyncio.run(scenario())


@pytest.mark.slow
def test_a_family_under_another_name_here_is_no_change_either(tmp_path):
    from support.prompt_groups import adapters
    from support.prompt_groups import add as add_group

    source, root = tmp_path / "source", tmp_path / "b"
    kinds = {"shape": TRUNK.architecture, "probes": [{"text": ["good"]}]}
    for place, seed in ((source, 1), (root, 2)):
        write_bundle(place, TRUNK)
        add_group(place, adapters(TRUNK.digest, seed, **kinds))

    async def scenario():
        async with served(root) as (client, service):
            content = b"".join(upload_bytes(Bundle.open(source), "short"))
            answer = await changed(client.put("/v1/tasks/short", content=content))
            assert answer["is_changed"] and set(service.session.bundle.families) == {
                "family:adapters", "family:adapters-2"
            }  # fmt: skip
            again = await changed(client.put("/v1/tasks/short", content=content))
            assert again["is_changed"] is False

    asyncio.run(scenario())


def test_a_change_that_was_made_and_not_certified_is_certified_by_the_next_try(root, tmp_path):
    async def scenario():
        async with served(root) as (client, _):
            content = upload(tmp_path, "mood", 6)
            await changed(client.put("/v1/tasks/mood", content=content))
            (path,) = root.glob("certificates/*.json")
            path.unlink()
            answer = await changed(client.put("/v1/tasks/mood", content=content))
            assert answer["is_changed"] is False and answer["certificate"]["operation"] == "verify"
        assert verify(root) == []

    asyncio.run(scenario())


BAD = {
    "nothing": (b"", 422, "cut short"),
    "gzip": (b"\x1f\x8b" + bytes(100), 415, "compressed"),
    "flipped bit": (None, 422, "changed since"),
    "other name": ("topics", 422, "another task"),
}


def whole(root):
    """All files of a bundle but locks."""
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file() and not path.name.endswith("lock")}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_upload_leaves_the_bundle_and_its_neighbours_as_they_were(root, tmp_path, name):
    content, status, why = BAD[name]
    if content is None:
        content = upload(tmp_path, "mood", 6)
        at = content.rindex(b"part.safetensors") + 800
        content = content[:at] + bytes([content[at] ^ 255]) + content[at + 1 :]
    elif isinstance(content, str):
        content = upload(tmp_path, content, 6)
    kept = whole(root)

    async def scenario():
        async with served(root) as (client, service):
            before, _ = await asked(client)
            told = await changed(client.put("/v1/tasks/mood", content=content), status)
            assert why in told["error"]["message"] and str(tmp_path) not in json.dumps(told)
            assert ".upload-" not in json.dumps(told) and "Traceback" not in json.dumps(told)
            assert (await asked(client))[0] == before and service.changes.state.taken == 0

    asyncio.run(scenario())
    assert whole(root) == kept and beside(root) == []


def test_bad_names_encodings_and_bodies_have_their_status(root, tmp_path):
    async def scenario():
        async with served(root) as (client, _):
            content = upload(tmp_path, "mood", 6)
            gzip = {"content-encoding": "gzip"}
            assert (await client.put("/v1/tasks/mood", content=content, headers=gzip)).status_code == 415
            assert (await client.put("/v1/tasks/.hidden", content=content)).status_code == 422
            assert (await client.put("/v1/tasks/a%2Fb", content=content)).status_code in (404, 405)
            assert (await client.post("/v1/tasks/mood/rollback", content=b"[")).status_code == 422
            assert (await client.post("/v1/tasks/mood/rollback", json={"versions": "v1"})).status_code == 422
            for version in ("v0007", "../v0001"):
                answer = await client.post("/v1/tasks/mood/rollback", json={"version": version})
                assert answer.status_code == 409 and str(root) not in answer.text

    asyncio.run(scenario())


def test_a_task_of_another_trunk_is_refused_and_both_are_named(root, tmp_path):
    other = tiny_trunk(seed=9)

    async def scenario():
        async with served(root) as (client, _):
            content = upload(tmp_path, "mood", 6, trunk=other)
            told = (await changed(client.put("/v1/tasks/mood", content=content), 422))["error"]
            assert other.digest in told["got"] and TRUNK.digest in told["allowed"]
            assert "their weights differ" in told["message"]  # as the command line says

    asyncio.run(scenario())


def test_an_upload_larger_than_its_limit_is_cut_off_and_larger_than_other_bodies_is_not(root, tmp_path):
    content = upload(tmp_path, "mood", 6)
    small = RequestLimits(body_bytes=100, upload_bytes=len(content))

    async def scenario():
        async with served(root, ServeSettings(admin=True, watch_seconds=0.0, limits=small)) as (client, _):
            assert (await client.post("/v1/predict", json={"inputs": ["good " * 30]})).status_code == 413
            await changed(client.put("/v1/tasks/mood", content=content))

            async def endless():
                while True:
                    yield bytes(1000)

            assert (await client.put("/v1/tasks/mood", content=endless())).status_code == 413
        assert beside(root) == []

    asyncio.run(scenario())


@pytest.mark.filterwarnings("ignore:(overflow|invalid):RuntimeWarning")
def test_a_head_that_gives_no_numbers_is_refused_by_the_proof(root, tmp_path):
    arrays = {name: np.full_like(array, 3e38) for name, array in draft("mood", 5).arrays.items()}

    async def scenario():
        async with served(root) as (client, service):
            before, _ = await asked(client)
            content = upload(tmp_path, "mood", 6, arrays=arrays)
            told = await changed(client.put("/v1/tasks/mood", content=content), 409)
            assert "finite" in told["error"]["message"] and str(tmp_path) not in json.dumps(told)
            assert lines(root)["mood"] == "v0001" and (await asked(client))[0] == before
            assert not (root / "tasks" / "mood" / "v0002").exists()

    asyncio.run(scenario())


def test_what_the_server_cannot_take_over_is_said_and_the_old_version_answers(root, tmp_path, monkeypatch):
    from support.tiny_project import fail_heads

    async def scenario():
        async with served(root) as (client, service):
            before, _ = await asked(client)
            fail_heads(monkeypatch, "names")
            told = (await changed(client.put("/v1/tasks/names", content=upload(tmp_path, "names", 6)), 500))["error"]
            assert "answers as before" in told["message"] and told["do"] == "remove task 'names'"
            assert (await asked(client))[0] == before and service.changes.state.refusal is not None
            await changed(client.delete("/v1/tasks/names"))
            assert service.changes.state.refusal is None

    asyncio.run(scenario())


def test_a_removal_that_the_server_cannot_take_over_is_not_to_be_rolled_back(root, monkeypatch):
    """Nothing of the task is left to go back to."""

    def refused(*given, **options):
        raise IsolationError("other tasks would answer otherwise")

    async def scenario():
        async with served(root) as (client, service):
            monkeypatch.setattr(Isolation, "check", refused)
            told = (await changed(client.delete("/v1/tasks/mood"), 500))["error"]
            assert told["do"].startswith("start the server anew") and "mood" in service.tasks
            assert "mood" not in lines(root)

    asyncio.run(scenario())


def test_two_admins_at_once_and_the_second_is_told_to_wait(root, tmp_path):
    async def scenario():
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def slow(order):
            begun.set()
            await go_on.wait()
            return await in_a_thread(order)

        async with served(root, make=slow) as (client, _):
            first = asyncio.create_task(client.put("/v1/tasks/mood", content=upload(tmp_path, "mood", 6)))
            await begun.wait()
            requests = [
                client.put("/v1/tasks/names", content=upload(tmp_path, "names", 7)),
                client.delete("/v1/tasks/topics"),
                client.post("/v1/tasks/mood/rollback"),
            ]
            for request in requests:
                told = (await changed(request, 409))["error"]
                assert "another change" in told["message"] and told["do"] == "ask again when it is done"
            go_on.set()
            assert (await first).status_code == 200
            await changed(client.delete("/v1/tasks/topics"))
        with held(root / ".admin.lock", patience=0.0, busy=AssertionError("it is still held")):
            pass

    asyncio.run(scenario())


def test_another_server_on_the_bundle_holds_the_same_lock(root, tmp_path):
    async def scenario():
        async with served(root) as (client, _):
            with held(root / ".admin.lock", patience=0.0, busy=AssertionError()):
                await changed(client.delete("/v1/tasks/topics"), 409)
            await changed(client.delete("/v1/tasks/topics"))

    asyncio.run(scenario())


def test_a_caller_who_hangs_up_stops_no_change(root, tmp_path):
    async def scenario():
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def slow(order):
            begun.set()
            await go_on.wait()
            return await in_a_thread(order)

        async with served(root, make=slow) as (client, service):
            request = asyncio.create_task(client.put("/v1/tasks/mood", content=upload(tmp_path, "mood", 6)))
            await begun.wait()
            request.cancel()
            await asyncio.gather(request, return_exceptions=True)
            go_on.set()
        assert lines(root)["mood"] == "v0002" and beside(root) == [], "the server waits for it before it ends"

    asyncio.run(scenario())


@pytest.mark.slow
def test_a_process_that_is_killed_leaves_a_whole_bundle_and_says_so(root, tmp_path):
    """The true process, killed when it begins, and then not."""

    async def scenario():
        killed = []

        async def dying(order):
            with pytest.MonkeyPatch.context() as patch:
                code = "import os, sys; sys.stdin.readline(); os.kill(os.getpid(), 9)"
                patch.setattr(change_process, "COMMAND", ("-c", code))
                killed.append(order.name)
                return await change_process.ChangeProcess().make(order)

        content = upload(tmp_path, "mood", 6)
        async with served(root, make=dying) as (client, _):
            told = (await changed(client.put("/v1/tasks/mood", content=content), 500))["error"]
            assert "stopped before its end" in told["message"] and "ask for the same again" in told["do"]
            assert killed == ["mood"] and lines(root)["mood"] == "v0001" and verify(root) == []
        assert beside(root) == []
        async with served(root, make=ChangeProcess().make) as (client, _):
            answer = await changed(client.put("/v1/tasks/mood", content=content))
            assert answer["after"] == "v0002" and answer["certificate"]["actor"] == "this machine"
        assert verify(root) == []

    asyncio.run(scenario())


def test_the_process_that_changes_has_low_priority(root, monkeypatch):
    steps = []
    monkeypatch.setattr(os, "nice", steps.append)
    order = orders.Order(operation="remove", root=str(root), name="mood")
    replies = io.BytesIO()
    make_changes(io.BytesIO(b"{}\n" + msgspec.json.encode(order)), replies)
    assert steps == [orders.NICENESS] and msgspec.json.decode(replies.getvalue())["outcome"]["before"] == "v0001"
    assert set(lines(root)) == {"topics"}


REMOTE = {
    "another machine": {"client": ("10.0.0.9", 1)},
    "another address of this one": {"server": ("10.0.0.1", 8000)},
    "no address": {"client": None},
    "the name of another host": {"headers": [(b"host", b"polyhead.example")]},
    "a host that is none": {"headers": [(b"host", b"[::1")]},
    "a page of another site": {"headers": [(b"host", b"127.0.0.1:8000"), (b"origin", b"https://evil.example")]},
}


@pytest.mark.parametrize("name", REMOTE)
def test_without_a_key_only_programs_of_this_machine_change_tasks(root, name):
    async def scenario():
        async with served(root, scope=REMOTE[name]) as (client, _):
            is_none = name == "a host that is none"
            for method, path in (("DELETE", "/v1/tasks/mood"), ("GET", "/v1/changes"), ("PUT", "/v1/tasks/mood")):
                assert (await client.request(method, path)).status_code == (400 if is_none else 403)
            predicting = {"a host that is none": 400, "a page of another site": 403}.get(name, 200)
            assert (await client.get("/v1/tasks")).status_code == predicting
        assert set(lines(root)) == {"mood", "topics"}

    asyncio.run(scenario())


def test_with_an_admins_key_any_machine_does_and_its_name_stands_in_the_certificate(root):
    async def scenario():
        async with served(root, scope={"client": ("10.0.0.9", 1), "polyhead.admin": "anna"}) as (client, _):
            answer = await changed(client.delete("/v1/tasks/mood"))
            proof = answer["certificate"]
            assert proof["actor"] == "anna" and "anna removed task 'mood' (it was v0001)" in proof["paragraph"]
            (change,) = (await changed(client.get("/v1/changes")))["changes"]
            assert change["by"] == "anna" and change["paragraph"] == proof["paragraph"]
        kept = next(Ledger(root).sound())
        assert kept.actor == "anna" and kept.at == proof["at"] == change["at"] and verify(root) == []

    asyncio.run(scenario())


def test_no_route_changes_anything_where_it_was_not_asked_for(root, tmp_path):
    async def scenario():
        async with served(root, ServeSettings(watch_seconds=0.0)) as (client, _):
            for request in (
                client.put("/v1/tasks/mood", content=upload(tmp_path, "mood", 6)),
                client.delete("/v1/tasks/mood"),
                client.post("/v1/tasks/mood/rollback"),
                client.put("/v1/tasks/mood/shadow"),
                client.get("/v1/changes"),
            ):
                assert (await request).status_code in (404, 405)

    asyncio.run(scenario())


def test_a_task_that_writes_is_uploaded_rolled_back_and_removed(root, tmp_path):
    write_bundle(tmp_path / "writing", TRUNK)
    add_tasks(tmp_path / "writing", [tiny_draft(TRUNK, probes=["good lamp"])])
    content = b"".join(upload_bytes(Bundle.open(tmp_path / "writing"), "brief"))
    add_tasks(tmp_path / "writing", [tiny_draft(TRUNK, seed=2, probes=["good lamp"])], replace=True)
    other = b"".join(upload_bytes(Bundle.open(tmp_path / "writing"), "brief"))

    async def scenario():
        async with served(root) as (client, service):
            await changed(client.put("/v1/tasks/brief", content=content), 201)
            await changed(client.put("/v1/tasks/brief", content=other))
            answer = await changed(client.post("/v1/tasks/brief/rollback"))
            assert (answer["before"], answer["after"]) == ("v0002", "v0001")
            assert "mood" in answer["certificate"]["proven"]
            await changed(client.delete("/v1/tasks/brief"))
            assert "brief" not in service.tasks

    asyncio.run(scenario())


def test_an_order_and_its_outcome_are_json_between_the_processes(root):
    raw = msgspec.json.encode(orders.Order(operation="rollback", root=str(root), name="mood", version="v0009"))
    told = msgspec.json.decode(orders.change_reply(raw, Prover()), type=orders.ChangeReply)
    assert told.outcome is None and told.status == 409 and "v0009" in told.error.message
    with pytest.raises(HttpError, match="v0009"):
        raise orders.as_http(told.error, told.status)
