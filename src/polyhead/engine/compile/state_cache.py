"""A cache of the hidden states that poolers and heads read, so that no layer runs again for a known text."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Hashable, Iterator, Mapping

import msgspec
import numpy as np

from polyhead.engine.backends.base import TokenBatch
from polyhead.engine.compile.program import GraphCall, Key, Program, Values

Row = tuple[str, bytes]  # what made a state, and the digest of all that layers read of its text
LOCAL = "#"  # begins the name of what only this process can tell from others


class CachedRow(msgspec.Struct, frozen=True, array_like=True):
    """The header of a state in a file; the bytes of all states follow the headers, in the same order."""

    maker: str
    text: str  # in hex
    kind: str  # numpy's name of its numbers
    shape: tuple[int, ...]


class StateCache:
    """The states of single texts, from passes whose rows do not depend on each other.

    The key of a state is the digests of the graphs that computed it, and of all that layers read of its text.
    Up to `most` bytes are kept, at first none; a full cache takes nothing until `drop_unread` makes room.
    """

    def __init__(self) -> None:
        self.most = self.size = 0  # bytes
        self.is_new = False  # whether some state is in no file yet
        self._known: dict[Row, np.ndarray] = {}
        self._read = set[Row]()
        self._makers: dict[Hashable, str] = {}  # named by digests, since their keys are long

    def get(self, program: Program, batch: TokenBatch) -> Values:
        """All states that the program's poolers and heads read; empty if one is missing for any text."""
        if not self._known:
            return {}
        texts, values = _texts(batch), dict[Key, np.ndarray]()
        for key, maker in self._states_read(program).items():
            rows = [row for text in texts if (row := self._known.get((maker, text))) is not None]
            if len(rows) < len(texts):
                return {}
            values[key] = np.stack(rows)
            self._read.update((maker, text) for text in texts)
        return values

    def add(self, program: Program, batch: TokenBatch, values: Values) -> None:
        """Adds these states of the texts, as far as there is room."""
        if not self.most:
            return
        texts = _texts(batch)
        for key, maker in self._states_read(program).items():
            if key not in values:
                continue  # what makes it has failed
            for text, row in zip(texts, values[key], strict=True):
                self._read.add((maker, text))
                if (maker, text) not in self._known and self.size + row.nbytes <= self.most:
                    self._known[maker, text] = np.array(row)
                    self.size += row.nbytes
                    self.is_new = True

    def drop_unread(self) -> None:
        """Removes the states that were neither read nor added since the last call."""
        self._known = {key: row for key, row in self._known.items() if key in self._read}
        self.size = sum(row.nbytes for row in self._known.values())
        self._read = set()

    def forget(self) -> None:
        """Removes all states."""
        self._known, self._read, self.size = {}, set(), 0

    def load(self, content: memoryview) -> None:
        """Adds the states that `dump` gave, as far as there is room; raises ValueError for any other content.

        They are views of `content`, which must not change.
        """
        size = int.from_bytes(content[:8], "little")
        rows = msgspec.json.decode(content[8 : 8 + size], type=list[CachedRow])
        numbers = content[8 + size :]
        for row in rows:
            kind = np.dtype(row.kind)
            count = math.prod(row.shape)
            if kind.kind != "f" or not 0 <= count * kind.itemsize <= len(numbers):
                raise ValueError("it does not hold the states that it names")
            array = np.frombuffer(numbers, kind, count).reshape(row.shape)
            numbers = numbers[array.nbytes :]
            if self.size + array.nbytes <= self.most:
                self._known[row.maker, bytes.fromhex(row.text)] = array
                self.size += array.nbytes

    def dump(self) -> Iterator[bytes | memoryview]:
        """All states that another process would know again, in pieces."""
        known = {row: array for row, array in self._known.items() if not row[0].startswith(LOCAL)}
        rows = [CachedRow(maker, text.hex(), array.dtype.str, array.shape) for (maker, text), array in known.items()]
        head = msgspec.json.encode(rows)
        yield len(head).to_bytes(8, "little") + head
        for array in known.values():
            yield np.ascontiguousarray(array).data.cast("B")
        self.is_new = False

    def _states_read(self, program: Program) -> Mapping[Key, str]:
        """The states that poolers and heads read, and the name of what makes each.

        None of a program with prompts: there a row is not what its text alone makes it.
        """
        if any(len(root.prompts) > 1 or root.own or root.beside for root in program.roots):
            return {}
        shapes = {root.step: root.shape for root in program.roots}
        makers: dict[Key, str] = {}
        for call in program.calls:
            reads = tuple((name, makers.get(key) or (key[0], shapes.get(key[1]))) for name, key in call.inputs)
            for name, keys in call.states:
                for lane, key in enumerate(keys):
                    maker = (call.graph.recipe.key, name, lane, reads)
                    if maker not in self._makers:
                        self._makers[maker] = self._name(call, name, lane, reads)
                    makers[key] = self._makers[maker]
        read = dict.fromkeys(key for call in program.calls if call.answers for _, key in call.inputs)
        return {key: makers[key] for key in read if key in makers}

    def _name(self, call: GraphCall, output: str, lane: int, reads: tuple[tuple[str, object], ...]) -> str:
        """The name of what makes a state: the same in any process, where all graphs on its way have a digest."""
        digest = call.graph.recipe.digest()
        if digest is None or any(str(state).startswith(LOCAL) for _, state in reads):
            return f"{LOCAL}{len(self._makers)}"
        return hashlib.sha256(repr((digest, output, lane, reads)).encode()).hexdigest()


def _texts(batch: TokenBatch) -> list[bytes]:
    """A name for each row of the batch, which tells all that layers read of it."""
    rows = zip(batch.ids, batch.mask, batch.segments, strict=True)
    return [hashlib.sha256(b"".join(array.tobytes() for array in row)).digest() for row in rows]
