"""An upload that knows fewer labels than the live version goes live only where the admin says so."""

import asyncio

import pytest

from support.admin_server import add, asked, labelled, lines, make, served, upload


def test_an_upload_does_not_lose_labels_unless_that_is_said(tmp_path):
    """It replaced a task that knew three labels by one that knew two, in silence."""
    root, before = make(tmp_path / "b", "topics"), labelled("mood", "good", "bad", "fine")
    add(root, "mood", 1, task=before)
    fewer = upload(tmp_path, "mood", 6, task=labelled("mood", "good", "new"))
    more = upload(tmp_path, "mood", 7, task=labelled("mood", "new", "fine", "bad", "good"))

    async def scenario():
        async with served(root) as (client, _):
            answer = await client.put("/v1/tasks/mood", content=fewer)
            assert answer.status_code == 409, answer.text
            error = answer.json()["error"]
            assert "2 of the 3 labels of its live version v0001 have no row" in error["message"]
            assert "bad" in error["got"] and "allow_lost_labels=true" in error["do"]
            assert lines(root)["mood"] == "v0001" and (await asked(client))[1]["mood"]["version"] == "v0001"
            assert (await client.put("/v1/tasks/mood", content=more)).json()["after"] == "v0002"
            answer = await client.put("/v1/tasks/mood?allow_lost_labels=true", content=fewer)
            assert answer.status_code == 200 and answer.json()["after"] == "v0003"
            told = answer.json()["labels"]  # which were not told, of a rollback neither
            assert told[0] == ["new", "fine", "bad", "good"] and set(told[1]) < set(told[0])
            answer = (await client.post("/v1/tasks/mood/rollback")).json()
            assert (answer["after"], answer["labels"]) == ("v0002", told[::-1]) and "kind" not in answer

    asyncio.run(scenario())


@pytest.mark.slow
def test_a_candidate_with_fewer_labels_is_tried_and_not_promoted_in_silence(tmp_path):
    root = make(tmp_path / "b", "topics")
    add(root, "mood", 1, task=labelled("mood", "good", "bad", "fine"))

    async def scenario():
        async with served(root) as (client, _):
            fewer = upload(tmp_path, "mood", 6, task=labelled("mood", "good", "bad"))
            assert (await client.put("/v1/tasks/mood/shadow", content=fewer)).status_code == 201
            answer = await client.post("/v1/tasks/mood/shadow/promote")
            assert answer.status_code == 409 and "1 of the 3 labels" in answer.text
            assert (await client.get("/v1/tasks/mood/shadow")).status_code == 200, "it is asked on"
            answer = await client.post("/v1/tasks/mood/shadow/promote?allow_lost_labels=true")
            assert answer.status_code == 200 and answer.json()["after"] == "v0002"

    asyncio.run(scenario())
