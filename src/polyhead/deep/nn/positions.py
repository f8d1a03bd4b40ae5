"""Positions of tokens: rotations, windows and terms of relative positions for one input of a layer."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from polyhead.deep.nn.attention import AttentionKeys, visible
from polyhead.encoder.relative import buckets_of, frequencies
from polyhead.encoder.shape import LayerForm, Relative, Rotary
from polyhead.encoder.window_blocks import block_of


class RelativeTable(nn.Module):
    """The table of relative positions that all layers of an owner read; zeros, to be filled."""

    def __init__(self, form: LayerForm) -> None:
        super().__init__()
        assert form.relative is not None
        self.relative = form.relative
        wide = form.heads if self.relative.kind == "bias" else form.width
        self.weight = nn.Parameter(torch.zeros(self.relative.buckets, wide))
        self.norm = nn.LayerNorm(wide, eps=form.norm_epsilon) if self.relative.norm else None

    def forward(self) -> Tensor:
        """(buckets, heads or width)."""
        return self.weight if self.norm is None else self.norm(self.weight)


def relative_table(form: LayerForm) -> RelativeTable | None:
    """A table for layers of this form, where they read one."""
    return None if form.relative is None else RelativeTable(form)


class RowPlaces:
    """Places of the `size` positions of an input, the first `before` of them prompt rows, which have none.

    A prompt row is not turned, gains nothing by distance, sees every token and is seen by every token, whatever the
    window. Positions are those in the row: in packed rows distances inside a text are the same.
    """

    def __init__(self, size: int, *, before: int = 0, table: RelativeTable | None = None) -> None:
        self.size, self.before, self._table = size, before, table
        self._known: dict[object, Tensor] = {}
        self._mask: Tensor | None = None

    def visible(self, mask: Tensor) -> Tensor:
        """`attention.visible` of the mask, computed once for all layers that are given the same."""
        if self._mask is not mask:
            self._mask, self._known["visible"] = mask, visible(mask)
        return self._known["visible"]

    def blocks(self, window: int) -> Blocks | None:
        """The row's tokens in blocks; None where one is all of them."""
        size = block_of(self.size - self.before, window)
        if size >= self.size - self.before:
            return None
        return Blocks(self.size, size=size, window=window, before=self.before)

    def turned(self, values: Tensor, rotary: Rotary | None) -> Tensor:
        """Queries or keys (rows, heads, positions, width) of the first positions, turned by their position."""
        if rotary is None:
            return values
        angles = self._angles(rotary, values)[: values.shape[2]]
        first, second = values.float().chunk(2, dim=-1)
        cosine, sine = rotary.scale * angles.cos(), rotary.scale * angles.sin()
        return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1).to(values.dtype)

    def seen(self, window: int, device: torch.device) -> Tensor:
        """(positions, positions), True where a token is near enough to be read."""
        key = ("window", window)
        if key not in self._known:
            at = torch.arange(self.size, device=device)
            near = (at[:, None] - at).abs() <= window
            near[: self.before], near[:, : self.before] = True, True
            self._known[key] = near
        return self._known[key]

    def read_table(self) -> None:
        """Computes what layers share of the table, outside of layers that the backward pass computes again."""
        if self._table is None:
            return
        self.vectors()
        if self._table.relative.kind == "bias":
            self.bias(self._table.relative)

    def vectors(self) -> Tensor:
        """The table, (buckets, heads or width)."""
        assert self._table is not None
        if "vectors" not in self._known:
            self._known["vectors"] = self._table()
        return self._known["vectors"]

    def bias(self, relative: Relative) -> Tensor:
        """(1, heads, positions, positions): what scores gain, a number for each head and distance."""
        if "bias" not in self._known:
            buckets, has_place = self.buckets(relative, self.vectors().device)
            self._known["bias"] = (self.vectors()[buckets] * has_place[..., None]).permute(2, 0, 1)[None]
        return self._known["bias"]

    def buckets(self, relative: Relative, device: torch.device) -> tuple[Tensor, Tensor]:
        """(positions, positions) each: the row of the table for query i and key j, and 0.0 where one has no place."""
        if "buckets" not in self._known:
            at = np.arange(self.size)
            self._known["buckets"] = torch.from_numpy(buckets_of(relative, at[:, None] - at)).to(device)
            has_place = torch.ones(self.size, self.size, device=device)
            has_place[: self.before], has_place[:, : self.before] = 0.0, 0.0
            self._known["has_place"] = has_place
        return self._known["buckets"], self._known["has_place"]

    def _angles(self, rotary: Rotary, values: Tensor) -> Tensor:
        """(positions, width / 2) in float32; 0 for prompt rows."""
        key = ("angles", rotary)
        if key not in self._known:
            half = values.shape[-1] // 2
            at = (torch.arange(self.size, device=values.device) - self.before).clamp(min=0).float()
            self._known[key] = at[:, None] * torch.from_numpy(frequencies(rotary, half)).to(values.device)
        return self._known[key]


class Blocks:
    """Tokens of a row in blocks of `size`, behind `before` prompt rows, which every token reads."""

    def __init__(self, positions: int, *, size: int, window: int, before: int = 0) -> None:
        self._before, self._size, self._window, self._tokens = before, size, window, positions - before
        self.count = -(-self._tokens // size)

    def queries(self, query: Tensor) -> Tensor:
        """Queries (rows, heads, positions, width), the tokens' alone in blocks: (rows * blocks, heads, size, width)."""
        return _as_rows(self._cut(query[:, :, self._before :]))

    def keys(self, keys: AttentionKeys) -> AttentionKeys:
        """For each block the prompt rows' keys, and those near it."""
        return AttentionKeys(key=self._near(keys.key), value=self._near(keys.value))

    def seen(self, seen: Tensor) -> Tensor:
        """The mask `seen` (rows, 1, 1 or positions, positions) for each block's queries and keys, in the window."""
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
