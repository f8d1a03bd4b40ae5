"""States of texts that were computed before, so that poolers and heads read them and no layer runs again."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

import numpy as np

from polyhead.engine.backends.base import TokenBatch
from polyhead.engine.compile.program import Key, Program, Values


class KeptStates:
    """The states of single texts, from passes whose rows do not depend on each other.

    A state is known by what made it (the keys of the graphs that it went through, so it belongs to one set of graphs)
    and by all that layers read of its text. Up to `most` bytes are kept, at first none; then nothing is taken until
    `drop_unread` makes room.
    """

    def __init__(self) -> None:
        self.most = self.size = 0  # bytes
        self._known: dict[tuple[int, bytes], np.ndarray] = {}
        self._read = set[tuple[int, bytes]]()
        self._makers: dict[Hashable, int] = {}  # numbered, since their keys are long

    def of(self, program: Program, batch: TokenBatch) -> Values:
        """All states that the program's poolers and heads read; nothing where one of a text is not known."""
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

    def keep(self, program: Program, batch: TokenBatch, values: Values) -> None:
        """Keeps these states of the texts, as far as there is room."""
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

    def drop_unread(self) -> None:
        """Forgets what nobody has read or given since the last call of this."""
        self._known = {key: row for key, row in self._known.items() if key in self._read}
        self.size = sum(row.nbytes for row in self._known.values())
        self._read = set()

    def _states_read(self, program: Program) -> Mapping[Key, int]:
        """The states that poolers and heads read, and the number of what makes each.

        None of a program with prompts: there a row is not what its text alone makes it.
        """
        if any(len(root.prompts) > 1 or root.own or root.beside for root in program.roots):
            return {}
        shapes = {root.step: root.shape for root in program.roots}
        makers: dict[Key, int] = {}
        for call in program.calls:
            reads = tuple((name, makers.get(key) or (key[0], shapes.get(key[1]))) for name, key in call.inputs)
            for name, keys in call.states:
                for lane, key in enumerate(keys):
                    maker = (call.graph.recipe.key, name, lane, reads)
                    makers[key] = self._makers.setdefault(maker, 1 + len(self._makers))
        read = dict.fromkeys(key for call in program.calls if call.answers for _, key in call.inputs)
        return {key: makers[key] for key in read if key in makers}


def _texts(batch: TokenBatch) -> list[bytes]:
    """A name for each row of the batch, which says all that layers read of it."""
    rows = zip(batch.ids, batch.mask, batch.segments, strict=True)
    return [b"".join(array.tobytes() for array in row) for row in rows]
