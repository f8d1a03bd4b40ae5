import json
import struct

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from polyhead.errors import TrunkNotFound, WeightsMismatch
from polyhead.project.weights import open_checkpoint

ARRAYS = {"a": torch.arange(6.0).reshape(2, 3), "b.c": torch.ones(4), "n": torch.arange(3)}


def assert_reads_as_given(folder):
    found = open_checkpoint(folder)
    assert set(found.files) == set(ARRAYS)
    arrays = found.read({"x": "a", "y": "b.c"})
    assert arrays["x"].dtype == np.float32
    assert np.array_equal(arrays["x"], ARRAYS["a"].numpy())
    assert np.array_equal(arrays["y"], ARRAYS["b.c"].numpy())


def shard(folder, weight_map):
    for file in set(weight_map.values()):
        save_file({name: ARRAYS[name] for name, where in weight_map.items() if where == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def test_safetensors_are_read(tmp_path):
    save_file(ARRAYS, tmp_path / "model.safetensors")
    assert_reads_as_given(tmp_path)


def test_shards_are_read(tmp_path):
    shard(tmp_path, {"a": "model-1.safetensors", "n": "model-1.safetensors", "b.c": "model-2.safetensors"})
    assert_reads_as_given(tmp_path)


def test_torchs_own_format_is_read(tmp_path):
    torch.save(ARRAYS, tmp_path / "pytorch_model.bin")
    assert_reads_as_given(tmp_path)


def test_safetensors_come_before_torchs_own_format(tmp_path):
    (tmp_path / "pytorch_model.bin").write_bytes(b"never opened")
    save_file(ARRAYS, tmp_path / "model.safetensors")
    assert_reads_as_given(tmp_path)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_become_float32(tmp_path, dtype):
    save_file({"a": ARRAYS["a"].to(dtype)}, tmp_path / "model.safetensors")
    array = open_checkpoint(tmp_path).read({"x": "a"})["x"]
    assert array.dtype == np.float32
    assert np.array_equal(array, ARRAYS["a"].numpy())


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_refused(tmp_path, value):
    save_file({"a": torch.tensor([1.0, value])}, tmp_path / "model.safetensors")
    with pytest.raises(WeightsMismatch, match="'a'"):
        open_checkpoint(tmp_path).read({"x": "a"})


def test_whole_numbers_are_refused_as_weights(tmp_path):
    save_file(ARRAYS, tmp_path / "model.safetensors")
    with pytest.raises(WeightsMismatch, match="'n'"):
        open_checkpoint(tmp_path).read({"x": "n"})


def test_folder_without_weights_says_what_is_read(tmp_path):
    with pytest.raises(TrunkNotFound, match=r"model\.safetensors, model\.safetensors\.index\.json"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    "raw", [b"", b"abc", struct.pack("<Q", 2**40) + b"{}", b"\0" * 64], ids=["empty", "short", "huge", "zeros"]
)
@pytest.mark.parametrize("name", ["model.safetensors", "model.safetensors.index.json", "pytorch_model.bin"])
def test_broken_files_are_refused(tmp_path, name, raw):
    (tmp_path / name).write_bytes(raw)
    with pytest.raises(WeightsMismatch, match=name):
        open_checkpoint(tmp_path)


def test_truncated_file_is_refused(tmp_path):
    file = tmp_path / "model.safetensors"
    save_file(ARRAYS, file)
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(WeightsMismatch, match="cannot be read"):
        open_checkpoint(tmp_path)


class _Runs:
    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return (open, (str(self.target), "w"))


def test_code_in_a_pickled_file_does_not_run(tmp_path):
    target = tmp_path / "written"
    torch.save({"a": _Runs(target)}, tmp_path / "pytorch_model.bin")
    with pytest.raises(WeightsMismatch):
        open_checkpoint(tmp_path)
    assert not target.exists()


def test_pickled_file_that_is_no_state_dict_is_refused(tmp_path):
    torch.save([torch.ones(2)], tmp_path / "pytorch_model.bin")
    with pytest.raises(WeightsMismatch, match="state dict"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("file", ["../model-1.safetensors", "/tmp/x.safetensors", "..\\x.safetensors", "x.bin"])
def test_index_that_points_elsewhere_is_refused(tmp_path, file):
    index = json.dumps({"weight_map": {"a": file}})
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(WeightsMismatch, match="outside its folder"):
        open_checkpoint(tmp_path)


def test_missing_shard_is_named(tmp_path):
    shard(tmp_path, {"a": "model-1.safetensors", "b.c": "model-2.safetensors"})
    (tmp_path / "model-2.safetensors").unlink()
    with pytest.raises(WeightsMismatch, match=r"model-2\.safetensors.*b\.c"):
        open_checkpoint(tmp_path)
