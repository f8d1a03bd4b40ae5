"""Adding, replacing, rolling back, merging and removing a task that writes, with proofs, like any other task."""

import shutil

import pytest

from polyhead.bundle.read import Bundle
from polyhead.bundle.write import add_tasks
from polyhead.certify import certified, checked
from polyhead.certify.changes import Requester, add_from, remove_from, roll_back, update_from
from polyhead.certify.merged import MergeSource, merge_proven
from polyhead.engine.probes import ProbeRunner
from polyhead.engine.session import Session
from polyhead.errors import IsolationError, UnknownFormat
from support import writing_bundles as made

PROBES = made.texts(3, seed=4)
BY = Requester()


@pytest.fixture
def both(tmp_path):
    """A bundle with a classification, and one over the same encoder with a task that writes."""
    data = made.trunk()
    first = made.bundle(tmp_path / "a", made.class_draft(data, probes=PROBES), data=data)
    second = made.bundle(tmp_path / "b", made.writing_draft(data, probes=PROBES), data=data)
    return first, second


def summaries(root):
    return [result.answers["brief"]["summary"] for result in Session(root, backend="reference").predict(PROBES)]


def test_its_whole_life_is_proven(both, tmp_path):
    first, second = both
    mood = ProbeRunner(Bundle.open(first)).answered(["mood"])["mood"]
    add_from(first, Bundle.open(second), called={}, by=BY)
    written = summaries(first)
    assert written == made.theirs(PROBES)
    add_tasks(second, [made.writing_draft(made.trunk(), seed=3, probes=PROBES)], replace=True)
    changed = update_from(first, Bundle.open(second), {"brief": "brief"}, by=BY)
    assert summaries(first) != written
    assert changed.certificate.answers_changed["brief"], "a certificate says which probes are answered otherwise"
    roll_back(first, ["brief"], by=BY)
    assert summaries(first) == written
    assert not checked(first).findings
    answered = ProbeRunner(Bundle.open(first)).answered(["mood", "brief"])
    assert answered["mood"] == mood and answered["brief"].probes == len(PROBES)
    remove_from(first, ["brief"], by=BY)
    assert set(Bundle.open(first).tasks) == {"mood"}
    assert ProbeRunner(Bundle.open(first)).answered(["mood"])["mood"] == mood


def test_a_change_that_touches_what_it_writes_is_undone(both):
    first, second = both
    add_from(first, Bundle.open(second), called={}, by=BY)
    before = summaries(first)

    def act():
        add_tasks(first, [made.writing_draft(made.trunk(), seed=3, probes=PROBES)], replace=True)

    with pytest.raises(IsolationError, match="brief"):
        certified(first, "add", act, changing=["mood"])
    assert summaries(first) == before


def test_it_is_merged_with_a_proof(both, tmp_path):
    first, second = both
    sources = [MergeSource(folder=str(first)), MergeSource(folder=str(second))]
    report = merge_proven(str(tmp_path / "c"), sources, tokens=20, actor="", show=lambda line: None)
    proofs = {proof.task: proof for proof in report.tasks}
    assert proofs["brief"].probes == len(PROBES) and proofs["brief"].layers == 0
    assert summaries(tmp_path / "c") == summaries(second)


def test_a_bundle_of_an_older_version_is_refused_by_the_task_that_owns_a_model(both, tmp_path):
    _, second = both
    old = tmp_path / "old"
    shutil.copytree(second, old)
    content = (old / "bundle.json").read_text().replace('"version": "v0001"', '"version": "v0001", "owns_model": true')
    (old / "bundle.json").write_text(content)
    with pytest.raises(UnknownFormat, match="task 'brief' of .* owns an encoder-decoder.*train the task again"):
        Bundle.open(old)
