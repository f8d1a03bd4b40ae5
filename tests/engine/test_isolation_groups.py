"""Certified changes of tasks that can only change together, and verifying bundles in which tasks share arrays."""

import json

import pytest

from bundle.test_write import contents
from polyhead.bundle.create import write_bundle
from polyhead.bundle.merge import copy_tasks
from polyhead.bundle.read import Bundle
from polyhead.bundle.remove import unlist
from polyhead.bundle.write import add_tasks, set_versions
from polyhead.certify import ProbeRunner, certified, checked, verify
from polyhead.engine.probes import _read_alike
from polyhead.engine.session import Session
from polyhead.errors import BundleError, IsolationError
from polyhead.testing import tiny_trunk
from support.prompt_groups import ADAPTED, GROUP, adapters, add, draft, group, make, plain

TRUNK = tiny_trunk()
SHAPE = TRUNK.architecture
TEXTS = ("where is my order?", "the lamp was late and broken", "good", "happy ben, sad anna!")
PROBES = [{"text": [text]} for text in TEXTS]
OUTSIDE = ("alone", *ADAPTED)


@pytest.fixture
def root(tmp_path):
    return make(tmp_path / "bundle", trunk=TRUNK, probes=PROBES).root


@pytest.fixture
def theirs(tmp_path):
    """The group trained anew."""
    folder = tmp_path / "theirs"
    write_bundle(folder, TRUNK)
    add(folder, group(TRUNK.digest, 7, probes=PROBES, shape=SHAPE))
    return Bundle.open(folder)


def bits(root, names):
    """What a certificate says of these tasks' outputs."""
    found = ProbeRunner(Bundle.open(root)).answered(names)
    return {name: answered.sha256 for name, answered in found.items()}


def kept(root):
    return {name: raw for name, raw in contents(root).items() if not name.startswith("certificates/")}


def updating(root, theirs, names=GROUP):
    return lambda: copy_tasks(theirs, names, Bundle.open(root), replace=True)


def test_a_change_of_a_group_lists_its_members_and_leaves_all_others_bits(root, theirs):
    before = bits(root, (*OUTSIDE, *GROUP))
    certificate = certified(root, "update", updating(root, theirs), changing=GROUP)
    assert certificate.changed == dict.fromkeys(GROUP, ("v0001", "v0002"))
    assert set(certificate.before) == set(OUTSIDE) and set(certificate.after) == {*OUTSIDE, *GROUP}
    assert {n: certificate.after[n].sha256 for n in OUTSIDE} == {n: before[n] for n in OUTSIDE}
    assert all(certificate.after[n].sha256 != before[n] for n in GROUP)
    assert set(certificate.answers_asked.values()) == {len(TEXTS)}
    assert bits(root, GROUP) == bits(theirs.root, GROUP)  # each answers as where it comes from
    assert verify(root) == []


def test_a_group_goes_back_to_the_bits_of_before_and_leaves_without_a_trace(root, theirs):
    before, files = bits(root, GROUP), kept(root)
    certified(root, "update", updating(root, theirs), changing=GROUP)
    back = certified(root, "rollback", lambda: set_versions(root, dict.fromkeys(GROUP, "v0001")), changing=GROUP)
    assert {n: back.after[n].sha256 for n in GROUP} == before
    gone = certified(root, "remove", lambda: unlist(root, GROUP), changing=GROUP)
    assert gone.changed == dict.fromkeys(GROUP, ("v0001", None)) and set(gone.before) == set(OUTSIDE)
    assert not any("sad" in name or "prompts+moods" in name for name in kept(root))
    again = add(root, group(TRUNK.digest, probes=PROBES, shape=SHAPE))
    assert set(again.values()) == {"v0001"} and bits(root, GROUP) == before
    now = kept(root)
    old, new = (json.loads(some.pop("bundle.json")) for some in (files, now))
    assert (now, new) == (files, old)  # but for the order of names


def test_a_group_may_not_be_changed_behind_an_operation_of_one_member(root, theirs):
    before = kept(root)
    with pytest.raises(IsolationError, match="leave alone") as caught:
        certified(root, "update", updating(root, theirs), changing=["sad"])
    assert set(caught.value.tasks) == {"glad", "calm"} and kept(root) == before
    with pytest.raises(BundleError, match="can only change together"):
        certified(root, "update", updating(root, theirs, ["sad"]), changing=["sad"])
    assert kept(root) == before


def test_a_change_without_proof_is_undone_for_the_whole_group(root, theirs, monkeypatch):
    certified(root, "train", lambda: None, changing=[])
    before = kept(root)

    def act():
        updating(root, theirs)()
        add_tasks(root, [draft("alone", plain("alone", TRUNK.digest), 9, PROBES, SHAPE)], replace=True)

    with pytest.raises(IsolationError, match="alone"):
        certified(root, "update", act, changing=GROUP)
    assert kept(root) == before and verify(root) == []


def test_a_family_that_a_failed_operation_brought_is_taken_away(root):
    before = kept(root)

    def act():
        add(root, adapters(TRUNK.digest, 3, ("new",), "family:new", PROBES, SHAPE))
        raise BundleError("no")

    with pytest.raises(BundleError, match="no"):
        certified(root, "add", act, changing=["new"])
    assert kept(root) == before and not (root / "families/new").exists()


@pytest.mark.parametrize(
    ("file", "hit"),
    [
        ("families/adapters/v0001/part.safetensors", ADAPTED),
        ("families/prompts+moods/v0001/family.json", GROUP),
        ("tasks/glad/v0001/part.safetensors", GROUP),
    ],
    ids=["adapters", "rows", "member"],
)
def test_verifying_names_the_touched_file_and_asks_all_tasks_that_do_not_read_it(root, file, hit):
    certified(root, "train", lambda: None, changing=[])
    raw = bytearray((root / file).read_bytes())
    raw[-3] ^= 1
    (root / file).write_bytes(bytes(raw))
    found = checked(root)
    assert {finding.file for finding in found.findings} == {file}
    assert set(found.equal) == {*OUTSIDE, *GROUP} - set(hit)
    (finding, *_) = found.findings
    assert (finding.family, finding.task) == {
        "families/adapters/v0001/part.safetensors": ("family:adapters", None),
        "families/prompts+moods/v0001/family.json": ("family:prompts:moods", None),
        "tasks/glad/v0001/part.safetensors": (None, "glad"),
    }[file]


def test_verifying_reads_old_versions_of_families_too(root, theirs):
    certified(root, "update", updating(root, theirs), changing=GROUP)
    file = "families/prompts+moods/v0001/part.safetensors"
    raw = bytearray((root / file).read_bytes())
    raw[-3] ^= 1
    (root / file).write_bytes(bytes(raw))
    found = checked(root)
    assert {finding.file for finding in found.findings} == {file} and set(found.equal) == {*OUTSIDE, *GROUP}


def test_tasks_of_one_group_are_asked_together_and_apart_from_others(root):
    add_tasks(root, [draft("plain", plain("plain", TRUNK.digest), 1, PROBES, SHAPE)])
    session = Session(root, deterministic=True)
    groups = [set(names) for names in _read_alike(session, session.records)]
    assert {"alone", "plain"} in groups and set(GROUP) in groups and {"long"} in groups
    assert sum(map(len, groups)) == len(session.records)
