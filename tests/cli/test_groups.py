"""`polyhead tasks` and `merge` over tasks that can only change together: all at once, or refused by name."""

import json

import pytest

from engine.test_isolation_groups import PROBES, SHAPE, TRUNK, bits, kept
from polyhead.bundle.create import write_bundle
from polyhead.bundle.read import Bundle
from support.commands import run
from support.prompt_groups import ADAPTED, ADAPTERS, GROUP, ROWS, adapters, add, group, make


@pytest.fixture
def root(tmp_path):
    return make(tmp_path / "bundle", trunk=TRUNK, probes=PROBES).root


@pytest.fixture
def theirs(tmp_path):
    """The group and the adapters trained anew."""
    write_bundle(tmp_path / "theirs", TRUNK)
    for made in (group, adapters):
        add(tmp_path / "theirs", made(TRUNK.digest, 7, probes=PROBES, shape=SHAPE))
    return tmp_path / "theirs"


def live(root):
    return {name: line.version for name, line in Bundle.open(root).lines.items()}


def told(done):
    assert done.code == 0, done.err
    return json.loads(done.out)


def test_one_member_alone_is_refused_by_every_verb(root, theirs, tmp_path):
    run("tasks", "update", root, theirs, *GROUP)  # so that there is something to go back to
    before = kept(root)
    for folder in ("empty", "newer"):
        write_bundle(tmp_path / folder, TRUNK)
    add(tmp_path / "newer", group(TRUNK.digest, 8, probes=PROBES, shape=SHAPE))
    for words in (
        ["remove", root, "sad"],
        ["update", root, tmp_path / "newer", "sad"],
        ["rollback", root, "sad"],
        ["add", tmp_path / "empty", theirs, "sad"],
    ):
        run("tasks", *words).refuses("calm, glad, sad can only change together", "calm glad sad")
    run("tasks", "merge", tmp_path / "made", f"{theirs}:sad").refuses("can only change together", "calm glad sad")
    assert kept(root) == before and not (tmp_path / "made").exists()


def test_list_says_which_tasks_stand_together(root):
    assert "can only change together: calm, glad, sad" in run("tasks", "list", root).out
    found = told(run("tasks", "list", root, "--json", "-"))
    assert found["groups"] == [sorted(GROUP)]
    assert found["families"] == {ROWS: "v0001", ADAPTERS: "v0001"}


def test_all_members_are_updated_rolled_back_and_removed_in_one_call(root, theirs):
    found = told(run("tasks", "update", root, theirs, *GROUP, "--json", "-"))
    assert found["certificate"]["changed"] == {name: ["v0001", "v0002"] for name in GROUP}
    assert set(found["certificate"]["before"]) == {"alone", *ADAPTED}
    assert found["tasks"]["sad"] == {
        "labels": {"before": ["no", "yes"], "after": ["no", "yes"]},
        "kind": {"before": "single_label", "after": "single_label"},
    }
    assert bits(root, GROUP) == bits(theirs, GROUP)
    done = run("tasks", "rollback", root, *GROUP)
    assert done.code == 0 and all(f"rolled back {name}: v0002 -> v0001" in done.out for name in GROUP)
    done = run("tasks", "rollback", root, *GROUP, "v0002")
    assert done.code == 0 and "v0001 -> v0002" in done.out
    done = run("tasks", "remove", root, *GROUP)
    assert done.code == 0 and "3 other tasks: the same bits on 12 probes" in done.out
    assert set(live(root)) == {"alone", *ADAPTED} and set(Bundle.open(root).families) == {ADAPTERS}
    assert run("tasks", "verify", root).code == 0


def test_members_are_added_under_other_names(root):
    twice = [f"{name}={name}-2" for name in GROUP]
    before = bits(root, GROUP)
    options = [word for one in twice for word in ("--as", one)]
    done = run("tasks", "add", root, root, *GROUP, *options)
    assert done.code == 0, done.err
    opened = Bundle.open(root)
    assert set(opened.groups()) == {frozenset(GROUP), frozenset(f"{name}-2" for name in GROUP)}
    assert list(bits(root, [f"{name}-2" for name in GROUP]).values()) == list(before.values())
    run("tasks", "add", root, root, *GROUP, "--as", "x").refuses("NAME=", code=2)
    run("tasks", "add", root, root, *GROUP, "--as", "other=x").refuses("'other' is not among", code=2)
    back = [word for name in GROUP for word in ("--from-name", f"{name}={name}-2")]
    done = run("tasks", "update", root, root, *GROUP, *back)
    assert done.code == 0 and done.out.count("0 answers changed, of 4 probes") == 3
    same = [word for name in GROUP for word in ("--from-name", f"{name}=sad-2")]
    run("tasks", "update", root, root, *GROUP, *same).refuses("one task", code=2)


@pytest.mark.slow
def test_merging_proves_every_task_also_where_families_get_other_names(root, theirs, tmp_path):
    out = tmp_path / "made"
    found = told(run("tasks", "merge", out, f"{root}:alone,short,{','.join(GROUP)}", f"{theirs}:long", "--json", "-"))
    merged = Bundle.open(out)
    assert set(merged.families) == {ROWS, ADAPTERS, f"{ADAPTERS}-2"}
    assert merged.tasks["long"].needs.keys() == {f"{ADAPTERS}-2"}
    assert bits(out, ["long"]) == bits(theirs, ["long"]) and bits(out, GROUP) == bits(root, GROUP)
    assert {one["task"] for one in found["tasks"]} == {"alone", "short", "long", *GROUP}
    assert found["merged"]["bytes"] < found["separate"]["bytes"]
    assert run("tasks", "verify", out).code == 0
