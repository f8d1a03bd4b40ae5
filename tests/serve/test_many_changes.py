"""Tasks come, change, go back and go while callers ask: no request fails, none mixes versions, nobody else moves."""

import asyncio
import random

import pytest

from polyhead.bundle.read import Bundle
from polyhead.certify import verify
from support.admin_server import TEXTS, lines, make, served, upload

FIXED = ("urgency", "names")  # tasks that nobody changes
CHANGING = ("mood", "topics", "same")
SEEDS = (5, 6, 7)


async def ask_until(done, client, seen, problems):
    """Asks all tasks again and again; what is seen is each answer's version, digest and text."""
    while not done.is_set():
        for text in TEXTS:
            response = await client.post("/v1/predict", json={"inputs": text})
            if response.status_code != 200:
                problems.append(response.text)
                return
            body = response.json()
            (result,) = body["results"]
            if set(result["answers"]) | set(result.get("skipped", ())) != set(body["versions"]) or "failed" in result:
                problems.append(f"other tasks than versions: {body}")
            for name, answer in result["answers"].items():
                version = body["versions"][name]
                seen.setdefault((name, version["version"], version["digest"], text), set()).add(repr(answer))
        await asyncio.sleep(0)


class Changes:
    """Random changes, and every version that was live: its digest, by task and version."""

    def __init__(self, root, client, folder, chance):
        self.root, self.client, self.folder, self.chance = root, client, folder, chance
        self.live, self.made = {}, dict.fromkeys(("add", "update", "remove", "rollback"), 0)
        self.note()

    def note(self):
        bundle = Bundle.open(self.root)
        for name in bundle.tasks:
            # A task that was removed and added again begins with v0001 once more.
            self.live.setdefault((name, bundle.version(name)), set()).add(bundle.record(name).arrays)

    async def make(self):
        live = lines(self.root)
        name = self.chance.choice(CHANGING)
        operations = ["update", "rollback", "remove"] if name in live else ["add"]
        operation = self.chance.choice(operations)
        if operation == "rollback":
            versions = Bundle.open(self.root).versions(name)
            if len(versions) < 2:
                operation = "update"
            else:
                version = self.chance.choice(versions)
                response = await self.client.post(f"/v1/tasks/{name}/rollback", json={"version": version})
        if operation == "remove":
            response = await self.client.delete(f"/v1/tasks/{name}")
        elif operation in ("add", "update"):
            content = upload(self.folder, name, self.chance.choice(SEEDS))
            response = await self.client.put(f"/v1/tasks/{name}", content=content)
        assert response.status_code in (200, 201), response.text
        self.made[operation] += 1
        self.note()


async def changed(root, folder, count, backend):
    chance, seen, problems = random.Random(7), {}, []
    async with served(root, backend=backend) as (client, _):
        changes, done = Changes(root, client, folder, chance), asyncio.Event()
        callers = [asyncio.create_task(ask_until(done, client, seen, problems)) for _ in range(4)]
        for _ in range(count):
            await changes.make()
        done.set()
        await asyncio.gather(*callers)
    return seen, problems, changes


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "count"), [("reference", 50), ("openvino", 16)], ids=["reference", "openvino"])
def test_changes_in_random_order_under_load(tmp_path, count, backend):
    if backend != "reference":
        pytest.importorskip(backend)
    root = make(tmp_path / "b", *FIXED, *CHANGING)
    seen, problems, changes = asyncio.run(changed(root, tmp_path, count, backend))
    assert problems == []
    assert sum(changes.made.values()) == count and all(changes.made.values()), changes.made
    for (name, version, digest, text), answers in seen.items():
        assert digest in changes.live[name, version], "a version answered that was never live"
        assert len(answers) == 1, f"{name} {version} {digest[:8]} answered {text!r} in more than one way"
    for name in FIXED:
        assert {key[1] for key in seen if key[0] == name} == {"v0001"}
    assert len({key[:3] for key in seen}) > len(FIXED) + len(CHANGING), "changes were seen"
    assert verify(root) == []
