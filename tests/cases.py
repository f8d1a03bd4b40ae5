"""Cases of a test that are one item: each takes less time than an item does."""

import functools
import inspect


def cases(names, values, ids=None):
    """As `pytest.mark.parametrize`, but all cases are one item; the one that fails is named.

    For tests of a few milliseconds, whose fixtures no case changes.
    """
    names, values = [name.strip() for name in names.split(",")] if isinstance(names, str) else [*names], [*values]
    assert values, "a test without a case"

    def decorated(test):
        @functools.wraps(test)
        def every(**given):
            for number, value in enumerate(values):
                named = dict(zip(names, value if len(names) > 1 else (value,), strict=True))
                try:
                    test(**named, **given)
                except BaseException as error:
                    error.add_note(f"case {number} of {len(values)}: {_label(number, value, ids)}")
                    raise

        signature = inspect.signature(test)
        left = [parameter for name, parameter in signature.parameters.items() if name not in names]
        every.__signature__ = signature.replace(parameters=left)
        return every

    return decorated


def _label(number, value, ids):
    if ids is None:
        return repr(value)[:200]
    return str(ids(value) if callable(ids) else ids[number])
