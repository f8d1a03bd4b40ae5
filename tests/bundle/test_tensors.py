import json
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from polyhead.bundle.files import read_arrays, release, write_arrays
from polyhead.errors import BundleError, CorruptFile
from polyhead.store.corpus.plain_files import mapped

ARRAYS = {
    "b": np.sin(np.arange(6, dtype=np.float32)).reshape(2, 3),
    "a": np.float32([7.5]),
    "turned": np.arange(6, dtype=np.float32).reshape(2, 3).T,
}


def raw_file(header, data):
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(encoded).to_bytes(8, "little") + encoded + data


def entry(start, stop, shape, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


def test_written_file_is_read_by_the_safetensors_library_and_its_files_by_us(tmp_path):
    write_arrays(tmp_path / "ours", ARRAYS)
    plain = {name: np.ascontiguousarray(array) for name, array in ARRAYS.items()}
    safetensors.numpy.save_file(plain, tmp_path / "theirs", metadata={"format": "pt"})
    for found in (safetensors.numpy.load_file(tmp_path / "ours"), read_arrays(tmp_path, "theirs")):
        assert set(found) == set(ARRAYS)
        for name, array in ARRAYS.items():
            np.testing.assert_array_equal(found[name], array)


def test_writing_into_read_arrays_leaves_the_file_as_it_is(tmp_path):
    before = write_arrays(tmp_path / "file", ARRAYS)
    read_arrays(tmp_path, "file")["b"][:] = 0
    np.testing.assert_array_equal(read_arrays(tmp_path, "file")["b"], ARRAYS["b"])
    assert before == write_arrays(tmp_path / "again", ARRAYS)


def resident(path):
    """Bytes of memory in which the file lies that this process has mapped."""
    lines = Path("/proc/self/smaps").read_text().splitlines()
    here = next(i for i, line in enumerate(lines) if line.endswith(str(path)))
    return next(int(line.split()[1]) for line in lines[here:] if line.startswith("Rss:"))


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="only Linux says what is resident")
def test_released_arrays_take_no_memory_until_they_are_read_again(tmp_path):
    given = {"a": np.arange(1 << 18, dtype=np.float32).reshape(4, -1), "b": np.ones(3, np.float32)}
    write_arrays(tmp_path / "file", given)
    arrays = read_arrays(tmp_path, "file")
    assert arrays["a"].sum() > 0 and resident(tmp_path / "file") > 500
    part = arrays["a"][1:].T
    release([part, np.ones(3)])
    assert resident(tmp_path / "file") == 0
    np.testing.assert_array_equal(part, given["a"][1:].T)
    np.testing.assert_array_equal(arrays["b"], given["b"])


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="only Linux says what is resident")
def test_released_rows_of_a_store_take_no_memory_either(tmp_path):
    path, content = tmp_path / "file", np.arange(1 << 18, dtype=np.uint32)
    path.write_bytes(content.tobytes())
    rows = mapped(path, content.dtype, content.shape, digest=sha256(content).hexdigest(), root=tmp_path)
    np.testing.assert_array_equal(rows, content)
    assert resident(path) > 500
    release([rows[5:]])
    assert resident(path) == 0
    np.testing.assert_array_equal(rows, content)


def test_no_arrays_make_a_file_without_arrays(tmp_path):
    write_arrays(tmp_path / "file", {})
    assert read_arrays(tmp_path, "file") == {}


@pytest.mark.parametrize("array", [np.zeros(3), np.zeros((0, 2), np.float32)], ids=["float64", "empty"])
def test_arrays_that_the_format_does_not_keep_are_refused(tmp_path, array):
    with pytest.raises(BundleError, match="float32"):
        write_arrays(tmp_path / "file", {"x": array})


HOSTILE = {
    "empty": b"",
    "header of terabytes": (2**42).to_bytes(8, "little") + b"{}",
    "header of all bits": b"\xff" * 8 + b"{}",
    "header beyond the end": (3).to_bytes(8, "little") + b"{}",
    "not json": raw_file(b"not json", b""),
    "not utf-8": raw_file(b'{"\xff": 1}', b""),
    "deep": raw_file(b'{"x":' * 100_000, b""),
    "a list": raw_file([], b""),
    "data of gigabytes": raw_file({"x": entry(0, 2**33, [2**31])}, bytes(8)),
    "shape overflows": raw_file({"x": entry(0, 4, [2**32, 2**32])}, bytes(4)),
    "shape too large for the data": raw_file({"x": entry(0, 4, [2])}, bytes(4)),
    "negative shape": raw_file({"x": entry(0, 4, [-1])}, bytes(4)),
    "negative offset": raw_file({"x": entry(-4, 0, [1])}, bytes(4)),
    "zero dimension": raw_file({"x": entry(0, 0, [0, 2**62])}, b""),
    "overlap": raw_file({"x": entry(0, 4, [1]), "y": entry(0, 4, [1])}, bytes(4)),
    "gap": raw_file({"x": entry(0, 4, [1]), "y": entry(8, 12, [1])}, bytes(12)),
    "longer data": raw_file({"x": entry(0, 4, [1])}, bytes(5)),
    "truncated data": raw_file({"x": entry(0, 4, [1])}, bytes(3)),
    "another type": raw_file({"x": entry(0, 4, [1], "I32")}, bytes(4)),
    "unknown field": raw_file({"x": entry(0, 4, [1]) | {"code": "import os"}}, bytes(4)),
    "hundred dimensions": raw_file({"x": entry(0, 4, [1] * 100)}, bytes(4)),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_file_is_refused_and_named(tmp_path, name):
    (tmp_path / "file.safetensors").write_bytes(HOSTILE[name])
    with pytest.raises(CorruptFile, match=r"file\.safetensors"):
        read_arrays(tmp_path, "file.safetensors")


@settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_file_cut_or_changed_anywhere_is_refused_or_read_never_worse(tmp_path, data):
    (tmp_path / "file").unlink(missing_ok=True)  # a file that is there is never written into
    write_arrays(tmp_path / "file", ARRAYS)
    content = bytearray((tmp_path / "file").read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        (tmp_path / "cut").write_bytes(content[:place])
        with pytest.raises(CorruptFile):
            read_arrays(tmp_path, "cut")
        return
    content[place] = data.draw(st.integers(0, 255))
    (tmp_path / "changed").write_bytes(content)
    try:
        found = read_arrays(tmp_path, "changed")
    except CorruptFile:
        return
    assert sum(array.size for array in found.values()) == 13
