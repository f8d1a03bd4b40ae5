"""`polyhead features` on tiny stores."""

import json

import pytest

from polyhead.bundle.read import Bundle
from polyhead.store.corpus.plain import PlainStore
from polyhead.store.jobs.backfill import BackfillRequest, backfill
from polyhead.testing import tiny_trunk
from support.backfills import append, make_bundle, schema, texts
from support.commands import run

OTHER = tiny_trunk(seed=6)
SIDES = ("old-store", "new-store", "--old", "old", "--new", "new")


@pytest.fixture
def folder(tmp_path):
    """Two encoders; the new store lacks 2 of 30 texts."""
    old, new = make_bundle(tmp_path / "old", seed=2), make_bundle(tmp_path / "new", trunk=OTHER, seed=6)
    for name, bundle, trunk, count in (("old-store", old, None, 30), ("new-store", new, OTHER, 28)):
        path, named = Bundle.open(bundle).tasks["mood"].path, {} if trunk is None else {"trunk": trunk}
        append(PlainStore.create(str(tmp_path / name), schema(path, **named)), path, texts(range(count)), **named)
        backfill(tmp_path / name, bundle, BackfillRequest(executor="inline"))
    rows = [{"text": text} for (text,) in texts(range(30))]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def test_two_encoders_are_compared_and_their_flips_written(folder):
    words = ("--flips", "flips.jsonl", "--texts", "texts.jsonl", "--most", "3")
    done = run("features", "compare", *SIDES, *words, cwd=folder)
    assert done.code == 0, done.err
    assert "new-store: 28 of these, 2 are lacking, 0 more" in done.out
    assert "mood v0001 v0001" in done.out and "changes of mood" in done.out and "95 % interval" in done.out
    flips = [json.loads(line) for line in (folder / "flips.jsonl").read_text().splitlines()]
    assert 3 < len(flips) <= 9 and f"flips.jsonl: {len(flips)} flips, and " in done.out
    assert all([text] in [list(each) for each in texts(range(28))] for flip in flips for text in flip["texts"])
    found = json.loads(run("features", "compare", *SIDES, "--tasks", "mood", "--json", "-", cwd=folder).out)
    assert [task["compared"] for task in found["tasks"]] == [28] and found["flips"] == []
    share, low = found["tasks"][0]["equal"] / 28, found["tasks"][0]["low"]
    assert run("features", "compare", *SIDES, "--tasks", "mood", "--at-least", low - 1e-5, cwd=folder).code == 0
    lower = run("features", "compare", *SIDES, "--tasks", "mood", "--at-least", low + 0.001, cwd=folder)
    lower.refuses("agree less than asked, or on too few documents to tell: mood", f"{share:.4f} of 28")
    assert "mood v0001 v0001" in lower.out


def test_stored_answers_are_written_as_labels(folder):
    words = ("old-store", "old", "mood", "topics", "--texts", "texts.jsonl", "--output", "labels.jsonl")
    done = run("features", "labels", *words, cwd=folder)
    assert done.code == 0, done.err
    assert "labels.jsonl: 30 rows of 30 documents" in done.out
    rows = [json.loads(line) for line in (folder / "labels.jsonl").read_text().splitlines()]
    assert list(rows[0]) == ["id", "text", "mood", "mood.score", "topics", "topics.score"]
    assert {row["mood"] for row in rows} <= {"good", "bad"} and all(isinstance(row["topics"], list) for row in rows)
    before = (folder / "labels.jsonl").read_bytes()
    run("features", "labels", *words, "--at-least", "1", cwd=folder).refuses("no answer of mood, topics", "texts.jsonl")
    assert (folder / "labels.jsonl").read_bytes() == before


def test_readers_are_switched_shown_and_switched_back(folder):
    run("features", "switch", "current.json", cwd=folder).refuses("no file at current.json")
    assert run("features", "switch", "current.json", "--store", "old-store", "--bundle", "old", cwd=folder).code == 0
    new = ("--store", "new-store", "--bundle", "new")
    run("features", "switch", "current.json", *new, cwd=folder).refuses("2 of 30 documents", "--incomplete")
    done = run("features", "switch", "current.json", *new, "--incomplete", cwd=folder)
    assert done.code == 0, done.err
    assert "current.json: new-store, answered by new" in done.out and "before: old-store, answered by old" in done.out
    assert "mood v0001 v0001" in done.out
    back = run("features", "switch", "current.json", "--back", "--json", "-", cwd=folder)
    assert json.loads(back.out)["pointer"]["current"]["store"] == "old-store"
    assert "current.json: old-store" in run("features", "switch", "current.json", cwd=folder).out


def test_what_a_switch_named_is_answered_and_looked_into_by_the_name_of_its_file(folder):
    readers = folder / "readers"
    readers.mkdir()
    for name, count in (("old", 30), ("new", 28)):
        words = ("--store", f"{name}-store", "--bundle", name, "--incomplete")
        assert run("features", "switch", "readers/current.json", *words, cwd=folder).code == 0
        info = run("features", "info", "readers/current.json", "--json", "-", cwd=folder)
        assert json.loads(info.out)["documents"] == count
        filled = run("backfill", name, "--features", "readers/current.json", cwd=folder)
        assert filled.code == 0 and f"{count} documents, 0 answered now" in filled.out, filled.err
        text = texts([3])[0][0]
        near = run("features", "near", "readers/current.json", text, "--bundle", name, "--top", "1", cwd=folder)
        assert near.code == 0 and f"{count} documents compared" in near.out, near.err
    run("backfill", "old", "--features", "readers/current.json", cwd=folder).refuses("another trunk")
    run("features", "info", "texts.jsonl", cwd=folder).refuses("texts.jsonl")


def test_what_is_asked_wrongly_is_refused(folder):
    run("features", "compare", "old-store", "new-store", "--old", "new", "--new", "new", cwd=folder).refuses(
        "another trunk", Bundle.open(folder / "old").digest, OTHER.digest
    )
    run("features", "compare", *SIDES, "--tasks", "moods", cwd=folder).refuses("moods", "mood")
    run("features", "compare", *SIDES, "--flips", "no/flips.jsonl", cwd=folder).refuses("no folder")
    run("features", "compare", "nowhere", *SIDES[1:], cwd=folder).refuses("no store at nowhere")
    run("features", "compare", *SIDES, "--at-least", "2", cwd=folder).refuses("--at-least", code=2)
    run("features", "labels", "old-store", "old", "--texts", "texts.jsonl", "--output", "x", cwd=folder).refuses(code=2)
    words = ("old-store", "old", "mood", "--texts", "texts.jsonl", "--output", "texts.jsonl")
    run("features", "labels", *words, cwd=folder).refuses("cannot write texts.jsonl")
    run("features", "labels", *words[:-1], "labels.csv", cwd=folder).refuses("it ends in .jsonl", code=2)
    run("features", "switch", "current.json", "--store", "old-store", cwd=folder).refuses("--bundle", code=2)
    both = ("--store", "old-store", "--bundle", "old", "--back")
    run("features", "switch", "current.json", *both, cwd=folder).refuses("--back", code=2)
    run("features", "switch", "old/bundle.json", *both[:-1], cwd=folder).refuses("cannot write old/bundle.json")
    (folder / "empty.jsonl").write_text("")
    flips = ("--flips", "flips.jsonl", "--texts", "empty.jsonl")
    run("features", "compare", *SIDES, *flips, cwd=folder).refuses("empty.jsonl")
