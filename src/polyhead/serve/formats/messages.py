"""Messages, calls and their outputs as one text: how OpenAI's decisions give an input of several items."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from polyhead.errors import BadValue
from polyhead.serve.formats.base import Wire
from polyhead.serve.questions import json_text


class InputText(Wire, tag_field="type", tag="input_text"):
    """Text of a message or a question."""

    text: str


class OutputText(Wire, tag_field="type", tag="output_text"):
    """Text that an assistant wrote."""

    text: str


class Refused(Wire, tag_field="type", tag="refusal"):
    """An assistant's refusal."""

    refusal: str


class InputJson(Wire, tag_field="type", tag="input_json"):
    """JSON that is read as words."""

    data: dict[str, Any] | list[dict[str, Any]]


class InputImage(Wire, tag_field="type", tag="input_image"):
    """An image, which no encoder of texts reads."""

    image_url: str


Part = InputText | OutputText | Refused | InputJson | InputImage
Content = str | list[Part]


class Item(Wire):
    """A message, a call or the output of one; which fields it needs depends on its type."""

    type: Literal["message", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output"] = (
        "message"
    )
    role: Literal["user", "developer", "system", "assistant"] | None = None
    content: Content | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    input: str | None = None
    output: Content | None = None


NEEDED = {
    "message": ("role", "content"),
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id", "output"),
    "custom_tool_call": ("call_id", "name", "input"),
    "custom_tool_call_output": ("call_id", "output"),
}
OUTPUT_OF = {"function_call_output": "function_call", "custom_tool_call_output": "custom_tool_call"}


def conversation_text(items: Sequence[Item]) -> str:
    """The items in order, a line each: `user: ...`, `assistant: ...`, `call NAME: ...`, `output of NAME: ...`.

    A message that is the only item is read without its role, as the same text alone would be. Raises BadValue for an
    item that lacks a field, an output without its call before it, and images.
    """
    if len(items) == 1 and items[0].type == "message":
        _check(0, items[0])
        return words_of_parts(items[0].content)
    return "\n".join(_lines(items))


def words_of_parts(content: Content | None) -> str:
    """The words of a message or of a question's instructions, a line a part; raises BadValue for an image."""
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(map(_words, content))


def _lines(items: Sequence[Item]) -> Iterator[str]:
    calls: dict[tuple[str, str | None], str] = {}  # names, by type and id
    for number, item in enumerate(items):
        _check(number, item)
        if item.type == "message":
            yield f"{item.role}: {words_of_parts(item.content)}"
        elif item.type in OUTPUT_OF:
            key = (OUTPUT_OF[item.type], item.call_id)
            if key not in calls:
                raise BadValue(
                    f"item {number} is the output of a call that is not before it",
                    got=item.call_id,
                    allowed=[call for kind, call in calls if kind == key[0]],
                    do="give the call and its output in this order, with one 'call_id'",
                )
            yield f"output of {calls[key]}: {words_of_parts(item.output)}"
        else:
            calls[item.type, item.call_id] = item.name or ""
            yield f"call {item.name}: {item.arguments if item.type == 'function_call' else item.input}"


def _check(number: int, item: Item) -> None:
    missing = [field for field in NEEDED[item.type] if getattr(item, field) is None]
    if missing:
        raise BadValue(
            f"item {number} of type '{item.type}' lacks what it needs", got=f"no {', '.join(missing)}", do="give it"
        )


def _words(part: Part) -> str:
    if isinstance(part, InputImage):
        raise BadValue("images are not read", allowed="text and JSON", do="say in words what the image shows")
    if isinstance(part, Refused):
        return part.refusal
    return json_text(part.data) if isinstance(part, InputJson) else part.text
