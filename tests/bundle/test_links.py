"""No write leaves a bundle through a link, and nothing beside it is touched, whatever lies under the names it uses."""

import shutil
from contextlib import suppress

import numpy as np
import pytest

from bundle.test_write import add
from formats.write_v1 import golden_trunk
from polyhead.bundle.atomic import BUILDING, remove_workspace, workspace
from polyhead.bundle.create import write_bundle
from polyhead.bundle.format import CERTIFICATES
from polyhead.bundle.journal import finish, start_operation
from polyhead.bundle.manifest import read_bundle_file
from polyhead.bundle.merge import merge_bundles
from polyhead.bundle.read import Bundle
from polyhead.bundle.remove import sweep_bundle
from polyhead.bundle.write import add_tasks, set_versions
from polyhead.certify.certificate import Certificate, Ledger
from polyhead.certify.proof import locked
from polyhead.engine.probes import Numerics, keep_agreements
from polyhead.engine.scale_files import write_scales
from polyhead.engine.scales import Scale, Scales
from polyhead.errors import BundleError, LockError, PolyheadError
from polyhead.files import temporary_name
from polyhead.folders import MARKER, claim
from polyhead.tasks.agreement import Agreement
from support.disk_failures import fsync
from support.outside_files import OTHERS, PLANTS, listed, make_others, plant, untouched
from support.tiers import first_of
from support.writing_bundles import tiny_draft

TEMPORARY = ".new-0123456789abcdef-"  # as names of ours begin, if one could know them
NAMES = (
    "bundle.json",
    ".new-bundle.json",
    f"{TEMPORARY}bundle.json",
    ".lock",
    ".begun.json",
    "agreements.json",
    ".new-agreements.json",
    "trunk",
    "tasks",
    "tasks/first",
    "tasks/first/.new-v0003",
    f"tasks/first/{TEMPORARY}v0003",
    "tasks/third",
    "families",
    "tasks/brief",
    "tasks/brief/.new-v0002",
    "certificates",
    "certificates/.lock",
    "certificates/.new-0001-verify.json",
    "cache",
    "cache/int8.json",
    "cache/.new-scales",
    "cache/.new-int8.json",
)
SCALES = Scales({"a" * 64: Scale(smooth=np.ones(3, np.float32), step=0.5, zero=7)}, digest="0" * 64)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A bundle with everything in it that a writer could meet."""
    root = tmp_path_factory.mktemp("links") / "bundle"
    bundle = write_bundle(root, golden_trunk())
    for name in ("first", "second"):
        add(bundle, name)
    add(bundle, "first", shift=1.0, replace=True)
    add_tasks(root, [tiny_draft(golden_trunk())])
    for write in WRITERS.values():
        if write not in (added, removed):
            write(root)
    return root


def added(root):
    add(Bundle.open(root, verify=False), "third")


def replaced(root):
    add(Bundle.open(root, verify=False), "first", shift=2.0, replace=True)


def rolled_back(root):
    Bundle.open(root, verify=False).set_version("first", "v0001")


def changed_writing(root):
    add_tasks(root, [tiny_draft(golden_trunk())], replace=True)
    set_versions(root, {"brief": "v0001"})


def agreed(root):
    how = Numerics(backend="reference", precision="float32")
    keep_agreements(Bundle.open(root, verify=False), how, {"first": Agreement(rows=1, share=1.0)})


def calibrated(root):
    write_scales(Bundle.open(root, verify=False), SCALES, texts=1, backend="reference", changes={})


def begun(root):
    lines = read_bundle_file(root).tasks
    tried = start_operation(root, "rollback", ["first"], lines=lines, wanted=lambda: {"first": "v0001"})
    finish(root, tried)


def certified(root):
    with locked(root, "verify"):
        Ledger(root).write(
            Certificate(operation="verify", changed={}, numerics={}, before={}, after={}, unchanged=True)
        )


def removed(root):
    for name in ("brief", "first"):
        with suppress(PolyheadError):
            Bundle.open(root, verify=False).remove_task(name)
    sweep_bundle(root)


WRITERS = {
    "add": added,
    "replace": replaced,
    "roll back": rolled_back,
    "models": changed_writing,
    "agree": agreed,
    "quantize": calibrated,
    "begun": begun,
    "certificate": certified,
    "remove": removed,
}


@pytest.mark.parametrize("kind", first_of([*PLANTS, "link to folders"]))
@pytest.mark.parametrize("name", NAMES)
def test_no_writer_leaves_the_bundle(made, tmp_path, monkeypatch, name, kind):
    """`.new-bundle.json`, `.new-agreements.json` and `cache` as links led writers into files of others."""
    monkeypatch.setattr("os.fsync", fsync)
    root = tmp_path / "bundle"
    shutil.copytree(made, root)
    last = name.rpartition("/")[2]
    names = (last, last.removeprefix(".new-"), "v0001", "v0003", "first", "brief", "int8.json", ".lock", "README.md")
    others = make_others(tmp_path, *dict.fromkeys((*names, f"{TEMPORARY}x")))
    for write in WRITERS.values():
        plant(root / name, kind, others)
        with untouched(tmp_path, but=[root]), suppress(PolyheadError):
            write(root)
    if ".new-" in name and TEMPORARY not in name and "certificates" not in name:
        Bundle.open(root)  # what bears no name of ours is in nobody's way


@pytest.mark.parametrize("kind", PLANTS)
def test_what_only_looks_like_a_temporary_name_stays(made, tmp_path, kind):
    root, names = tmp_path / "bundle", [".new-bundle.json", ".new-notes", ".newer", ".new-0123-bundle.json"]
    shutil.copytree(made, root)
    others = make_others(tmp_path)
    for name in names:
        plant(root / name, kind, others)
    before = {path: told for path, told in listed(root).items() if path.partition("/")[0] in names}
    replaced(root)
    rolled_back(root)
    sweep_bundle(root)
    assert {path: told for path, told in listed(root).items() if path.partition("/")[0] in names} == before


def test_what_killed_writers_left_is_removed(made, tmp_path):
    root = tmp_path / "bundle"
    shutil.copytree(made, root)
    left = [root / temporary_name("bundle.json"), root / "tasks" / "first" / temporary_name("v0009")]
    left[0].write_text("half of it")
    left[1].mkdir()
    (left[1] / "part.safetensors").write_text("half of it")
    replaced(root)
    assert not any(path.exists() for path in left)
    assert not [name for name in listed(root) if ".new-" in name]


@pytest.mark.parametrize("kind", ["link to a file", "dangling link", "link to a folder", "folder", "pipe"])
@pytest.mark.parametrize("write", [replaced, changed_writing, agreed, calibrated])
def test_a_lock_that_cannot_be_used_is_what_the_error_speaks_of(made, tmp_path, write, kind):
    """It spoke of folders of removed tasks that cannot be deleted."""
    root = tmp_path / "bundle"
    shutil.copytree(made, root)
    plant(root / ".lock", kind, make_others(tmp_path))
    with (
        untouched(tmp_path),
        pytest.raises(LockError, match=r"the lock .*/\.lock cannot be used.*Got.*Allowed.*Do") as told,
    ):
        write(root)
    assert "removed" not in str(told.value) and "folders of" not in str(told.value)


def test_a_lock_that_may_not_be_opened_is_what_the_error_speaks_of(made, tmp_path, monkeypatch):
    import os

    root, real = tmp_path / "bundle", os.open
    shutil.copytree(made, root)

    def refused(path, flags, *rest, **named):
        if str(path).endswith(".lock"):
            raise PermissionError(13, "Permission denied")
        return real(path, flags, *rest, **named)

    monkeypatch.setattr(os, "open", refused)
    with pytest.raises(LockError, match=r"\.lock cannot be used.*Permission denied.*give access"):
        replaced(root)


# folders beside a bundle

BESIDE = (".new-made", ".importing-made", ".made.learning")


@pytest.mark.parametrize("kind", ["link to a file", "link to a folder", "dangling link", "folder", "pipe", "working"])
@pytest.mark.parametrize("name", BESIDE)
def test_a_folder_beside_a_bundle_is_not_ours_by_its_name(tmp_path, name, kind):
    """A folder `.new-OUT` that held nothing but a folder `bundle` was emptied, and `.OUT.learning` whatever it held."""
    others = make_others(tmp_path, "bundle", ".lock", "scored", "kept")
    place = tmp_path / name
    plant(place, "folder" if kind == "working" else kind, others)
    if kind == "working":  # nothing in it but names of ours
        (place / "mine.txt").rename(place / ".lock")
        (place / "bundle").mkdir()
        (place / "bundle" / "mine.txt").write_text("mine")
    with untouched(tmp_path):
        remove_workspace(place)
        with pytest.raises(BundleError, match="something else has its name.*Got.*Allowed.*Do"), workspace(place, "no"):
            pytest.fail("it is taken for ours")
        remove_workspace(place)


def test_what_others_put_into_a_folder_of_ours_stays(tmp_path):
    place = tmp_path / ".new-made"
    with workspace(place, "it cannot be written") as made:
        made.mkdir()
        (made / "half").write_text("")
        (place / "mine.txt").write_text("mine")
    assert listed(place).keys() == {"mine.txt", MARKER}
    with workspace(place, "it cannot be written") as made:  # it is ours still
        made.mkdir()
    (place / "mine.txt").unlink()
    remove_workspace(place)
    assert not list(tmp_path.iterdir())


def test_a_folder_of_an_earlier_version_is_refused_and_left(tmp_path):
    (tmp_path / ".new-made" / "bundle").mkdir(parents=True)
    (tmp_path / ".new-made" / ".lock").touch()
    bundle = write_bundle(tmp_path / "one", golden_trunk())
    add(bundle, "first")
    with untouched(tmp_path), pytest.raises(BundleError, match=f"without {MARKER}"):
        merge_bundles(tmp_path / "made", [Bundle.open(bundle.root)])


def test_the_links_in_a_folder_of_ours_are_not_followed_when_it_goes(tmp_path):
    others, place = make_others(tmp_path), tmp_path / ".new-made"
    claim(place, BUILDING)
    (place / ".lock").symlink_to(others / "files" / "mine.txt")
    (place / "bundle").symlink_to(others / "files")
    with untouched(tmp_path, but=[place]):
        remove_workspace(place)


def test_a_new_bundle_leaves_what_is_no_trunk_of_ours(tmp_path):
    """A folder called as a file of the trunk is somebody's; it was removed with all it held."""
    (tmp_path / "new" / "trunk" / "weights.safetensors").mkdir(parents=True)
    (tmp_path / "new" / "trunk" / "weights.safetensors" / "mine.txt").write_text("mine")
    with pytest.raises(BundleError):
        write_bundle(tmp_path / "new", golden_trunk())
    assert (tmp_path / "new" / "trunk" / "weights.safetensors" / "mine.txt").read_text() == "mine"


def test_certificates_that_are_a_link_are_refused(made, tmp_path):
    root = tmp_path / "bundle"
    shutil.copytree(made, root)
    plant(root / CERTIFICATES, "link to a folder", make_others(tmp_path))
    with untouched(tmp_path), pytest.raises(BundleError, match="certificates is a link"):
        certified(root)


def test_the_helper_sees_every_change(tmp_path):
    others = make_others(tmp_path)
    for change in (
        lambda: (others / "files" / "new").write_text(""),
        lambda: (others / "files" / "new").unlink(),
        lambda: (others / "files" / "mine.txt").write_text("other"),
        lambda: (tmp_path / "link").symlink_to("a"),
        lambda: ((tmp_path / "link").unlink(), (tmp_path / "link").symlink_to("b")),
        lambda: (others / "folders" / "empty").mkdir(),
    ):
        with pytest.raises(AssertionError), untouched(tmp_path):
            change()
    with untouched(tmp_path, but=[tmp_path / OTHERS]):
        (others / "more").write_text("")


def test_models_and_tasks_stay_where_all_writers_went(made):
    """The writers that the cases above run do what they say."""
    bundle = Bundle.open(made)
    assert set(bundle.tasks) == {"first", "second", "brief"} and bundle.version("first") == "v0001"
    assert bundle.versions("first") == ["v0001", "v0002", "v0003"] and bundle.version("brief") == "v0001"
    assert {"agreements.json", "cache/int8.json", "certificates/0001-verify.json"} <= listed(made).keys()
