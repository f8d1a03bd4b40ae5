import pytest
import torch

from polyhead.deep.nn.runtime import deterministic
from polyhead.deep.nn.trunk import Trunk


def test_settings_are_restored_after_the_block_and_after_an_error():
    before = torch.are_deterministic_algorithms_enabled()
    with deterministic():
        assert torch.are_deterministic_algorithms_enabled()
    assert torch.are_deterministic_algorithms_enabled() == before
    with pytest.raises(ValueError, match="inside"), deterministic():
        raise ValueError("inside")
    assert torch.are_deterministic_algorithms_enabled() == before


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_rows_batch_mates_change_no_bit_at_a_fixed_shape(data, batch, dtype):
    """Fixed rows and tokens: a row's answer is the same bits whatever its mates hold, at every repetition."""
    ids, mask, segments = batch
    trunk = Trunk.from_data(data, dtype=dtype)
    others = ids.clone()
    others[1:] = (others[1:] + 3) % 14
    with deterministic(), torch.inference_mode():
        first = trunk(ids, mask, segments=segments).last
        assert torch.equal(first, trunk(ids, mask, segments=segments).last)
        assert torch.equal(first[0], trunk(others, mask, segments=segments).last[0])
