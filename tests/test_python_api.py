"""The page of the public Python API says what there is: every name and method, with its signature and docstring."""

import inspect
import re
from pathlib import Path

import msgspec
import pytest

import polyhead
from polyhead.lazy import lazy
from support.cases import cases

pytest.importorskip("sklearn", reason="the estimators need scikit-learn: pip install '.[sklearn]'")
pytest.importorskip("torch", reason="load_trunk needs torch")

from benchmarks import api_reference

PAGE = (Path(__file__).parents[1] / "docs" / "reference" / "python-api.md").read_text(encoding="utf-8")
VALUES = {name: getattr(polyhead, name) for name in polyhead.__all__}
OURS = {name: value for name, value in VALUES.items() if isinstance(value, type)}


def section(title):
    """What stands below a heading, up to the next one."""
    (text,) = re.findall(rf"^#+ {re.escape(title)}\n(.*?)(?=^#|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    return text


def public_methods(cls):
    """Walks the attributes, as a caller finds them; those of other packages' bases are theirs to document."""
    for name in dir(cls):
        held = inspect.getattr_static(cls, name)
        is_method = isinstance(held, property | lazy | classmethod | staticmethod)
        is_ours = next(each for each in cls.__mro__ if name in vars(each)).__module__.startswith("polyhead")
        if is_ours and not name.startswith("_") and (is_method or inspect.isfunction(held)):
            yield name, inspect.getdoc(held)


def test_the_groups_hold_every_public_name_once():
    listed = [name for names in api_reference.GROUPS.values() for name in names]
    assert sorted(listed) == sorted(polyhead.__all__)
    for name in api_reference.RETURNED:
        assert name not in listed


@cases("name", polyhead.__all__)
def test_every_public_name_has_a_docstring_and_stands_on_the_page(name):
    said = inspect.cleandoc(VALUES[name].__doc__ or "")
    assert said and said in section(name)


def test_every_public_method_has_a_docstring_and_stands_on_the_page():
    looked_at = 0
    for name, cls in OURS.items():
        for method, said in public_methods(cls):
            looked_at += 1
            assert said, f"{name}.{method} has no docstring"
            assert said in section(f"{name}.{method}"), f"{name}.{method}"
    assert looked_at > 70


def test_every_parameter_and_every_field_is_shown():
    looked_at = 0
    for name, value in VALUES.items():
        text = section(name)
        if isinstance(value, type) and issubclass(value, msgspec.Struct):
            for field in value.__struct_fields__:
                looked_at += 1
                assert re.search(rf"^    {field}: ", text, re.MULTILINE), f"{name}.{field}"
        else:
            for parameter in inspect.signature(value).parameters:
                looked_at += 1
                assert re.search(rf"^    .*\b{parameter}: ", text, re.MULTILINE), f"{name}({parameter})"
    assert looked_at > 90


def test_a_signature_is_written_as_python_has_it():
    """By hand: positional and keyword-only parameters, defaults, a function as one, several names at once."""

    def asked(self, first: "int", *, second: "str | None" = "a", third: "bool" = len, **more: "object") -> "float":
        """Something."""

    assert api_reference._call("asked", asked, is_bound=True) == [
        'asked(first: int, *, second: str | None = "a", third: bool = ..., **more: object) -> float'
    ]
    long = api_reference._call("asked_with_a_name_that_fills_more_than_a_line", asked)
    assert long[1:4] == ["    self,", "    first: int,", "    *,"] and long[-1] == ") -> float"
