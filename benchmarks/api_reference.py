"""The public Python API as a page, from signatures, fields and docstrings: part of what `benchmarks.readme` writes."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any

import msgspec

import polyhead
from polyhead.lazy import lazy

GROUPS = {
    "Models": ("Model", "PolyheadClassifier", "PolyheadRegressor"),
    "Sessions": ("Session", "SessionSet", "Result", "Passage", "Question", "CalibrationChoice"),
    "Projects": ("read_project", "train_project", "Project", "TaskEntry", "DataFile"),
    "Bundles and tasks": ("Bundle", "Task"),
    "Paths, plans and costs": ("Path", "Codec", "Plan", "merge", "cost_of", "load_trunk"),
    "Errors": ("PolyheadError",),
}
RETURNED = {  # what public calls give, by where it lies
    "AnswerTable": "polyhead.engine.answers",
    "AnswerColumn": "polyhead.engine.answers",
    "Stream": "polyhead.engine.request",
    "TaskResults": "polyhead.engine.request",
    "Receipt": "polyhead.engine.receipt",
    "Changes": "polyhead.engine.loaded",
    "TrainingResult": "polyhead.train.training",
    "Cost": "polyhead.plan.cost",
}
WIDTH = 100  # of a signature in one line


def lines() -> Iterator[str]:
    """The page below its introduction, line by line."""
    for title, names in GROUPS.items():
        yield from ["", f"## {title}"]
        for name in names:
            yield from _of_value(name, getattr(polyhead, name), is_made=True)
    yield from ["", "## What calls return"]
    for name, home in RETURNED.items():
        yield from _of_value(name, getattr(importlib.import_module(home), name), is_made=False)


def members(cls: type) -> dict[str, Any]:
    """The public methods and properties that this package gives a class, by name, as its classes hold them."""
    own = [each for each in reversed(cls.__mro__) if each.__module__.partition(".")[0] == "polyhead"]
    held = {name: value for each in own for name, value in vars(each).items() if not name.startswith("_")}
    kinds = (property, lazy, classmethod, staticmethod)
    return {name: value for name, value in held.items() if inspect.isfunction(value) or isinstance(value, kinds)}


def _of_value(name: str, value: Any, *, is_made: bool) -> Iterator[str]:
    """A section of the page; `is_made`: users call it, be it a class."""
    yield from ["", f"### {name}", ""]
    if not isinstance(value, type):
        yield from [*_code(_call(name, value)), "", *_said(value)]
        return
    if issubclass(value, msgspec.Struct):
        yield from [*_code(fields_of(value)), ""]
    elif is_made:
        yield from [*_code(_call(name, value, result=False)), ""]
    yield from _said(value)
    for member, held in members(value).items():
        yield from ["", f"#### {name}.{member}", "", *_code(_member(f"{name}.{member}", held)), "", *_said(held)]


def _member(name: str, held: Any) -> list[str]:
    if isinstance(held, classmethod | staticmethod):
        return _call(name, held.__func__, is_bound=isinstance(held, classmethod))
    if inspect.isfunction(held):
        return _call(name, held, is_bound=True)
    getter = held.func if isinstance(held, lazy) else held.fget
    return [f"{name}: {_written(inspect.signature(getter).return_annotation)}"]


def _call(name: str, function: Any, *, is_bound: bool = False, result: bool = True) -> list[str]:
    """`name(parameters) -> result`, in one line or a line each."""
    signature, parts, stars = inspect.signature(function), list[str](), False
    for parameter in list(signature.parameters.values())[is_bound:]:
        if parameter.kind is parameter.KEYWORD_ONLY and not stars:
            parts.append("*")
        stars = stars or parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
        parts.append(_parameter(parameter))
    end = f") -> {_written(signature.return_annotation)}" if result else ")"
    whole = f"{name}({', '.join(parts)}{end}"
    return [whole] if len(whole) <= WIDTH else [f"{name}(", *(f"    {part}," for part in parts), end]


def _parameter(parameter: inspect.Parameter) -> str:
    named: dict[object, str] = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}
    stars = named.get(parameter.kind, "")
    default = "..." if callable(parameter.default) else re.sub(r"^'(.*)'$", r'"\1"', repr(parameter.default))
    end = "" if parameter.default is parameter.empty else f" = {default}"
    of = "" if parameter.annotation is parameter.empty else f": {_written(parameter.annotation)}"
    return f"{stars}{parameter.name}{of}{end}"


def _written(annotation: Any) -> str:
    """An annotation as its file has it: files of this package leave annotations as they are written."""
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))


def fields_of(struct: type) -> list[str]:
    """The fields of a value as its class declares them, with their comments, those of its bases first."""
    shown = list[str]()
    for each in reversed(struct.__mro__):
        if each.__module__.partition(".")[0] == "polyhead":
            source = textwrap.dedent(inspect.getsource(each)).splitlines()
            (tree,) = ast.parse("\n".join(source)).body
            assert isinstance(tree, ast.ClassDef)
            for before, node in zip([None, *tree.body], tree.body, strict=False):
                if isinstance(node, ast.AnnAssign) and "ClassVar" not in ast.unparse(node.annotation):
                    start = node.lineno - 1 if before is None else before.end_lineno
                    shown += source[start : node.end_lineno]
    return textwrap.dedent("\n".join(line for line in shown if line.strip())).splitlines()


def _said(value: Any) -> list[str]:
    return (inspect.getdoc(value) or "").splitlines()


def _code(source: list[str]) -> list[str]:
    """A block of code, indented: one between fences would be run by the tests of pages."""
    return [f"    {line}" for line in source]
