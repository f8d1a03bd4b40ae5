"""Bundles written by old versions, committed, are still read, and say what they said on that day."""

from pathlib import Path

import numpy as np
import pytest

from formats.write_v1 import golden_part, golden_record, golden_trunk, write
from polyhead.bundle.format import FORMAT
from polyhead.bundle.read import Bundle
from polyhead.trunk_data import arrays_digest

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
