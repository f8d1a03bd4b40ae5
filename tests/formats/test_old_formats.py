"""Bundles written by old versions, committed, are still read, and say what they said on that day."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from formats.write_decided import write as write_decided
from formats.write_families import ADAPTERS, PATHS, POOLER, ROWS, arrays
from formats.write_families import write as write_families
from formats.write_v1 import golden_part, golden_record, golden_trunk, write
from polyhead.bundle.format import FORMAT
from polyhead.bundle.manifest import Live
from polyhead.bundle.read import Bundle
from polyhead.encoder.data import arrays_digest

GOLDEN = Path(__file__).parent / "v1"
# As they were when format 1 was made. Other digests for the same files mean that the digest rule has changed,
# which is a change of format: users' bundles and stores would no longer be recognised.
TRUNK = "aed52539043468f27cc07bf566f7ad7f9b6486f56028c8b8dc87dfc9e59b87f6"
PREFIX = "684afe740e420da7507da23a7f36e0c0435114fa01cb11be3c4ad65cf51e3dc8"
PART = "cbfa0bd311862786c17fc4eb8c2a0a03f924df20bbea95da8071d71b9cebf2ad"


@pytest.fixture
def golden():
    return Bundle.open(GOLDEN)


def test_golden_bundle_is_whole(golden):
    golden.verify()
    assert list(golden.tasks) == ["mood"]


def test_golden_digests_are_those_of_the_day(golden):
    assert golden.digest == golden.trunk().digest == TRUNK
    assert golden.tasks["mood"].prefix == PREFIX
    assert golden.tasks["mood"].arrays == arrays_digest(golden.part("mood")) == PART


def test_golden_values_are_those_that_were_written(golden):
    record = golden.tasks["mood"]
    assert (record.task, record.path) == (golden_record(TRUNK).task, golden_record(TRUNK).path)
    assert golden.probes("mood") == [{"input": ["so glad"], "answer": {"label": "up"}}]
    assert golden.scores("mood")["splits"]["test"] == {"accuracy": 0.5}
    for name, array in golden_trunk().arrays.items():
        np.testing.assert_allclose(golden.trunk().arrays[name], array, atol=1e-6)
    for name, array in golden_part().items():
        np.testing.assert_allclose(golden.part("mood")[name], array, atol=1e-6)


def test_a_trunk_that_states_what_is_left_out_today_is_the_same_trunk(tmp_path):
    """Fields of a shape at their default were once written, all of them."""
    root = shutil.copytree(GOLDEN, tmp_path / "bundle")
    facts = json.loads((root / "trunk/trunk.json").read_text())
    stated = {"family": "bert", "positions": 8, "segments": 2, "first_position": 0, "embedding_width": None}
    facts["architecture"] |= stated | {"norm_epsilon": 1e-12, "activation": "gelu"}
    (root / "trunk/trunk.json").write_text(json.dumps(facts))
    bundle = Bundle.open(root)
    bundle.verify()
    assert bundle.digest == bundle.trunk().digest == TRUNK


def test_every_format_up_to_today_has_a_golden_bundle():
    folders = sorted(path.name for path in Path(__file__).parent.glob("v[0-9]*"))
    assert folders == [f"v{number}" for number in range(1, FORMAT + 1)]


def test_bundle_written_today_has_the_files_and_keys_of_the_golden_one(tmp_path):
    """A new field or file is a change of format too: old readers refuse unknown keys."""
    today = write(tmp_path / "today").root
    names = [{str(p.relative_to(root)) for p in root.rglob("*.*")} for root in (today, GOLDEN)]
    assert names[0] - {".lock"} == names[1] - {".lock"}
    for name in ("bundle.json", "trunk/trunk.json", "tasks/mood/v0001/task.json"):
        assert _keys((today / name).read_text()) == _keys((GOLDEN / name).read_text())


def _keys(text):
    return sorted(line.split(":")[0] for line in text.splitlines() if ":" in line)


SHARING = Path(__file__).parent / "families"
PREFIXES = {
    "glad": "048748251f8b49a7bd59779dd0430bf7ba1fd0f4269baee36d1f1ad06b27178f",
    "sad": "048748251f8b49a7bd59779dd0430bf7ba1fd0f4269baee36d1f1ad06b27178f",
    "long": "157dd0fb76b747ed393ee2541014441180b205862822b2e4ec48a6a0d41e37a1",
    "short": "3e23a1addc986a4dc7cb857309862ae94f43a80a1f9597af5da8a57029cc31ea",
}


def test_golden_bundle_with_families_is_whole_and_says_what_it_said():
    bundle = Bundle.open(SHARING)
    bundle.verify()
    assert {name: record.prefix for name, record in bundle.tasks.items()} == PREFIXES
    assert bundle.groups() == [frozenset({"glad", "sad"})]
    starts = {f"task:{name}": 100 * place for place, name in enumerate(PATHS)}
    starts |= {ROWS: 500, ADAPTERS: 600, POOLER: 700}
    for name, make in PATHS.items():
        path = make(name, bundle.digest)
        assert bundle.tasks[name].path == path
        owners = {f"task:{name}": bundle.part(name), **bundle.others(name)}
        assert len(owners) == 3
        for owner, found in owners.items():
            for key, array in found.items():
                np.testing.assert_allclose(array, arrays(path, owner, starts[owner])[key], atol=1e-6)


def test_bundle_with_families_written_today_has_the_files_and_keys_of_the_golden_one(tmp_path, monkeypatch):
    monkeypatch.setattr("polyhead.bundle.write.check_room", lambda record, trunk: None)  # its prompts leave 3 tokens
    today = write_families(tmp_path / "today").root
    names = [{str(p.relative_to(root)) for p in root.rglob("*.*")} for root in (today, SHARING)]
    assert names[0] - {".lock"} == names[1] - {".lock"} and len(names[1]) > 25
    for name in sorted(name for name in names[1] if name.endswith(".json")):
        assert _keys((today / name).read_text()) == _keys((SHARING / name).read_text()), name


DECIDED = Path(__file__).parent / "decided"
SECOND = "bab43fc26cfb49b2cd8b40bb89b7e3b3c18095506e625834c5f6079860480acf"


def test_golden_bundle_about_which_something_was_decided_says_what_it_said():
    bundle = Bundle.open(DECIDED)
    bundle.verify()
    assert bundle.versions("mood") == ["v0001", "v0002"] and bundle.removed == ("gone",)
    live = bundle.lines["mood"]
    assert (live.version, live.pinned) == ("v0001", True)
    assert bundle.tasks["mood"].arrays == PART
    assert bundle.view({"mood": Live(version="v0002", record=SECOND)}).tasks["mood"].prefix == PREFIX


def test_bundle_with_decisions_written_today_has_the_files_and_keys_of_the_golden_one(tmp_path):
    today = write_decided(tmp_path / "today").root
    names = [{str(p.relative_to(root)) for p in root.rglob("*.*")} for root in (today, DECIDED)]
    assert names[0] - {".lock"} == names[1] - {".lock"}
    assert _keys((today / "bundle.json").read_text()) == _keys((DECIDED / "bundle.json").read_text())
