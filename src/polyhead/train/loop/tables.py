"""Gradients of embedding tables: an update reads few rows of a table, so none as large as the table is made for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Tables:
    """A module's embedding tables, on a processor; each has one array for its gradient, which stays between updates.

    A backward pass would make an array of zeros as large as the table, which takes longer than a layer does. Sums are
    those of dense gradients: of one micro-batch to the bit, of several up to the order of sums.
    """

    def __init__(self, module: nn.Module) -> None:
        self._tables = [part for part in module.modules() if isinstance(part, nn.Embedding)]
        self._sums: dict[nn.Embedding, tuple[Tensor, Tensor]] = {}  # and which rows of it are not zero

    @contextmanager
    def learning(self) -> Iterator[None]:
        """Backward passes inside add up rows; afterwards parameters hold dense gradients, as always.

        What a table's parameter held before stays in it, and the array is then made anew.
        """
        own = [table for table in self._tables if table.weight.grad is None and not table.sparse]
        for table in own:
            table.sparse = True
        try:
            yield
        finally:
            for table in own:
                table.sparse = False
        for table in self._tables:
            if table.weight.grad is not None and table.weight.grad.is_sparse:
                table.weight.grad = self._summed(table, table.weight.grad)
            elif table not in own:
                self._sums.pop(table, None)

    def _summed(self, table: nn.Embedding, found: Tensor) -> Tensor:
        (rows,), values = found._indices(), found._values()
        total, before = self._sums.get(table) or (torch.zeros_like(table.weight), rows)
        total.index_fill_(0, before, 0.0).index_add_(0, rows, values)
        self._sums[table] = (total, rows)
        return total
