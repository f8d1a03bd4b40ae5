import multiprocessing
import shutil

import numpy as np
import pytest

from disk import FullDisk, run_forking
from polyhead.errors import StoreError
from polyhead.plan import Codec
from polyhead.store import layout
from polyhead.store.features import FeatureStore, key_of

# Forks a writer for every n, which dies, without any cleaning up, right before its n-th step at the disk.
KILLED = """
import os, sys
from pathlib import Path
from disk import Kill, exit_code
from polyhead.store.features import key_of
from store.test_layout import make_store, value

root, deadly, kills = Path(sys.argv[1]), 0, 0
keys, missing = [key_of((name,)) for name in "abc"], [1, 2]
while missing:
    deadly += 1
    if os.fork() == 0:
        store = make_store(root)
        Kill(deadly)
        store.append(keys[1:], [value(2, 2), value(3, 3)])
        os._exit(0)
    code = exit_code()
    kills += code == 9
    store = make_store(root)
    store.verify()
    missing = store.missing(keys)
    assert (missing == [] if code == 0 else missing in ([], [1, 2])), (code, missing)  # both rows, or neither
    assert (store.features(keys[:1]).take([0]).values == 1).all()
taken = store.features(keys).take([1, 2])
assert (taken.values[0, :2] == 2).all() and (taken.values[1] == 3).all()
print(kills)
"""


def make_store(root, **changes):
    return FeatureStore.open(root, **{"digest": "d", "layers": 1, "width": 8, "codec": Codec(name="float16")} | changes)


def value(number, tokens=2):
    return np.full((tokens, 1, 8), float(number), np.float32)


def one_row_store(root):
    store = make_store(root)
    store.append([key_of(("a",))], [value(1)])
    return store


def test_writer_killed_at_any_step_leaves_all_committed_rows_readable(tmp_path):
    one_row_store(tmp_path)
    assert int(run_forking(KILLED, tmp_path)) >= 15
    store = make_store(tmp_path)
    store.append([key_of(("d",))], [value(4)])
    assert not list((tmp_path / "d/segments").glob(".*"))  # the next writer has removed what killed ones left


def test_full_disk_at_any_step_names_the_bytes_and_leaves_nothing(tmp_path):
    one_row_store(tmp_path)
    failures = 0
    for failing in range(1, 100):
        with pytest.MonkeyPatch.context() as patch:
            disk = FullDisk(patch, failing)
            try:
                make_store(tmp_path).append([key_of(("b",))], [value(2, tokens=5)])
            except StoreError as error:
                failures += 1
                assert "No space left" in str(error)
                assert failing <= 2 or "80 bytes" in str(error)  # the first step is the store's own folder
            else:
                assert disk.calls < failing
                break
        store = make_store(tmp_path)
        assert not list((tmp_path / "d/segments").glob(".*"))
        if len(store) == 2:  # only the last flush, that of the folder, can fail after the rename
            assert disk.calls == failing and failures == failing
            break
        assert len(store) == 1
    assert failures >= 12


def test_full_disk_while_a_store_is_created_leaves_a_folder_that_can_be_opened_later(tmp_path, monkeypatch):
    for failing in range(1, 8):
        with monkeypatch.context() as patch:
            FullDisk(patch, failing)
            with pytest.raises(StoreError, match="No space left"):
                make_store(tmp_path / str(failing))
        one_row_store(tmp_path / str(failing))


@pytest.mark.parametrize("name", ["data.bin", "keys.bin", "offsets.npy", "segment.json"])
@pytest.mark.parametrize("damage", ["truncated", "longer", "missing", "zeros"])
def test_damaged_file_is_named(tmp_path, name, damage):
    one_row_store(tmp_path)
    path = tmp_path / "d/segments/00000000" / name
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        changed = {"truncated": content[:-2], "longer": content + b"\0", "zeros": bytes(len(content))}[damage]
        path.write_bytes(changed)
    with pytest.raises(StoreError, match=name):
        make_store(tmp_path).verify()


def test_one_changed_bit_is_found_by_verify(tmp_path):
    store = one_row_store(tmp_path)
    path = tmp_path / "d/segments/00000000/data.bin"
    content = bytearray(path.read_bytes())
    content[3] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(StoreError, match=r"data\.bin was changed"):
        store.verify()


@pytest.mark.parametrize("name", layout.FILES)
def test_a_store_with_any_flipped_bit_is_refused_by_name_when_it_is_opened(tmp_path, name):
    """The digests were there and nobody read them: another part was trained, with exit code 0."""
    one_row_store(tmp_path / "whole")
    places = range((tmp_path / "whole/d/segments/00000000" / name).stat().st_size)
    for place in places:
        root = tmp_path / str(place)
        shutil.copytree(tmp_path / "whole", root)
        path = root / "d/segments/00000000" / name
        content = bytearray(path.read_bytes())
        content[place] ^= 1 << place % 8
        path.write_bytes(bytes(content))
        with pytest.raises(StoreError, match=rf"{name} .*delete .*00000000"):
            make_store(root)
    assert len(places) >= 16


def test_each_segment_is_hashed_once_by_a_process_and_again_when_its_files_are_others(tmp_path, monkeypatch):
    hashed, verify = [], layout.verify_segment
    monkeypatch.setattr(layout, "verify_segment", lambda folder: hashed.append(folder.name) or verify(folder))
    store = one_row_store(tmp_path)
    store.append([key_of(("b",))], [value(2)])
    for _ in range(3):
        make_store(tmp_path).features([key_of(("a",))])
    assert hashed == ["00000000", "00000001"]
    path = tmp_path / "d/segments/00000000/data.bin"
    again = path.with_name("again")
    again.write_bytes(path.read_bytes())  # another file under the same name
    again.replace(path)
    make_store(tmp_path)
    assert hashed == ["00000000", "00000001", "00000000"]


def test_offsets_whose_header_claims_terabytes_are_refused(tmp_path):
    one_row_store(tmp_path)
    path = tmp_path / "d/segments/00000000/offsets.npy"
    content = path.read_bytes()
    assert b"(2,), }           " in content
    path.write_bytes(content.replace(b"(2,), }           ", b"(999999999999,), }"))
    with pytest.raises(StoreError, match=r"offsets\.npy"):
        make_store(tmp_path)


@pytest.mark.parametrize("offsets", [[0, 3, 2], [1, 1, 2], [0, 1, 1]], ids=["backward", "start", "end"])
def test_offsets_that_do_not_fit_are_refused(tmp_path, offsets):
    make_store(tmp_path).append([key_of(("a",)), key_of(("b",))], [value(1, 1), value(2, 1)])
    np.save(tmp_path / "d/segments/00000000/offsets.npy", np.array(offsets, np.int64))
    with pytest.raises(StoreError, match=r"offsets\.npy does not fit"):
        make_store(tmp_path)


@pytest.mark.parametrize("content", [b"\xff\xfe", b"{}", b"[" * 100_000, b'{"format": 7, "x": 1}'])
def test_manifest_that_is_no_manifest_is_named(tmp_path, content):
    one_row_store(tmp_path)
    (tmp_path / "d/manifest.json").write_bytes(content)
    with pytest.raises(StoreError, match=r"manifest\.json"):
        make_store(tmp_path)


def test_store_of_a_newer_format_is_refused(tmp_path):
    one_row_store(tmp_path)
    path = tmp_path / "d/manifest.json"
    path.write_bytes(path.read_bytes().replace(b'"format": 1', b'"format": 2'))
    with pytest.raises(StoreError, match="format 2"):
        make_store(tmp_path)


def _append_many(root, writer):
    store = make_store(root)
    for i in range(5):
        store.append([key_of((f"{writer} {i}",)), key_of(("shared",))], [value(i), value(9)])


def test_two_processes_append_to_one_store_and_no_row_is_lost_or_doubled(tmp_path):
    make_store(tmp_path)
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_append_many, args=(tmp_path, writer)) for writer in "xy"]
    for process in writers:
        process.start()
    for process in writers:
        process.join()
    assert [process.exitcode for process in writers] == [0, 0]
    store = make_store(tmp_path)
    store.verify()
    assert len(store) == 11


def test_second_writer_is_told_who_waits_for_whom(tmp_path):
    store = one_row_store(tmp_path)
    with (
        layout.writing(tmp_path / "d", "the store"),
        pytest.raises(StoreError, match="another process has been writing"),
        layout.writing(tmp_path / "d", "the store", patience=0),
    ):
        raise AssertionError("two writers at once")
    store.append([key_of(("b",))], [value(2)])


def test_folder_that_cannot_be_written_is_a_store_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be written"):
        make_store(tmp_path / "file")
