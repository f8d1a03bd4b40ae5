"""Arrays of unlike lengths end to end are the list of them."""

import numpy as np
import pytest

from polyhead.engine.outputs import Ragged
from polyhead.text.encodings import starts_of


def of(sizes, *, begin=0):
    total = sum(sizes)
    flat = np.arange(2 * total, dtype=np.float32).reshape(total, 2) + begin
    ends = np.cumsum(sizes)
    return Ragged(flat, starts_of(np.array(sizes, np.int64))), [
        flat[e - s : e] for s, e in zip(sizes, ends, strict=True)
    ]


@pytest.mark.parametrize("sizes", [[3, 0, 2], [0], [], [1, 1, 5]])
def test_ragged_is_the_list_of_its_arrays(sizes):
    ragged, listed = of(sizes)
    assert len(ragged) == len(listed)
    for some in (list(ragged), [ragged[i] for i in range(len(sizes))], ragged[:], ragged[::-1][::-1]):
        for one, other in zip(some, listed, strict=True):
            np.testing.assert_array_equal(one, other)
    for i in range(-len(sizes), 0):
        np.testing.assert_array_equal(ragged[i], listed[i])
    with pytest.raises(IndexError):
        ragged[len(sizes)]


def test_several_are_one_after_the_other():
    (first, one), (second, other) = of([2, 0, 1]), of([4, 3], begin=100)
    for found, wanted in zip(Ragged.joined([first, second]), [*one, *other], strict=True):
        np.testing.assert_array_equal(found, wanted)
