"""Which cases of a test are of the first tier."""

import pytest
from _pytest.mark import ParameterSet


def first_of(values):
    """Values to parametrize by, of which the first alone is of the first tier: `make test` runs one of a kind.

    A tuple holds a value for each of several names.
    """
    first, *others = values
    return [first, *(_slow(value) for value in others)]


def _slow(value):
    if isinstance(value, ParameterSet):
        return pytest.param(*value.values, id=value.id, marks=(*value.marks, pytest.mark.slow))
    is_several = isinstance(value, tuple)
    return pytest.param(*value, marks=pytest.mark.slow) if is_several else pytest.param(value, marks=pytest.mark.slow)
