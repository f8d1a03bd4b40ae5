"""`polyhead inspect`: the tree, the tables, and bundles that someone touched."""

import json
import os
import shutil

import pytest

from polyhead.plan import merge
from polyhead.plan.cost import cost_of
from support.commands import run
from support.prompt_groups import ADAPTED, ADAPTERS, GROUP, ROWS, make


@pytest.fixture
def bundle(home, tmp_path):
    """A copy of the bundle to damage."""
    shutil.copytree(home / "bundle", tmp_path / "bundle")
    return tmp_path / "bundle"


def test_every_task_is_in_the_tree_and_in_both_tables(home):
    done = run("inspect", home / "bundle")
    assert done.code == 0
    for task in ("mood", "topics", "urgency", "names", "same", "alike"):
        assert sum(task in line.split() for line in done.out.splitlines()) >= 3, task
    assert "2 layers run for all tasks" in done.out
    for unit in ("MFLOP", "of the shared pass", "KB", "text of 32 tokens"):
        assert unit in done.out


def test_a_learned_trunk_is_not_called_by_the_name_of_the_one_that_it_learned_from(bundle):
    assert "  encoder   learned from" not in run("inspect", bundle).out
    (bundle / "trunk" / "lineage.json").write_text("{}")
    assert "  encoder   learned from" in run("inspect", bundle).out


def test_columns_stand_under_each_other(home):
    lines = run("inspect", home / "bundle").out.splitlines()
    start = next(i for i, line in enumerate(lines) if line.strip().startswith("task "))
    rows = lines[start : start + 7]
    assert len({row.index("  v0001") for row in rows[1:]}) == 1
    ends = {len(row) for row in rows}
    assert len(ends) == 1
    arrows = [line.index("→") for line in lines if "→" in line]
    assert len(arrows) == 6
    assert len(set(arrows)) == 1


def test_scores_name_their_metric_and_split(home):
    told = json.loads(run("inspect", home / "bundle", "--json", "-").out)
    scores = json.loads((home / "bundle" / "tasks" / "mood" / "v0001" / "scores.json").read_text())
    assert told["tasks"]["mood"]["metric"] == "accuracy"
    assert told["tasks"]["mood"]["split"] == "test"
    assert told["tasks"]["mood"]["score"] == pytest.approx(scores["splits"]["test"]["accuracy"], rel=1e-5)
    assert set(told) == {"bundle", "trunk", "verified", "tokens", "tasks", "families", "together", "plan", "total"}


def test_arrays_of_families_are_listed_with_their_size_and_readers(tmp_path, home):
    bundle, sizes = make(tmp_path / "bundle"), {}
    for owner, live in bundle.families.items():
        arrays = bundle.others(GROUP[0] if owner == ROWS else ADAPTED[0])[owner]
        sizes[owner] = sum(array.size for array in arrays.values())
        assert live.version == "v0001"
    done = run("inspect", tmp_path / "bundle")
    for owner, readers in ((ROWS, GROUP), (ADAPTERS, ADAPTED)):
        row = next(line for line in done.out.splitlines() if line.split()[:1] == [owner])
        for piece in (", ".join(readers), f"{sizes[owner]:,}", "v0001"):
            assert f"  {piece}" in row
    told = json.loads(run("inspect", tmp_path / "bundle", "--json", "-").out)
    assert told["families"] == {
        owner: {"version": "v0001", "tasks": list(names), "parameters": sizes[owner], "bytes": 4 * sizes[owner]}
        for owner, names in ((ROWS, GROUP), (ADAPTERS, ADAPTED))
    }
    own = sum(task["added"]["parameters"] for task in told["tasks"].values())
    trunk = next(one["parameters"] for one in told["total"]["owners"] if one["owner"] == "trunk")
    assert told["total"]["parameters"] == trunk + own + sum(sizes.values())
    assert "Families" not in run("inspect", home / "bundle").out


def test_work_that_tasks_do_together_stands_in_the_table_and_all_adds_up(tmp_path):
    """Each of a joint group was said to add next to nothing, though removing all of them saves a whole pass."""
    bundle = make(tmp_path / "bundle")
    found = json.loads(run("inspect", bundle.root, "--json", "-").out)
    group = next(each for each in found["together"] if each["tasks"] == [*GROUP])
    own = {name: task["added"]["flops"] for name, task in found["tasks"].items()}
    assert group["flops"] > max(own[name] for name in GROUP)
    without = merge({name: record.path for name, record in bundle.tasks.items() if name not in GROUP})
    saved = found["total"]["flops"] - cost_of(without, bundle.architecture, 32, folded=True).flops
    assert saved == group["flops"] + sum(own[name] for name in GROUP)
    lines = [line.strip() for line in run("inspect", bundle.root).out.splitlines()]
    start = next(number for number, line in enumerate(lines) if line.startswith("shared pass"))
    end = next(number for number, line in enumerate(lines) if line.startswith("all tasks"))
    assert any(line.startswith(f"+ {', '.join(GROUP)} together") for line in lines[start:end])
    numbers = [float(line.removesuffix(" %").split()[-2].replace(",", "")) for line in lines[start : end + 1]]
    assert numbers[-1] == pytest.approx(sum(numbers[:-1]), abs=0.01 * len(numbers))


def test_costs_are_those_of_the_length_asked_for(home):
    def told(tokens):
        return json.loads(run("inspect", home / "bundle", "--tokens", tokens, "--json", "-").out)

    short, long = told(8), told(40)
    assert short["tokens"] == 8
    assert long["total"]["flops"] > 4 * short["total"]["flops"]
    shared = long["total"]["flops"] - sum(task["added"]["flops"] for task in long["tasks"].values())
    assert 0 < shared < long["total"]["flops"]


def test_a_task_shows_its_card(home):
    done = run("inspect", home / "bundle", "--task", "mood", "--json", home / "../told.json")
    assert done.out.startswith("# mood")
    told = json.loads((home / "../told.json").read_text())
    assert told["task"]["labels"] == ["bad", "good"]
    assert told["versions"] == ["v0001"]
    run("inspect", home / "bundle", "--task", "moo").refuses("UnknownTask", "mood")


def test_a_whole_bundle_is_verified(home):
    assert "every file is as it was written" in run("inspect", home / "bundle", "--verify").out


def test_a_bundle_without_tasks_says_so(tmp_path):
    from polyhead.bundle.create import write_bundle
    from polyhead.testing import tiny_trunk

    write_bundle(tmp_path / "b", tiny_trunk())
    done = run("inspect", tmp_path / "b")
    assert done.code == 0
    assert "no task yet" in done.out
    assert json.loads(run("inspect", tmp_path / "b", "--json", "-").out)["tasks"] == {}
    run("predict", tmp_path / "b", "--backend", "reference", stdin="x").refuses("no task yet")


def test_labelled_rows_for_a_bundle_without_tasks_are_refused_with_the_reason(tmp_path):
    """It was said that the columns did not show which task they label, and that none is allowed."""
    from polyhead.bundle.create import write_bundle
    from polyhead.testing import tiny_trunk

    write_bundle(tmp_path / "b", tiny_trunk())
    (tmp_path / "rows.csv").write_text("text,mood\nthe lamp is good,good\n")
    for words in (("calibrate", "b", "rows.csv"), ("evaluate", "b", "--data", "rows.csv"), ("drift", "b", "rows.csv")):
        run(*words, "--backend", "reference", cwd=tmp_path).refuses("the bundle b has no task yet", "`polyhead train`")


def live_files(root):
    return sorted(p.relative_to(root) for p in root.rglob("*") if p.is_file() and p.name not in (".lock", "README.md"))


@pytest.mark.slow
def test_one_changed_bit_in_any_file_is_found_and_the_file_is_named(bundle):
    looked_at = 0
    for name in live_files(bundle):
        file = bundle / name
        content = file.read_bytes()
        for place in (len(content) // 2, len(content) - 1):
            changed = bytearray(content)
            changed[place] ^= 1
            file.write_bytes(bytes(changed))
            if name.name == "bundle.json":  # holds the other digests; what it points at is then not found or not equal
                run("inspect", bundle, "--verify").refuses()
            else:
                run("inspect", bundle, "--verify").refuses(name.name)
            looked_at += 1
        file.write_bytes(content)
    assert looked_at > 20
    assert run("inspect", bundle, "--verify").code == 0


def test_a_truncated_or_missing_file_is_named(bundle):
    for name in live_files(bundle):
        file = bundle / name
        content = file.read_bytes()
        for size in (0, len(content) // 2):
            file.write_bytes(content[:size])
            run("inspect", bundle, "--verify").refuses(name.name)
        file.unlink()
        run("inspect", bundle, "--verify").refuses()
        file.write_bytes(content)
    assert run("inspect", bundle, "--verify").code == 0


def test_predict_and_evaluate_refuse_a_damaged_part(bundle, home):
    part = next((bundle / "tasks" / "mood").rglob("part.safetensors"))
    content = bytearray(part.read_bytes())
    content[-1] ^= 1
    part.write_bytes(bytes(content))
    words = ["--backend", "reference"]
    run("predict", bundle, *words, stdin="lamp").refuses("CorruptFile", "part.safetensors")
    run("evaluate", home / "polyhead.toml", "--bundle", bundle, *words).refuses("part.safetensors")


def test_a_part_of_another_trunk_is_refused_with_both_digests(bundle):
    file = bundle / "bundle.json"
    content = json.loads(file.read_text())
    task = bundle / "tasks" / "mood" / content["tasks"]["mood"]["version"] / "task.json"
    record = json.loads(task.read_text())
    other = "f" * 64
    record["trunk"] = other
    import hashlib

    raw = json.dumps(record).encode()
    task.write_bytes(raw)
    content["tasks"]["mood"]["record"] = hashlib.sha256(raw).hexdigest()
    file.write_text(json.dumps(content))
    run("inspect", bundle).refuses("WrongTrunk", other, content["trunk"])


def test_links_and_names_that_lead_out_of_the_bundle_are_refused(bundle, tmp_path):
    content = json.loads((bundle / "bundle.json").read_text())
    content["tasks"]["../mood"] = content["tasks"]["mood"]
    (bundle / "bundle.json").write_text(json.dumps(content))
    run("inspect", bundle).refuses("../mood")
    del content["tasks"]["../mood"]
    (bundle / "bundle.json").write_text(json.dumps(content))
    weights = bundle / "trunk" / "weights.safetensors"
    shutil.move(weights, tmp_path / "elsewhere")
    os.symlink(tmp_path / "elsewhere", weights)
    run("inspect", bundle, "--verify").refuses("link")


def test_a_folder_that_is_no_bundle_is_named(tmp_path):
    run("inspect", tmp_path).refuses("no bundle")
    run("inspect", tmp_path / "none").refuses("no bundle")
    (tmp_path / "bundle.json").mkdir()
    run("inspect", tmp_path).refuses("bundle")


def test_a_bundle_of_a_later_format_is_refused(bundle):
    content = json.loads((bundle / "bundle.json").read_text())
    content["format"] = 99
    (bundle / "bundle.json").write_text(json.dumps(content))
    run("inspect", bundle).refuses("UnknownFormat", "99")


def test_json_that_cannot_be_written_is_refused_and_an_older_file_survives(home, tmp_path):
    run("inspect", home / "bundle", "--json", tmp_path).refuses("cannot write")
    run("inspect", home / "bundle", "--json", tmp_path / "no" / "x").refuses("cannot write")
    old = tmp_path / "told.json"
    old.write_text('{"older": 1}')
    run("inspect", tmp_path / "none", "--json", old).refuses("no bundle")
    assert old.read_text() == '{"older": 1}'
