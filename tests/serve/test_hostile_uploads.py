"""Uploads of bad intent: each is refused with its reason before it is understood, and none holds the server's end."""

import asyncio
import contextlib
import json
import re
import signal
import threading
from pathlib import Path

import msgspec
import pytest

from benchmarks.silent_uploads import bundle_of, hostile, members_of, put, server, tar, with_file, with_record
from polyhead.bundle import format
from polyhead.bundle.row_profile import MOST
from polyhead.certify import Prover
from polyhead.errors import PolyheadError
from polyhead.nesting import DEEPEST
from polyhead.plan.nodes import MOST_HIDDEN
from polyhead.serve.orders import Order, change_reply
from polyhead.serve.uploads import Receiver, staged
from polyhead.tasks.limits import CHARACTERS_OF_LABEL, LABELS_OF_TASK, MOST_VALUES
from polyhead.text.trial import MOST_CHANGES
from support.admin_server import served

REASONS = {
    "label": "too many labels|does not answer|twice",
    "threshold": "calibration of another task",
    "needs": "too many arrays",
    "nodes": "too large|deeper|layers must",
    "deep": "nested too deeply|cannot be read|cannot be understood",
    "values": "too many values",
    "layers": "layers have a width and heads|hidden layers|multiple of their heads",
    "heads": "pool by attention",
    "hidden": "does not fit",
    "arrays": "100,000 arrays|changed since",
    "probes": "too many probes",
    "probe": "is no probe of task 'mood'",
    "scores": "cannot be read as JSON",
    "summary": "cannot be read|contradicts itself",
    "card": "is no text",
}
"""By a word of an upload's name, the first that is in it, what the refusal says."""


def take(folder, members, target):
    folder.mkdir()
    receiver = Receiver(folder, "mood", most=2**30)
    try:
        receiver.feed(tar(members))
        receiver.end()
    finally:
        receiver.close()
    return staged(folder, "mood", target)


@pytest.fixture(scope="module")
def uploads(tmp_path_factory):
    return hostile(tmp_path_factory.mktemp("hostile"))


@pytest.fixture
def target(tmp_path):
    return bundle_of(tmp_path / "served")


def test_each_is_refused_and_the_reason_is_its_own(uploads, target, tmp_path):
    for number, (name, members) in enumerate(uploads.items()):
        why = next(reason for word, reason in REASONS.items() if word in name)
        with pytest.raises(PolyheadError, match=why):
            take(tmp_path / f"in{number}", members, target)
    assert len(uploads) >= 25


def test_what_is_only_large_is_taken(target, tmp_path):
    """As many labels as are allowed, probes of every form that the task reads, and a card of another alphabet."""
    own = members_of(target)
    allowed = with_file(own, "probes.jsonl", b'{"text": ["good"], "note": 1}\n' * 2000)
    allowed["README.md"] = "# \u0e2d\u0e32\u0e23\u0e21\u0e13\u0e4c\n\ttab\r\n".encode()
    assert take(tmp_path / "in", allowed, target).name == "mood"
    wide = with_record(own, "task", "labels", value=[f"l{n}" for n in range(10_000)])
    with pytest.raises(PolyheadError, match="does not answer it"):  # the head has two: labels themselves are allowed
        take(tmp_path / "wide", wide, target)


PAGE = Path(__file__).parents[2] / "docs" / "project" / "bundle-format.md"


def test_the_page_of_the_format_tells_every_limit():
    rows = {
        "a JSON file's values": (MOST_VALUES, DEEPEST),
        "a task's labels": (LABELS_OF_TASK, CHARACTERS_OF_LABEL),
        "a task's probes": (format.MOST_PROBES,),
        "a task's card": (format.LARGEST_CARD // 2**20,),
        "a task's `needs`": (format.MOST_NEEDS,),
        "a safetensors file": (format.MOST_ARRAYS,),
        "a summary of rows (`seen.safetensors`)": (MOST,),
        "hidden layers of a feed-forward half": (MOST_HIDDEN,),
        "bundle.json": (format.MOST_TASKS,),
        "layers of a trunk or a part": (format.LARGEST_DEPTH,),
        "a tokenizer's normaliser": (MOST_CHANGES,),
    }
    told = dict(re.findall(r"^\| (.*?) \| (.*) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    for name, numbers in rows.items():
        assert [f"{number:,}" for number in numbers] == re.findall(r"\d[\d,]*\d|\d", told[name]), name


def test_a_refusal_names_the_file_of_the_upload_and_no_folder_of_the_server(tmp_path):
    """Of the server's own process and of its process of changes, also where the folder's name has a blank."""
    target = bundle_of(tmp_path / "a b")
    members = members_of(target)

    async def scenario():
        async with served(target) as (client, _):
            for name in ("scores.json", "probes.jsonl", "part.safetensors"):
                answer = await client.put("/v1/tasks/mood", content=tar(with_file(members, name, b"{")))
                message = answer.json()["error"]["message"]
                assert answer.status_code == 422 and f"the upload/tasks/mood/v0001/{name}" in message, message
                assert str(tmp_path) not in answer.text and "(a file)" not in message

    asyncio.run(scenario())
    (target / "bundle.json").write_bytes(b"{")
    order = Order(operation="remove", root=str(target), name="mood")
    message = json.loads(change_reply(json.dumps(msgspec.to_builtins(order)).encode(), Prover()))["error"]["message"]
    assert "the bundle/bundle.json" in message and "a b" not in message


@pytest.mark.slow
def test_a_server_answers_all_of_them_and_ends_under_all_of_them(uploads, target):
    """They come one after another with their status, then all at once with SIGTERM as the last byte is sent."""
    before = (target / "bundle.json").read_bytes()
    with server(target) as (own, port), contextlib.ExitStack() as stack:
        for name, members in uploads.items():
            answer = put(port, tar(members))
            assert answer.status_code in (413, 422), (name, answer.text)
            assert str(target.parent) not in answer.text and json.loads(answer.text)["error"]["message"]
        sent = [threading.Event() for _ in uploads]
        for members, event in zip(uploads.values(), sent, strict=True):
            caller = threading.Thread(target=put, args=(port, tar(members), event.set))
            caller.start()
            stack.callback(caller.join)
        assert any(event.wait(60) for event in sent)
        own.send_signal(signal.SIGTERM)
        assert own.wait(60) in (0, 1)  # 1: a busy machine gave the first of its two clocks no turn
    assert (target / "bundle.json").read_bytes() == before
