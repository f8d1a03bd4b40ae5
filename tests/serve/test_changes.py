"""A bundle's folder is watched: what changes there answers when it was tried, and nothing else moves."""

import asyncio
import json
import logging
import shutil
import time

import msgspec
import numpy as np
import pytest

from polyhead.bundle.read import Bundle
from polyhead.bundle.write import add_tasks
from polyhead.certify import certified
from polyhead.engine.backends.reference import ReferenceBackend
from polyhead.engine.backends.reference.decoder import ReferenceDecoder
from polyhead.engine.probes import backend_here
from polyhead.engine.session import Session
from polyhead.errors import BackendError, CorruptFile, IsolationError, WrongTrunk
from polyhead.serve import changes, trial
from polyhead.serve.exchange import versions_served
from polyhead.serve.settings import ServeSettings
from polyhead.testing import tiny_trunk
from support.admin_server import ADMIN, TASKS, TEXTS, TRUNK, add, asked, draft, make, served
from support.numpy_graphs import NumpyRuntime
from support.writing_bundles import tiny_draft

WATCHED = ServeSettings(watch_seconds=0.01)
LONGEST = 60  # seconds that a test waits before it fails


async def until(holds, what):
    end = time.monotonic() + LONGEST
    while not holds():
        assert time.monotonic() < end, what
        await asyncio.sleep(0.01)


@pytest.fixture
def root(tmp_path):
    return make(tmp_path / "b", "mood", "topics", "urgency")


def test_what_is_added_replaced_and_removed_in_the_folder_answers_without_a_word(root, caplog):
    caplog.set_level(logging.INFO, "polyhead.serve.changes")

    async def scenario():
        async with served(root, WATCHED) as (client, service):
            before, versions = await asked(client)
            assert versions["mood"]["version"] == "v0001"
            add(root, "names", 7)
            add(root, "mood", 8, replace=True)
            Bundle.open(root).remove_task("urgency")
            await until(lambda: set(service.tasks) == {"mood", "topics", "names"}, "the folder is not watched")
            after, versions = await asked(client)
            assert versions["mood"]["version"] == "v0002" and "names" in versions and "urgency" not in versions
            assert [each["topics"] for each in after] == [each["topics"] for each in before]
            assert [each["mood"] for each in after] != [each["mood"] for each in before]
            state = service.changes.state
            assert state.is_watched and state.taken >= 1 and state.refused == 0 and state.refusal is None

    asyncio.run(scenario())
    assert {record.getMessage() for record in caplog.records} == {
        "task 'names' was added, v0001",
        "task 'mood' went from v0001 to v0002",
        "task 'urgency' was removed",
    }


@pytest.mark.filterwarnings("ignore:(overflow|invalid):RuntimeWarning")
def test_a_head_without_numbers_is_refused_and_the_old_version_stays(root):
    async def scenario():
        async with served(root, WATCHED) as (client, service):
            before, _ = await asked(client)
            huge = {name: np.full_like(array, 3e38) for name, array in draft("mood", 5).arrays.items()}
            add(root, "mood", 5, replace=True, arrays=huge)
            await until(lambda: service.changes.state.refusal is not None, "it was taken over")
            after, versions = await asked(client)
            assert versions["mood"]["version"] == "v0001" and after == before
            refusal = service.changes.state.refusal
            assert "mood" in refusal.error and str(root) not in refusal.error and service.changes.state.taken == 0
            add(root, "mood", 6, replace=True)
            await until(lambda: service.changes.state.refusal is None, "a whole one is refused too")
            _, versions = await asked(client)
            assert versions["mood"]["version"] == "v0003"

    asyncio.run(scenario())


def test_a_refused_state_is_not_tried_again_at_every_look(root):
    async def scenario():
        async with served(root, ADMIN) as (client, service):
            part = root / "tasks" / "mood" / "v0002" / "part.safetensors"
            add(root, "mood", 5, replace=True)
            part.write_bytes(part.read_bytes()[:-4] + b"\0\0\0\1")
            for _ in range(3):
                with pytest.raises(Exception, match="changed since") if _ == 0 else pytest.raises(Exception):
                    await service.changes.take()
            assert service.changes.state.refused == 3, "who asks for it has it tried"
            assert service.changes.take_now(is_patient=True).replaced == ()
            assert service.changes.state.refused == 3, "the watch waits"

    asyncio.run(scenario())


def test_a_bundle_of_another_trunk_under_the_server_is_refused(root, tmp_path):
    async def scenario():
        async with served(root) as (client, service):
            before, _ = await asked(client)
            other = make(tmp_path / "other", "mood", trunk=tiny_trunk(seed=9))
            for name in ("trunk", "tasks"):
                shutil.rmtree(root / name)
                shutil.copytree(other / name, root / name)
            (root / "bundle.json").write_bytes((other / "bundle.json").read_bytes())
            with pytest.raises(WrongTrunk):
                await service.changes.take()
            assert (await asked(client))[0] == before

    asyncio.run(scenario())


def test_a_folder_that_changes_again_while_it_is_read_is_read_again(root, monkeypatch):
    tried = []

    def overtaken(*given, **named):
        tried.append(given)
        if len(tried) == 1:
            Bundle.open(root).remove_task("urgency")
            raise CorruptFile("a file is gone")
        trial.check_new(*given, **named)

    monkeypatch.setattr(changes, "check_new", overtaken)

    async def scenario():
        async with served(root) as (client, service):
            add(root, "names", 3)
            taken = await service.changes.take()
            assert (taken.attached, taken.detached, len(tried)) == (("names",), ("urgency",), 2)
            assert service.changes.state.refused == 0 and set((await asked(client))[1]) == {"mood", "topics", "names"}

    asyncio.run(scenario())


def test_a_whole_folder_in_the_place_of_the_old_one_is_taken_over(root, tmp_path):
    other = make(tmp_path / "other", "topics", "mood", "names")

    async def scenario():
        async with served(root) as (client, service):
            before = service.session.bundle.record("mood").arrays
            root.rename(tmp_path / "old")
            other.rename(root)
            taken = await service.changes.take()
            assert set(taken.replaced) == {"mood", "topics"} and taken.attached == ("names",)
            assert taken.detached == ("urgency",)
            _, versions = await asked(client)
            assert versions["mood"] == {"version": "v0001", "digest": Bundle.open(root).record("mood").arrays}
            assert versions["mood"]["digest"] != before

    asyncio.run(scenario())


def test_what_is_tried_is_what_callers_are_answered_with(tmp_path):
    """No graph is compiled for the trial alone, and none for the callers after it."""
    roots = [make(tmp_path / name, "mood", "topics", "urgency", "names") for name in ("a", "b")]
    bare, runtime = NumpyRuntime(), NumpyRuntime()
    session = Session(roots[0], backend=bare)
    session.columns(TEXTS)
    bare.compiled.clear()
    add(roots[0], "mood", 8, replace=True)
    session.refresh()

    async def scenario():
        async with served(roots[1], backend=runtime, deterministic=False) as (client, service):
            runtime.compiled.clear()
            add(roots[1], "mood", 8, replace=True)
            assert (await service.changes.take()).replaced == ("mood",)
            assert len(runtime.compiled) == len(bare.compiled) > 0
            await asked(client)
            assert len(runtime.compiled) == len(bare.compiled)

    asyncio.run(scenario())


@pytest.mark.slow
def test_answers_that_move_though_their_task_did_not_change_stop_a_change(root, monkeypatch):
    async def scenario():
        async with served(root) as (client, service):
            before, _ = await asked(client)
            inner, moved = ReferenceBackend.replace, []

            def replaced(self, tasks):
                """A backend at fault: whatever changes, the head of `topics` moves by a bit."""
                inner(self, tasks)
                moved.append(self)

            headed = ReferenceBackend._headed

            def shifted(self, name, features):
                outputs = headed(self, name, features)
                return np.nextafter(outputs, np.float32(9)) if name == "topics" and moved else outputs

            monkeypatch.setattr(ReferenceBackend, "replace", replaced)
            await service.changes.take()  # asks nobody: nothing changed
            service.changes._isolation._learn(service.loaded, service.session.bundle, ["topics"], beside=())
            monkeypatch.setattr(ReferenceBackend, "_headed", shifted)
            add(root, "names", 3)
            with pytest.raises(IsolationError, match="topics"):
                await service.changes.take()
            monkeypatch.undo()
            assert (await asked(client))[0] == before and "names" not in service.tasks

    asyncio.run(scenario())


def test_words_that_are_cut_off_stop_no_change(root):
    """Their outputs are no numbers, which differ from themselves: every later change was refused."""
    cut = msgspec.structs.replace(draft("names", 3), probes=[{"text": ["good lamp " * 60]}])
    add_tasks(root, [cut])

    async def scenario():
        async with served(root, deterministic=False) as (_, service):
            Bundle.open(root).remove_task("urgency")
            assert (await service.changes.take()).detached == ("urgency",)

    asyncio.run(scenario())
    before = [np.array([1.0, np.nan])]
    for after, is_same in (
        ([1.0, np.nan], True),
        ([1.0, 1.0], False),
        ([np.nan, np.nan], False),
        ([2.0, np.nan], False),
    ):
        assert trial.Isolation(tolerance=1e-4)._is_same(before, [np.array(after)], False) is is_same


def test_answers_that_are_not_those_of_the_certificate_stop_a_change(root):
    certified(root, "add", lambda: add(root, "names", 3), changing=["names"])

    async def scenario():
        async with served(root, backend=backend_here()) as (client, service):
            certified(root, "update", lambda: add(root, "mood", 4, replace=True), changing=["mood"])
            (path,) = root.glob("certificates/*-update.json")
            raw = json.loads(path.read_text())
            raw["after"]["mood"]["sha256"] = "0" * 64
            _write_certificate(path, raw)
            with pytest.raises(IsolationError, match="mood.*0002-update"):
                await service.changes.take()
            raw["after"]["mood"]["sha256"] = ""
            path.unlink()
            assert (await service.changes.take()).replaced == ("mood",), "nothing is said of it any more"

    asyncio.run(scenario())


def _write_certificate(path, raw):
    """A certificate that is sound and says this."""
    import hashlib

    import msgspec

    from polyhead.certify.certificate import Certificate
    from polyhead.values import to_json

    certificate = msgspec.convert({**raw, "sha256": ""}, Certificate)
    digest = hashlib.sha256(to_json(certificate)).hexdigest()
    path.write_bytes(to_json(msgspec.structs.replace(certificate, sha256=digest)))


def test_requests_that_have_begun_end_with_the_version_they_began_with(root):
    async def scenario():
        async with served(root) as (client, service):
            names = service.named(None)
            add(root, "mood", 5, replace=True)
            Bundle.open(root).remove_task("topics")
            await service.changes.take()
            ticket = await service.ask([(TEXTS[0],)], names)
            assert set(ticket.results[0].answers) == {"mood", "topics", "urgency"}
            assert versions_served(ticket)["mood"].version == "v0001"
            assert set((await asked(client))[1]) == {"mood", "urgency"}

    asyncio.run(scenario())


def test_tasks_are_listed_while_one_of_them_is_gone_from_the_folder_already(root):
    async def scenario():
        async with served(root) as (client, _):
            Bundle.open(root).remove_task("urgency")
            listed = await client.get("/v1/tasks")
            assert listed.status_code == 200 and len(listed.json()["tasks"]) == 3
            assert len((await asked(client))[1]) == 3

    asyncio.run(scenario())


@pytest.mark.slow
def test_a_change_of_families_is_taken_over(tmp_path):
    from polyhead.bundle.create import write_bundle
    from support.prompt_groups import adapters
    from support.prompt_groups import add as add_group

    root = tmp_path / "b"
    write_bundle(root, TRUNK)
    kinds = {"shape": TRUNK.architecture, "probes": [{"text": ["good"]}]}
    add_group(root, adapters(TRUNK.digest, 0, **kinds))

    async def scenario():
        async with served(root) as (client, service):
            before, _ = await asked(client)
            add_group(root, adapters(TRUNK.digest, 1, **kinds), replace=True)
            assert set((await service.changes.take()).replaced) == {"short", "long"}
            assert (await asked(client))[0] != before

    asyncio.run(scenario())


def test_a_task_that_writes_is_tried_and_comes_and_goes(root, monkeypatch):
    broken, plain = [True], ReferenceDecoder.step

    def step(self, ids, cache):
        if broken:
            raise ValueError("no such decoder")
        return plain(self, ids, cache)

    monkeypatch.setattr(ReferenceDecoder, "step", step)

    async def scenario():
        async with served(root) as (client, service):
            before, _ = await asked(client)
            add_tasks(root, [tiny_draft(TRUNK, probes=["good lamp"])])
            with pytest.raises(BackendError, match="brief"):
                await service.changes.take()
            assert "brief" not in service.tasks
            broken.clear()
            assert (await service.changes.take()).attached == ("brief",)
            assert "brief" in service.tasks and service.changes.state.taken == 1
            assert (await asked(client))[0] == before, "who names no task asks none that writes"
            (answer,), versions = await asked(client, "good", tasks=["brief"])
            assert set(answer["brief"]) == {"summary"} and versions["brief"]["version"] == "v0001"
            Bundle.open(root).remove_task("brief")
            await service.changes.take()
            assert "brief" not in service.tasks

    asyncio.run(scenario())


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["openvino", "torch"])
def test_backends_that_are_not_deterministic_are_held_to_their_tolerance(root, backend):
    if backend == "openvino":
        pytest.importorskip("openvino")

    async def scenario():
        async with served(root, deterministic=False, backend=backend) as (client, service):
            add(root, "names", 3)
            add(root, "same", 4)
            assert (await service.changes.take()).attached == ("names", "same")
            assert set((await asked(client))[1]) >= {"names", "mood"}

    asyncio.run(scenario())


def test_a_task_that_fails_on_what_it_must_read_is_refused(root, monkeypatch):
    from support.tiny_project import fail_heads

    async def scenario():
        async with served(root) as (client, service):
            fail_heads(monkeypatch, "names")
            add(root, "names", 3)
            with pytest.raises((ValueError, BackendError)):
                await service.changes.take()
            assert "names" not in service.tasks and TASKS["names"].kind not in service.changes.state.refusal.error
            assert len((await asked(client))[1]) == 3

    asyncio.run(scenario())
