"""Attention with a window over long rows: blocks of queries, each over the keys that lie near it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from polyhead.deep.nn.attention import AttentionKeys


class Blocks:
    """Tokens of a row in blocks of `size`, behind `before` prompt rows, which every token reads."""

    def __init__(self, positions: int, *, size: int, window: int, before: int = 0) -> None:
        self._before, self._size, self._window, self._tokens = before, size, window, positions - before
        self.count = -(-self._tokens // size)

    def queries(self, query: Tensor) -> Tensor:
        """Those of tokens, of (rows, heads, positions, width): (rows * blocks, heads, size, width)."""
        return _as_rows(self._cut(query[:, :, self._before :]))

    def keys(self, keys: AttentionKeys) -> AttentionKeys:
        """For each block the prompt rows' keys, and those near it."""
        return AttentionKeys(key=self._near(keys.key), value=self._near(keys.value))

    def seen(self, seen: Tensor) -> Tensor:
        """Of `seen` (rows, 1, 1 or positions, positions) what each block's queries read of `keys`, and is near."""
        at, read = self._places(seen.device)
        near = (at[:, :, None] - read[:, None]).abs() <= self._window  # (blocks, size, read)
        near = near & ((read >= 0) & (read < self._tokens))[:, None]
        read = torch.cat([self._prompts(read), self._before + read.clamp(0, self._tokens - 1)], dim=1)
        near = functional.pad(near, (self._before, 0), value=True)
        if seen.shape[2] == 1:
            held = seen[:, 0, 0][:, read][:, :, None]
        else:
            asking = self._before + at.clamp(max=self._tokens - 1)
            held = seen[:, 0][:, asking[:, :, None], read[:, None]]
        held = held & near
        return (held | ~held.any(dim=-1, keepdim=True)).flatten(0, 1)[:, None]

    def joined(self, mixed: Tensor, rows: int) -> Tensor:
        """(rows * blocks, size, width) as the tokens' (rows, tokens, width)."""
        return mixed.reshape(rows, self.count * self._size, -1)[:, : self._tokens]

    def _near(self, x: Tensor) -> Tensor:
        tokens, window = x[:, :, self._before :], self._window
        before, after = (self._cut(tokens, start)[..., :window, :] for start in (-window, self._size))
        prompts = x[:, :, None, : self._before].expand(-1, -1, self.count, -1, -1)
        return _as_rows(torch.cat([prompts, before, self._cut(tokens), after], dim=3))

    def _cut(self, tokens: Tensor, start: int = 0) -> Tensor:
        """The tokens from one on, as (rows, heads, blocks, size, width); zeros beyond the ends."""
        more = self.count * self._size + start - self._tokens
        padded = functional.pad(tokens, (0, 0, -start, more))
        return padded.reshape(*tokens.shape[:2], self.count, self._size, tokens.shape[-1])

    def _places(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Tokens that each block asks for (blocks, size), and those that it reads, with the ends' beyond the row."""
        starts = self._size * torch.arange(self.count, device=device)[:, None]
        steps = torch.arange(-self._window, self._size + self._window, device=device)
        return starts + steps[self._window : -self._window], starts + steps

    def _prompts(self, read: Tensor) -> Tensor:
        return torch.arange(self._before, device=read.device).expand(len(read), -1)


def _as_rows(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(0, 1)
