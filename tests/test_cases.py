"""Cases that are one item: all of them run, and the one that fails is named."""

import inspect

import pytest

from support.cases import cases


def test_every_case_runs_and_the_one_that_fails_is_named():
    seen = []

    @cases("low, high", [(1, 2), pytest.param(3, 4, id="turned")])
    @cases("name", ["a", "b"], ids=str.upper)
    def check(low, name, high, fixture):
        seen.append((low, high, name, fixture))
        assert (low, name) != (3, "b")

    assert [*inspect.signature(check).parameters] == ["fixture"]
    with pytest.raises(AssertionError) as caught:
        check(fixture=0)
    assert seen == [(1, 2, "a", 0), (1, 2, "b", 0), (3, 4, "a", 0), (3, 4, "b", 0)]
    assert caught.value.__notes__ == ["case 1 of 2: B", "case 1 of 2: turned"]
