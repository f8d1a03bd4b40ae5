"""Regular expressions of untrusted files, matched without backtracking (Thompson 1968).

Python's `re` takes exponential time for some expressions. Here every part of an expression maps the set of all
positions that a match may have reached to the set of those after it; the steps of all matches are limited. Literals,
classes, groups, `|` and repetitions are supported; look-around, back references and flags are refused.
"""

from __future__ import annotations

import re
from typing import Literal

from polyhead.errors import TrunkError
from polyhead.values import Value

LONGEST, DEEPEST, PLACES = 1000, 50, 5000  # characters, nested groups, positions with repetitions expanded
STEPS = 5_000_000  # for all matches: a few seconds
_TOKEN = re.compile(
    r"(?P<atom>\\[dDwWsS]|\\[^A-Za-z0-9]|\[\^?\]?(?:\\.|[^\]\\])*\]|[^\\\[(){*+?|^$)])"
    r"|(?P<open>\((?:\?:|\?P<\w+>|(?!\?)))|(?P<close>\))|(?P<or>\|)|(?P<edge>[\^$])"
    r"|(?P<times>(?:[*+?]|\{\d{1,4}(?:,\d{0,4})?\})\??(?![*+?{]))",
    re.DOTALL,
)


class Matcher:
    """Matches texts with expressions; raises TrunkError for an unsupported expression, or for too many steps."""

    def __init__(self, source: str) -> None:
        """`source` is the file with the expressions, for errors."""
        self._source, self._left = source, STEPS
        self._known: dict[str, _Node | re.Pattern[str]] = {}

    def fits(self, expression: str, text: str) -> bool:
        """Whether the expression matches the whole text."""
        return len(text) in self.ends(expression, text, 0)

    def ends(self, expression: str, text: str, start: int) -> list[int]:
        """The possible ends of a match that begins at `start`, ascending."""
        if expression not in self._known:
            self._known[expression] = self._read(expression)
        pattern = self._known[expression]
        if isinstance(pattern, re.Pattern):
            self._spend(1)
            match = pattern.match(text, start)
            return [] if match is None else [match.end()]
        ends = self._after(pattern, text, 1 << start, {})
        return [at for at in range(start, len(text) + 1) if ends >> at & 1]

    def _after(self, node: _Node, text: str, before: int, taken: dict[str, int]) -> int:
        """The positions after the node from those `before` it, as bits; `taken`: the characters that each atom fits."""
        self._spend(1)
        if not before:
            return 0
        if node.kind == "edge":
            return before & (1 if node.text == "^" else 1 << len(text))
        if node.kind == "atom":
            if node.text not in taken:
                self._spend(len(text))
                fits = re.compile(node.text).match
                taken[node.text] = sum(1 << at for at, character in enumerate(text) if fits(character))
            return (before & taken[node.text]) << 1
        if node.kind == "any":
            after = 0
            for part in node.parts:
                after |= self._after(part, text, before, taken)
            return after
        if node.kind == "all":
            for part in node.parts:
                before = self._after(part, text, before, taken)
            return before
        return self._repeated(node, text, before, taken)

    def _repeated(self, node: _Node, text: str, before: int, taken: dict[str, int]) -> int:
        (body,) = node.parts
        for _ in range(node.least):
            before = self._after(body, text, before, taken)
        after, times = before, node.least
        while before and (node.most is None or times < node.most):
            before = self._after(body, text, before, taken) & ~after  # only positions not reached before
            after, times = after | before, times + 1
        return after

    def _spend(self, steps: int) -> None:
        self._left -= steps
        if self._left < 0:
            raise TrunkError(
                f"{self._source} holds patterns that take too long to match",
                got=f"more than {STEPS:,} steps",
                do="name the modules in plain words",
            )

    def _read(self, expression: str) -> _Node | re.Pattern[str]:
        if len(expression) > LONGEST:
            raise self._refused(expression, f"{len(expression):,} characters, and {LONGEST:,} are allowed")
        try:
            re.compile(expression)
        except (re.error, RecursionError, OverflowError) as error:
            raise TrunkError(
                f"{self._source} holds a pattern that is no regular expression", got=f"{expression}: {error}"
            ) from None
        tokens, at = list[tuple[str, str]](), 0
        while at < len(expression):
            match = _TOKEN.match(expression, at)
            if match is None or match.lastgroup is None:
                raise self._refused(expression, expression[at : at + 20])
            tokens.append((match.lastgroup, match[0]))
            at = match.end()
        if not {"or", "times", "edge"} & {kind for kind, _ in tokens}:
            return re.compile(expression)  # an empty node needs no second try
        try:
            return _Parser(tokens).whole()
        except ValueError as error:
            raise self._refused(expression, str(error)) from None

    def _refused(self, expression: str, why: str) -> TrunkError:
        return TrunkError(
            f"{self._source} holds a pattern that is not read here: {expression[:100]}",
            got=why,
            allowed="literals, classes, groups, '|' and repetitions",
            do="name the modules in plain words",
        )


class _Node(Value):
    """A part of an expression."""

    kind: Literal["atom", "edge", "all", "any", "times"]
    text: str = ""  # of an atom or an edge
    parts: tuple[_Node, ...] = ()
    least: int = 0  # of "times"
    most: int | None = None
    places: int = 1  # with repetitions expanded


class _Parser:
    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self._tokens, self._at = tokens, 0

    def whole(self, depth: int = 0) -> _Node:
        """Alternatives, up to the end or a closing bracket."""
        if depth > DEEPEST:
            raise ValueError(f"groups in groups, and {DEEPEST} are allowed")
        ways: list[list[_Node]] = [[]]
        while self._at < len(self._tokens):
            kind, text = self._tokens[self._at]
            if kind == "close":
                break
            self._at += 1
            if kind == "or":
                ways.append([])
            elif kind == "open":
                ways[-1].append(self.whole(depth + 1))
                self._at += 1
            elif kind == "times":
                ways[-1].append(_times(ways[-1].pop(), text))
            else:
                ways[-1].append(_Node(kind="atom" if kind == "atom" else "edge", text=text))
        return _joined("any", [_joined("all", way) for way in ways])


def _joined(kind: Literal["any", "all"], parts: list[_Node]) -> _Node:
    places = sum(part.places for part in parts) + 1
    if places > PLACES:
        raise ValueError(f"more than {PLACES:,} places, with repetitions written out")
    return _Node(kind=kind, parts=tuple(parts), places=places)


def _times(node: _Node, text: str) -> _Node:
    bare = text[:-1] if len(text) > 1 and text.endswith("?") else text
    least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(bare, (0, 0))
    if bare.startswith("{"):
        low, comma, high = bare[1:-1].partition(",")
        least, most = int(low), int(high) if high else None if comma else int(low)
    return _Node(kind="times", parts=(node,), least=least, most=most, places=1 + node.places * (most or least or 1))
