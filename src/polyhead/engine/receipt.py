"""The cost of inputs: arrays over all inputs of a request, and the value of one input on request."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType

from polyhead.engine.batch import EncodedInputs
from polyhead.engine.inputs import AnyInput, task_input
from polyhead.lazy import lazy
from polyhead.text.encodings import end_to_end, starts_of
from polyhead.text.question import texts_of
from polyhead.text.tokenize import lone_surrogates
from polyhead.values import Value

Flops = Callable[[tuple[str, ...], int], Mapping[str, int]]
"""Entries of `Receipt.added_flops` for one pass of so many tokens that these tasks read."""


class Receipt(Value):
    """The cost of one input.

    A pass is one text read once by the trunk: one for a text or a pair read jointly, up to two for a pair read
    separately, one an option, one a window. `layers` counts every layer that was run in these: a prompt group or an
    adapter has its text run through layers of the trunk once more, which adds layers and no pass; so do the layers of a
    decoder, once for each token that it wrote.

    A pair read jointly takes two passes where some span tasks read words at their first token alone, and others, which
    were imported, at the last one too; so does a text that is too long, or nearly so, for tasks behind shifted prompts,
    which read fewer tokens than others. `cut` is then the larger of theirs.

    A text of pairs read separately is read once for all that is made ready together (the first 256 inputs of a call,
    then 2,048 at a time, fewer of long texts). Its pass, layers and tokens are counted for the first input that is this
    very text and that some task reads, else for the first pair that holds it, and for no other pair; `cut`, `repaired`
    and `added_flops` are said for every pair.

    `added_flops` has an entry for each answered task, what it alone did beyond a plain pass of the trunk, and one for
    tasks that shared such work, "shared: mood, urgency": the layers of their prompt group, or with their common
    adapter. With the plain pass the entries are the whole cost; a pair read separately is counted as its longer text.
    """

    passes: int
    layers: int
    tokens: int  # special tokens included
    # Tokens that were not read by tasks that do not read windows, beyond the trunk's limit or a task's own, lower one
    # behind shifted prompts; of a text of over a million characters at least so many.
    cut: int = 0
    windows: int = 1
    repaired: int = 0  # lone surrogates that were replaced before reading
    added_flops: dict[str, int] = {}
    bundles: dict[str, str] | UnsetType = UNSET  # of a set of bundles: by task the one that answered

    def to_dict(self) -> dict[str, object]:
        """Plain values, as JSON holds them."""
        plain: dict[str, object] = msgspec.to_builtins(self)
        return plain


def added_up(first: Receipt, second: Receipt) -> Receipt:
    """The sum of two bundles' receipts of one input; of the parts not read, the larger one."""
    flops = dict(first.added_flops)
    for name, number in second.added_flops.items():
        flops[name] = flops.get(name, 0) + number
    return Receipt(
        passes=first.passes + second.passes,
        layers=first.layers + second.layers,
        tokens=first.tokens + second.tokens,
        cut=max(first.cut, second.cut),
        windows=max(first.windows, second.windows),
        repaired=max(first.repaired, second.repaired),
        added_flops=flops,
        bundles=(first.bundles or {}) | (second.bundles or {}),
    )


class _Read(NamedTuple):
    """The texts of a batch, or the halves of pairs among them; arrays (readings,)."""

    rows: np.ndarray  # the inputs
    sizes: np.ndarray  # tokens
    readers: tuple[str, ...]  # the tasks that read it
    cutting: tuple[str, ...]  # those of them that read no windows
    tasks: tuple[str, ...]  # that got outputs of it
    windows_cut: np.ndarray  # tokens that no window holds
    beyond: np.ndarray  # tokens beyond the limit, unread by those of `cutting`
    repaired: np.ndarray  # bool: whether the text was
    # The most tokens of a text, and whether the last token of each word is read: other tasks may read the same texts
    # with others, in a pass of their own.
    read_as: tuple[int, bool]
    windows: np.ndarray | None = None  # the number of each among the windows of its input
    layers: int = 0
    is_half: bool = False  # of pairs read separately, whose pass is counted for another input or another time

    @property
    def cut(self) -> np.ndarray:
        """The tokens that some task did not read."""
        return self.beyond if self.cutting else self.windows_cut

    def of(self, tasks: Collection[str]) -> _Read:
        """The same reading, counted for these tasks alone."""
        readers, cutting = (tuple(name for name in names if name in tasks) for names in (self.readers, self.cutting))
        return self._replace(readers=readers, cutting=cutting)

    @property
    def is_alone(self) -> bool:
        """Whether it is one whole text, read as it was given."""
        return len(self.rows) == 1 and not (self.is_half or self.repaired[0] or self.windows is None or self.windows[0])


class Receipts:
    """The cost of a request's inputs so far, added up on request: see `Receipt` for the names."""

    def __init__(self, inputs: Sequence[AnyInput]) -> None:
        self._inputs, self._read = inputs, list[_Read]()
        self._known: dict[str, np.ndarray] | None = None  # forgotten when more is counted
        self._written: list[tuple[int, str, int, int]] = []  # input, task, layers of its decoder and their FLOPs

    @property
    def passes(self) -> np.ndarray:
        """int64 (inputs,), as the next five."""
        return self._totals["passes"]

    @property
    def layers(self) -> np.ndarray:
        """The layers that were run."""
        return self._totals["layers"]

    @property
    def tokens(self) -> np.ndarray:
        """The tokens that were read."""
        return self._totals["tokens"]

    @property
    def cut(self) -> np.ndarray:
        """The tokens that were not."""
        return self._totals["cut"]

    @property
    def repaired(self) -> np.ndarray:
        """Lone surrogates."""
        return self._totals["repaired"]

    @property
    def windows(self) -> np.ndarray:
        """The number of windows of each input; 1 if it was read whole or cut."""
        return self._totals["windows"]

    def copy(self) -> Receipts:
        """The receipts of this moment, which no later pass changes."""
        receipts = Receipts(self._inputs)
        receipts._read, receipts._written = list(self._read), list(self._written)
        return receipts

    def of(self, tasks: Collection[str]) -> Receipts:
        """The receipts of this moment, had only these tasks been asked.

        A pass keeps all layers that were run in it, and one that only another task's reading of words made stays.
        """
        receipts = Receipts(self._inputs)
        receipts._read = [read for read in (read.of(tasks) for read in self._read) if read.readers]
        receipts._written = [entry for entry in self._written if entry[1] in tasks]
        return receipts

    def add(self, batch: EncodedInputs, tasks: tuple[str, ...], layers: int) -> None:
        """Counts a batch with its number of layers run and the tasks that got outputs."""
        texts, entries, rows, sizes = batch.texts, batch.entries, batch.row, batch.lengths
        encodings, separate, beyond = texts.encodings, texts.separate, texts.beyond[entries]
        not_cutting = {*texts.windowed, *separate}
        read_as = texts.limit, texts.reads is not None and texts.reads.ends is not None
        self._read.append(
            _Read(
                rows=rows,
                sizes=sizes,
                readers=batch.tasks,
                cutting=tuple([name for name in batch.tasks if name not in not_cutting]),
                tasks=tuple([name for name in tasks if name not in separate]) if separate else tasks,
                windows_cut=texts.cut[entries] if texts.windowed else beyond,
                beyond=beyond,
                repaired=encodings.repaired[entries] > 0,
                read_as=read_as,
                windows=encodings.window[entries],
                layers=layers,
            )
        )
        if separate and not set(separate).isdisjoint(batch.tasks):
            compared = tuple([name for name in tasks if name in separate])
            for places in texts.halves(entries):
                halves = places[places >= 0]
                half_beyond = encodings.beyond[entries[halves]]
                self._read.append(
                    _Read(
                        rows=texts.pairs[places >= 0, 0],
                        sizes=sizes[halves],
                        readers=separate,
                        cutting=separate,
                        tasks=compared,
                        windows_cut=half_beyond,
                        beyond=half_beyond,
                        repaired=encodings.repaired[entries[halves]] > 0,
                        read_as=read_as,
                        is_half=True,
                    )
                )
        self._known = None

    def add_written(self, task: str, rows: Sequence[int], costs: Sequence[tuple[int, int]]) -> None:
        """Counts the layers that a task's decoder ran for each of these inputs, and their FLOPs."""
        self._written += [(row, task, *cost) for row, cost in zip(rows, costs, strict=True)]
        self._known = None

    def at(self, row: int, flops: Flops) -> Receipt:
        """The receipt of one input."""
        if len(self._inputs) == len(self._read) == 1 and not self._written and self._read[0].is_alone:
            (read,) = self._read
            tokens, added = int(read.sizes[0]), dict(flops(read.tasks, int(read.sizes[0])))
            cut = int(read.cut[0])
            return Receipt(passes=1, layers=read.layers, tokens=tokens, cut=cut, added_flops=added)
        totals: dict[str, Any] = {name: int(counts[row]) for name, counts in self._totals.items()}
        return Receipt(**totals, added_flops=self._flops(row, flops))

    @property
    def _totals(self) -> dict[str, np.ndarray]:
        if self._known is None:
            self._known = self._added_up()
        return self._known

    def _added_up(self) -> dict[str, np.ndarray]:
        size = len(self._inputs)
        passes = [read for read in self._read if not read.is_half]
        rows, all_rows = end_to_end([read.rows for read in passes]), end_to_end([read.rows for read in self._read])
        windows = np.zeros(size, np.int64)
        np.maximum.at(windows, rows, end_to_end([read.windows for read in passes if read.windows is not None]))
        layers = np.repeat([read.layers for read in passes], [len(read.rows) for read in passes])
        totals = {
            "passes": np.bincount(rows, minlength=size),
            "layers": _sums(rows, layers, size),
            "tokens": _sums(rows, end_to_end([read.sizes for read in passes]), size),
            "cut": self._cut(),
            "repaired": np.zeros(size, np.int64),
            "windows": windows + 1,
        }
        is_repaired = [read.repaired for read in self._read]
        if any(map(np.any, is_repaired)):
            for row in set(all_rows[np.concatenate(is_repaired)].tolist()):
                totals["repaired"][row] = sum(map(lone_surrogates, texts_of(task_input(self._inputs[row]))))
        for row, _, run, _ in self._written:
            totals["layers"][row] += run
        return totals

    def _cut(self) -> np.ndarray:
        """The tokens that were not read, int64 (inputs,): of passes over the same texts the largest number."""
        total = np.zeros(len(self._inputs), np.int64)
        for is_half in (False, True):
            most = np.zeros_like(total)
            for read_as in dict.fromkeys(read.read_as for read in self._read):
                reads = [read for read in self._read if (read.is_half, read.read_as) == (is_half, read_as)]
                rows, counts = end_to_end([read.rows for read in reads]), end_to_end([read.cut for read in reads])
                most = np.maximum(most, _sums(rows, counts, len(total)))
            total += most
        return total

    @lazy
    def _by_input(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The start of each input's passes (inputs + 1,), and each pass's tokens and index in `_read`."""
        rows, sizes = end_to_end([read.rows for read in self._read]), end_to_end([read.sizes for read in self._read])
        numbers = np.repeat(np.arange(len(self._read)), [len(read.rows) for read in self._read])
        order = np.argsort(rows, kind="stable")
        starts = starts_of(np.bincount(rows, minlength=len(self._inputs)))
        return starts, sizes[order], numbers[order]

    @lazy
    def _written_flops(self) -> dict[int, dict[str, int]]:
        """By input, FLOPs of decoders by their tasks."""
        flops: dict[int, dict[str, int]] = {}
        for row, task, _, number in self._written:
            flops.setdefault(row, {})[task] = number
        return flops

    def _flops(self, row: int, flops: Flops) -> dict[str, int]:
        """For each window and option what each task added alone, and what several added together."""
        starts, sizes, numbers = self._by_input
        passes, longest = list[tuple[tuple[str, ...], int]](), None
        for i in range(int(starts[row]), int(starts[row + 1])):
            batch_read = self._read[numbers[i]]
            read = (batch_read.tasks, int(sizes[i]))
            if not batch_read.is_half:
                passes.append(read)
            elif longest is None or read[1] > longest[1]:
                longest = read
        added: dict[str, int] = {}
        for tasks, tokens in passes if longest is None else [*passes, longest]:
            if not added:
                added = dict(flops(tasks, tokens))
                continue
            for name, number in flops(tasks, tokens).items():
                added[name] = added.get(name, 0) + number
        for name, number in self._written_flops.get(row, {}).items():
            added[name] = added.get(name, 0) + number
        return added


def _sums(rows: np.ndarray, counts: np.ndarray, size: int) -> np.ndarray:
    """Counts added up by row, int64 (size,); exact up to 2^53."""
    return np.bincount(rows, weights=counts, minlength=size).astype(np.int64)
