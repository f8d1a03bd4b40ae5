"""A body that a route reads, made from its type, and the fields that may stand at a place of it.

A field is in the example where it is needed, or where its type says `msgspec.Meta(examples=[...])`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from msgspec import inspect


@lru_cache(maxsize=256)
def example_of(of: Any) -> Any:
    """A value of this type, as JSON holds it."""
    return _example(inspect.type_info(of))


def fields_at(of: Any, place: Sequence[str | int]) -> list[str] | None:
    """The names of the fields that an object at this place of a value may have; None where no object is read there.

    Where the last step names no object, the fields are those of the object around it.
    """
    within, names = inspect.type_info(of), None
    for step in (None, *place):
        within = within if step is None else _step(within, step)
        for each in _several(within):
            if isinstance(each, inspect.StructType):
                tag = [] if each.tag_field is None else [each.tag_field]
                names = [*tag, *(field.encode_name for field in each.fields)]
                break
    return names


def _example(of: inspect.Type) -> Any:
    if isinstance(of, inspect.Metadata):
        examples = (of.extra_json_schema or {}).get("examples")
        return examples[0] if examples else _example(of.type)
    if isinstance(of, inspect.StructType):
        tag = {} if of.tag_field is None else {of.tag_field: of.tag}
        shown = [field for field in of.fields if field.required or _has_example(field.type)]
        return tag | {field.encode_name: _example(field.type) for field in shown}
    if isinstance(of, inspect.UnionType):
        return _example(of.types[0])
    if isinstance(of, inspect.LiteralType):
        return of.values[0]
    if isinstance(of, inspect.ListType | inspect.VarTupleType):
        return [_example(of.item_type)]
    if isinstance(of, inspect.DictType):
        return {"...": _example(of.value_type)}
    plain: dict[type[inspect.Type], Any] = {inspect.IntType: 1, inspect.FloatType: 1.0, inspect.BoolType: True}
    return plain.get(type(of), "...")


def _has_example(of: inspect.Type) -> bool:
    return isinstance(of, inspect.Metadata) and "examples" in (of.extra_json_schema or {})


def _several(of: inspect.Type) -> Sequence[inspect.Type]:
    """The types of a union, or the one type."""
    of = of.type if isinstance(of, inspect.Metadata) else of
    return of.types if isinstance(of, inspect.UnionType) else (of,)


def _step(within: inspect.Type, step: str | int) -> inspect.Type:
    """The type of a field, or of what a list or a table holds."""
    for each in _several(within):
        if isinstance(each, inspect.StructType):
            for field in each.fields:
                if field.encode_name == step:
                    return field.type
        elif isinstance(each, inspect.ListType | inspect.VarTupleType) and not isinstance(step, str | None):
            return each.item_type
        elif isinstance(each, inspect.DictType):
            return each.value_type
    return inspect.AnyType()
