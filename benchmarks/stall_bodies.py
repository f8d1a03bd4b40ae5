"""For every route of a server the largest bodies that it answers, and the worst that it refuses.

They are made for the default limits, over a bundle that holds the tasks of the tests.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from polyhead.serve.http import MOST_VALUES
from polyhead.serve.settings import RequestLimits
from polyhead.values import Value

LIMITS = RequestLimits()
WORDS = "good lamp is late and the phone is bad , "
LONG_TEXT = (WORDS * (LIMITS.characters // len(WORDS) + 1))[: LIMITS.characters]
SHORT_TEXTS = [f"good lamp {number}" for number in range(LIMITS.inputs)]
LABELS = ("negative", "neutral", "positive")  # of the task `mood`


class Sent(Value):
    """One request."""

    name: str
    content: bytes = b""
    path: str = ""  # "": the route's own, with the task `mood` for its parameters
    headers: tuple[tuple[str, str], ...] = ()


def sent_to(method: str, path: str) -> list[Sent]:
    """The requests for a route; raises KeyError for one that is not known here."""
    if method == "GET":
        return list(_names(path))
    return [*BODIES[method, path](), *(_any_json() if path in READ_ALONE else ())]


def path_of(path: str) -> str:
    """The path of a route with the task `mood` for its parameters."""
    for name, value in {
        "name": "mood", "task": "mood", "version": "v0001", "change": "load", "rest:path": "models",
    }.items():  # fmt: skip
        path = path.replace(f"{{{name}}}", value)
    return path


def _names(path: str) -> Iterator[Sent]:
    """A GET as it should be, and with a name and a query of the largest size that headers may have."""
    yield Sent(name="plain")
    many = "&".join(f"limit={number}" for number in range(5_000))
    yield Sent(name="a long query", path=f"{path_of(path)}?{many}")
    if "{" in path:
        yield Sent(name="a long name", path=path.partition("{")[0] + "x" * 60_000)


def _json(name: str, value: Any, path: str = "", **headers: str) -> Sent:
    content = json.dumps(value, ensure_ascii=False).encode()
    return Sent(name=name, content=content, path=path, headers=tuple(headers.items()))


def _texts(key: str, path: str = "", **others: Any) -> list[Sent]:
    """Bodies of texts under one key."""
    one_too_many = [LONG_TEXT] * (LIMITS.all_characters // LIMITS.characters + 1)
    return [
        _json("as many texts as may be", {key: SHORT_TEXTS, **others}, path),
        _json("two of the longest texts", {key: [LONG_TEXT] * 2, **others}, path),
        _json("refused: three of the longest texts", {key: one_too_many, **others}, path),
        _json("refused: too many texts", {key: ["a"] * (MOST_VALUES - 10), **others}, path),
    ]


QUESTION = {"question": "which one? " * 100, "options": ["good " * 100] * 255}


def _predict() -> list[Sent]:
    return [
        _json("as many texts as may be", {"inputs": SHORT_TEXTS}),
        _json("as many blank texts", {"inputs": [" "] * LIMITS.inputs}),
        _json("as text", {"text": SHORT_TEXTS}),
        _json("uncalibrated", {"inputs": SHORT_TEXTS, "options": {"calibrated": {"mood": False, "topics": False}}}),
        _json("two of the longest texts", {"inputs": [LONG_TEXT] * 2}),
        _json("texts of blanks", {"inputs": [" " * LIMITS.characters] * 2}),
        _json("refused: texts of short words", {"inputs": ["\U0001f600é\u0e01" * (LIMITS.characters // 3)] * 2}),
        _json("wide letters", {"inputs": ["é\u0434" * (LIMITS.characters // 2)] * 2}),
        _json("a pair of the longest texts", {"inputs": {"text": LONG_TEXT, "text_b": LONG_TEXT}}),
        _json("tokens", {"inputs": {"tokens": WORDS.split() * (MOST_VALUES // 12)}}),
        _json("tokens of many texts", {"inputs": [{"tokens": WORDS.split() * 10}] * LIMITS.inputs}),
        _json("options", {"inputs": QUESTION, "tasks": ["reply"]}),
        _json("explained", {"inputs": "good lamp " * 2_000, "options": {"explain": True}}),
        _json("refused: options of a long question", {"inputs": {"question": LONG_TEXT, "options": ["a"] * 255}}),
        _json("refused: explained texts of a million", {"inputs": [LONG_TEXT] * 2, "options": {"explain": True}}),
        _json("refused: explained long words", {"inputs": ["x" * 4000 + " y"] * 400, "options": {"explain": True}}),
        _json("refused: three of the longest texts", {"inputs": [LONG_TEXT] * 3}),
        _json("refused: too many inputs", {"inputs": ["a"] * (MOST_VALUES - 10)}),
        _json("refused: empty objects", {"inputs": [{}] * LIMITS.inputs}),
        _json("refused: tasks", {"inputs": "a", "tasks": [f"task {number}" for number in range(LIMITS.answers)]}),
        _json("refused: wishes", {"inputs": "a", "options": {"calibrated": {str(n): True for n in range(100_000)}}}),
    ]


def _any_json() -> list[Sent]:
    return [
        Sent(name="refused: a list of lists", content=b"[" + b"[]," * (LIMITS.body_bytes // 3 - 1) + b"1]"),
        Sent(name="refused: deep", content=b"[" * LIMITS.body_bytes),
        Sent(name="refused: escapes", content=b'["' + b"\\\\" * (LIMITS.body_bytes // 2 - 3) + b'"]'),
        Sent(name="refused: digits", content=b"1" * LIMITS.body_bytes),
        Sent(name="refused: an unknown field", content=b'{"' + b"x" * (LIMITS.body_bytes - 8) + b'":1}'),
        Sent(name="refused: too large", content=b" " * (LIMITS.body_bytes + 1)),
    ]


READ_ALONE = ("/v1/predict", "/v1/decisions", "/v1/systemone", "/v1/embeddings", "/v2/models/{name}/infer")
"""Routes whose bodies are read in five ways; all others read theirs as one of these does."""


def _tensor(texts: list[str], name: str = "text") -> dict[str, Any]:
    return {"name": name, "shape": [len(texts)], "datatype": "BYTES", "data": texts}


def _packed(name: str, texts: list[str]) -> Sent:
    """The same in binary."""
    binary = b"".join(len(text.encode()).to_bytes(4, "little") + text.encode() for text in texts)
    tensor = {"name": "text", "shape": [len(texts)], "datatype": "BYTES"}
    header = json.dumps({"inputs": [tensor | {"parameters": {"binary_data_size": len(binary)}}]}).encode()
    length = (("Inference-Header-Content-Length", str(len(header))),)
    return Sent(name=name, content=header + binary, headers=length)


def _infer() -> list[Sent]:
    tokens = json.dumps({"tokens": WORDS.split() * 10_000})
    lists = "[" + "[]," * (LIMITS.body_bytes // 4) + "1]"
    return [
        _json("as many texts as may be", {"inputs": [_tensor(SHORT_TEXTS)]}),
        _json("two of the longest texts", {"inputs": [_tensor([LONG_TEXT] * 2)]}),
        _json("tokens", {"inputs": [_tensor([tokens], "input")]}),
        _json("refused: lists in a string", {"inputs": [_tensor([lists], "input")]}),
        _packed("in binary", SHORT_TEXTS),
        _packed("refused: too many in binary", ["a"] * 1_000_000),
        _json("refused: too many texts", {"inputs": [_tensor(["a"] * (MOST_VALUES - 20))]}),
        _json("refused: too many dimensions", {"inputs": [_tensor(["a"]) | {"shape": [2**62] * (MOST_VALUES - 20)}]}),
        _json("refused: too many tensors", {"inputs": [_tensor(["a"], str(number)) for number in range(20_000)]}),
        _json("all tasks", {"inputs": [_tensor(SHORT_TEXTS)]}, "/v2/models/all/infer"),
    ]


def _decisions(instructions: str, value: str, *, questions: int, options: int, text: str) -> dict[str, Any]:
    choices = [{"value": f"{value} {number}"} for number in range(options)]
    asked = [
        {"type": "choice", "name": f"q{number}", "instructions": instructions, "choices": choices}
        for number in range(questions)
    ]
    return {"model": "jev-latest", "input": text, "questions": asked}


def _states(instructions: str, value: str, *, questions: int, options: int, text: str) -> dict[str, Any]:
    criteria = {f"{value} {number}": None for number in range(options)}
    one = {"type": "choice", "instructions": instructions, "criteria": criteria}
    return {"model": "jev-latest", "state": text, "questions": {f"q{number}": one for number in range(questions)}}


def _asked(made: Any) -> list[Sent]:
    """Bodies of questions about a text."""
    text = "good lamp"
    return [
        _json("many questions", made("", "option", questions=400, options=90, text=text)),
        _json("a long text", made("", "option", questions=3, options=3, text=LONG_TEXT)),
        _json("options with long words", made("good lamp " * 700, "option", questions=1, options=255, text=text)),
        _json("refused: options with longer words", made(LONG_TEXT, "x", questions=8, options=255, text=text)),
        _json("refused: longer texts", made("", "x", questions=1, options=2, text=LONG_TEXT * 3)),
        _json("refused: too many questions", made("", "x", questions=8_000, options=2, text=text)),
        _json("refused: too many options", made("", "x", questions=1, options=30_000, text=text)),
    ]


def _rerank(query: str, texts: list[str]) -> dict[str, Any]:
    return {"query": query, "texts": texts, "return_text": True}


def _similarity(query: str, texts: list[str]) -> dict[str, Any]:
    return {"inputs": {"source_sentence": query, "sentences": texts}}


def _compared(made: Any, path: str = "") -> list[Sent]:
    return [
        _json("as many texts as may be", made("good lamp", SHORT_TEXTS[:-1]), path),
        _json("two of the longest texts", made(LONG_TEXT, [LONG_TEXT]), path),
        _json("refused: three of the longest texts", made(LONG_TEXT, [LONG_TEXT] * 2), path),
        _json("refused: too many texts", made("a", ["a"] * (MOST_VALUES - 10)), path),
    ]


def _pairs() -> list[Sent]:
    return [
        _json("as many texts as may be", {"inputs": [[text] for text in SHORT_TEXTS]}, "/predict?task=topics"),
        _json("a pair of the longest texts", {"inputs": [[LONG_TEXT, LONG_TEXT]]}, "/predict?task=same"),
        _json("refused: too many texts", {"inputs": [["a"]] * 50_000}, "/predict?task=topics"),
    ]


def _uploads() -> list[Sent]:
    return [Sent(name="refused: no tar", content=b"x" * 2**22), Sent(name="refused: nothing")]


def _removals() -> list[Sent]:
    return [Sent(name="refused: no such task", path="/v1/tasks/" + "x" * 50_000)]


def _rollbacks() -> list[Sent]:
    return [
        Sent(name="refused: no JSON", content=b'{"version": "' + b"x" * (LIMITS.body_bytes - 20)),
        Sent(name="refused: lists", content=b"[" + b"[]," * (LIMITS.body_bytes // 3 - 1) + b"1]"),
        _json("refused: no such version", {"version": "x" * (LIMITS.body_bytes - 30)}),
    ]


def _nothing() -> list[Sent]:
    return [Sent(name="without a body"), Sent(name="a body of blanks", content=b" " * LIMITS.body_bytes)]


def _of(*makers: Callable[[], list[Sent]]) -> list[Sent]:
    return [sent for make in makers for sent in make()]


MODEL, VERSION = "/v2/models/{name}", "/v2/models/{name}/versions/{version}"
BODIES: dict[tuple[str, str], Callable[[], list[Sent]]] = {
    ("POST", "/v1/predict"): _predict,
    ("POST", "/v1/predict/stream"): lambda: [_predict()[number] for number in (0, 1, 3, 4, 7, 13)],
    ("POST", "/v1/decisions"): partial(_asked, _decisions),
    ("POST", "/v1/systemone"): partial(_asked, _states),
    ("POST", "/api/alpha/decisions"): lambda: _asked(_states)[:1],
    ("POST", "/v1/embeddings"): lambda: [*_texts("input"), *_texts("input", encoding_format="base64")[:1]],
    ("POST", "/embeddings"): lambda: _texts("input")[:1],
    ("POST", "/predict"): _pairs,
    ("POST", "/embed"): partial(_texts, "inputs"),
    ("POST", "/similarity"): partial(_compared, _similarity),
    ("POST", "/rerank"): lambda: [*_compared(_rerank), *_compared(_rerank, "/rerank?task=alike")[:2]],
    ("POST", "/models/{task}"): partial(_of, partial(_texts, "inputs"), partial(_texts, "inputs", "/models/names")),
    ("POST", "/"): partial(_texts, "inputs", "/?task=topics"),
    ("POST", "/classify"): partial(
        _of, partial(_texts, "inputs", "/classify?task=topics"), partial(_texts, "inputs", "/classify?task=names")
    ),
    ("POST", "/vllm/classify"): partial(_texts, "input", model="topics"),
    ("POST", "/infinity/classify"): partial(_texts, "input", model="topics"),
    ("POST", MODEL + "/infer"): _infer,
    ("POST", VERSION + "/infer"): lambda: _infer()[:1],
    ("POST", "/v2/repository/index"): _nothing,
    ("POST", "/v2/repository/models/{name}/{change}"): _nothing,
    ("POST", "/v2/{rest:path}"): _nothing,
    ("PUT", "/v2/{rest:path}"): _nothing,
    ("DELETE", "/v2/{rest:path}"): _nothing,
    ("PUT", "/v1/tasks/{name}"): _uploads,
    ("DELETE", "/v1/tasks/{name}"): _removals,
    ("POST", "/v1/tasks/{name}/rollback"): _rollbacks,
    ("PUT", "/v1/tasks/{name}/shadow"): _uploads,
    ("DELETE", "/v1/tasks/{name}/shadow"): _nothing,
    ("POST", "/v1/tasks/{name}/shadow/promote"): _nothing,
}
"""By method and path as the server's own table has them, GET aside; made when they are sent, since they are large."""
