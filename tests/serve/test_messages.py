"""Messages, calls and outputs of a decisions request as one text."""

import msgspec
import pytest

from polyhead.errors import BadValue
from polyhead.serve.formats.messages import Item, conversation_text

CALL = {"type": "function_call", "call_id": "1", "name": "find", "arguments": '{"id": 3}'}
OUTPUT = {"type": "function_call_output", "call_id": "1", "output": "not there"}


def text(*items):
    return conversation_text(msgspec.convert(items, list[Item]))


def test_only_message_is_read_as_its_text():
    assert text({"role": "user", "content": "my lamp"}) == "my lamp"
    assert text({"type": "message", "role": "system", "content": [{"type": "input_text", "text": "a"}]}) == "a"


def test_items_are_lines_in_order():
    assert text(
        {"role": "system", "content": "Be kind."},
        {"role": "developer", "content": "Be short."},
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "see"},
                {"type": "input_json", "data": {"order": 3, "late": True}},
            ],
        },
        {
            "role": "assistant",
            "content": [{"type": "output_text", "text": "I look"}, {"type": "refusal", "refusal": "no"}],
        },
        CALL,
        OUTPUT,
        {"type": "custom_tool_call", "call_id": "1", "name": "run", "input": "ls"},
        {"type": "custom_tool_call_output", "call_id": "1", "output": [{"type": "input_text", "text": "a b"}]},
    ) == (
        "system: Be kind.\ndeveloper: Be short.\nuser: see\norder: 3\nlate: true\nassistant: I look\nno\n"
        'call find: {"id": 3}\noutput of find: not there\ncall run: ls\noutput of run: a b'
    )


@pytest.mark.parametrize(
    ("items", "says"),
    [
        ([OUTPUT], "item 0 is the output of a call that is not before it"),
        ([OUTPUT, CALL], "item 0 is the output"),
        ([CALL, {**OUTPUT, "call_id": "2"}], "item 1 is the output"),
        ([CALL, {**OUTPUT, "type": "custom_tool_call_output"}], "item 1 is the output"),
        ([{"content": "x"}], "item 0 of type 'message' lacks"),
        ([{**CALL, "arguments": None}], "no arguments"),
        ([{"role": "user", "content": [{"type": "input_image", "image_url": "data:"}]}], "images are not read"),
    ],
    ids=["alone", "before", "other-id", "other-type", "no-role", "no-arguments", "image"],
)
def test_items_that_do_not_fit_are_refused(items, says):
    with pytest.raises(BadValue, match=says):
        text(*items)
