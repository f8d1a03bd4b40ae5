"""Regular expressions of untrusted files, matched without backtracking (Thompson 1968).

Python's `re` takes exponential time for some expressions. Here all states that a text may have reached are kept at
once, so that the time is the text's length times the expression's; the steps of all matches are limited. Literals,
classes, groups, `|` and repetitions are supported; look-around, back references and flags are refused.
"""

from __future__ import annotations

import re
from typing import Literal

from polyhead.config import Value
from polyhead.errors import TrunkError

LONGEST, DEEPEST, PLACES = 1000, 50, 5000  # characters, nested groups, places with repetitions written out
STEPS = 5_000_000  # of all matches: a few seconds
_TOKEN = re.compile(
    r"(?P<atom>\\[dDwWsS]|\\[^A-Za-z0-9]|\[\^?\]?(?:\\.|[^\]\\])*\]|[^\\\[(){*+?|^$)])"
    r"|(?P<open>\((?:\?:|\?P<\w+>|(?!\?)))|(?P<close>\))|(?P<or>\|)|(?P<edge>[\^$])"
    r"|(?P<times>(?:[*+?]|\{\d{1,4}(?:,\d{0,4})?\})\??(?![*+?{]))",
    re.DOTALL,
)


class Matcher:
    """Matches texts with expressions; raises TrunkError for one that is not read, or when it takes too long."""

    def __init__(self, source: str) -> None:
        """`source` is the file that the expressions stand in, for errors."""
        self._source, self._left = source, STEPS
        self._known: dict[str, _Machine | re.Pattern[str]] = {}

    def fits(self, expression: str, text: str) -> bool:
        """Whether the expression matches the whole text."""
        return len(text) in self.ends(expression, text, 0)

    def ends(self, expression: str, text: str, start: int) -> list[int]:
        """Where a match that begins at `start` may end, ascending."""
        if expression not in self._known:
            self._known[expression] = self._read(expression)
        machine = self._known[expression]
        if isinstance(machine, re.Pattern):
            self._spend(1)
            match = machine.match(text, start)
            return [] if match is None else [match.end()]
        return self._run(machine, text, start)

    def _run(self, machine: _Machine, text: str, start: int) -> list[int]:
        ends, active = [], machine.reached([machine.first], text, start)
        for at in range(start, len(text) + 1):
            self._spend(1 + len(active))
            if machine.end in active:
                ends.append(at)
            if at == len(text) or not active:
                break
            after = [machine.places[i].then for i in active if machine.places[i].takes(text[at])]
            active = machine.reached([place for then in after for place in then], text, at + 1)
        return ends

    def _spend(self, steps: int) -> None:
        self._left -= steps
        if self._left < 0:
            raise TrunkError(
                f"{self._source} holds patterns that take too long to match",
                got=f"more than {STEPS:,} steps",
                do="name the modules in plain words",
            )

    def _read(self, expression: str) -> _Machine | re.Pattern[str]:
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
            return re.compile(expression)  # there is nothing in it to try twice
        machine = _Machine()
        try:
            machine.build(_Parser(tokens).whole())
        except ValueError as error:
            raise self._refused(expression, str(error)) from None
        return machine

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
        return _Node(kind="any", parts=tuple(_Node(kind="all", parts=tuple(way)) for way in ways))


def _times(node: _Node, text: str) -> _Node:
    bare = text[:-1] if len(text) > 1 and text.endswith("?") else text
    least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(bare, (0, 0))
    if bare.startswith("{"):
        low, comma, high = bare[1:-1].partition(",")
        least, most = int(low), int(high) if high else None if comma else int(low)
    return _Node(kind="times", parts=(node,), least=least, most=most)


class _Place:
    """A state of the automaton: the character that it consumes, if any, and the states that follow."""

    def __init__(self, text: str, then: list[int], *, is_edge: bool = False) -> None:
        self.text, self.then, self.is_edge = text, then, is_edge
        self._atom = re.compile(text) if text and not is_edge else None

    def takes(self, character: str) -> bool:
        return self._atom is not None and self._atom.match(character) is not None

    def is_free(self, text: str, at: int) -> bool:
        """Whether the place is left without a character."""
        return at == (0 if self.text == "^" else len(text)) if self.is_edge else self._atom is None


class _Machine:
    """The places of an expression; 0 is its end."""

    end = 0

    def __init__(self) -> None:
        self.places = [_Place("", [])]
        self.first = 0

    def build(self, node: _Node) -> None:
        """Raises ValueError for an expression of too many places."""
        self.first = self._before(node, self.end)

    def reached(self, places: list[int], text: str, at: int) -> set[int]:
        """These places and all that are reached from them without a character."""
        seen, left = set[int](), places
        while left:
            place = left.pop()
            if place not in seen:
                seen.add(place)
                if self.places[place].is_free(text, at):
                    left += self.places[place].then
        return seen

    def _before(self, node: _Node, then: int) -> int:
        """The place that leads through the node to `then`."""
        if node.kind in ("atom", "edge"):
            return self._place(node.text, [then], is_edge=node.kind == "edge")
        if node.kind == "all":
            for part in reversed(node.parts):
                then = self._before(part, then)
            return then
        if node.kind == "any":
            return self._place("", [self._before(part, then) for part in node.parts])
        body = node.parts[0]
        if node.most is None:
            again = self._place("", [then])
            self.places[again].then.append(self._before(body, again))
            then = again
        for _ in range((node.most or node.least) - node.least):
            then = self._place("", [then, self._before(body, then)])
        for _ in range(node.least):
            then = self._before(body, then)
        return then

    def _place(self, text: str, then: list[int], *, is_edge: bool = False) -> int:
        if len(self.places) >= PLACES:
            raise ValueError(f"more than {PLACES:,} places, with repetitions written out")
        self.places.append(_Place(text, then, is_edge=is_edge))
        return len(self.places) - 1
