"""Cases of a test that are one item: each takes less time than an item does."""

import functools
import inspect

from _pytest.mark import ParameterSet


def cases(names, values, ids=None):
    """As `pytest.mark.parametrize`, but all cases are one item; the one that fails is named.

    For tests of a few milliseconds, whose fixtures no case changes.
    """
    names, values = [name.strip() for name in names.split(",")] if isinstance(names, str) else [*names], [*values]
    assert values, "a test without a case"
    ids = ids if ids is None or callable(ids) else [*ids]

    def decorated(test):
        @functools.wraps(test)
        def every(**given):
            for number, value in enumerate(values):
                row, label = _read(number, value, ids)
                named = dict(zip(names, row if len(names) > 1 else (row,), strict=True))
                try:
                    test(**named, **given)
                except BaseException as error:
                    error.add_note(f"case {number} of {len(values)}: {label}")
                    raise

        signature = inspect.signature(test)
        left = [parameter for name, parameter in signature.parameters.items() if name not in names]
        every.__signature__ = signature.replace(parameters=left)
        return every

    return decorated


def fresh(folder):
    """A new folder in this one, for a case that writes files."""
    made = folder / f"case-{len(list(folder.iterdir()))}"
    made.mkdir()
    return made


def _read(number, value, ids):
    """What a case gives, and what it is called."""
    if isinstance(value, ParameterSet):
        assert not value.marks, "marks are for cases that are items of their own"
        return value.values if len(value.values) > 1 else value.values[0], value.id
    if ids is None:
        return value, repr(value)[:200]
    return value, ids(value) if callable(ids) else ids[number]
