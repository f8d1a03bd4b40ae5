"""Parts of one form that are trained as one: of folds, seeds or settings, over batches of their own or a shared one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import torch
from torch import Tensor, nn
from torch.nn import functional

from polyhead.deep.loop.devices import Devices
from polyhead.deep.loop.feed import TaskSchedule, TrainingBatch
from polyhead.deep.loop.fit import Curriculum
from polyhead.deep.loop.optimizer import adamw, limited
from polyhead.deep.nn.ends import ACTIVATIONS, attended
from polyhead.deep.sharing.part import PooledPart, pair_features, with_neighbours
from polyhead.errors import PlanError
from polyhead.project.recipes import Schedule, Training

Arguments = tuple[Any, ...]  # of a part's call: stored values, their mask, and those of the other text of a pair


class StackedParts(nn.Module):
    """Several parts with equal paths but for their owners; each array is one parameter, (parts, ...).

    Products are those of each part alone, side by side, so that values and gradients are too, up to the order of sums.
    """

    def __init__(self, parts: Sequence[PooledPart]) -> None:
        """Takes the parts' values; `take_apart` writes them back. Raises PlanError for heads that it has no form of."""
        super().__init__()
        first = parts[0]
        if first.decoder is not None or first.words is not None or first.path.head.hidden_part is not None:
            raise PlanError("heads that generate, read hashed words or share a layer are trained alone", got=first.path)
        self._parts = list(parts)
        self.path, self.dropouts = first.path, (first.dropout, first.head.dropout)
        for name in dict(first.named_parameters()):
            values = torch.stack([part.get_parameter(name).detach() for part in parts])
            self.register_parameter(name.replace(".", "-"), nn.Parameter(values))
        self._generators = [torch.Generator() for _ in parts]

    def seed(self, number: int) -> None:
        """Seeds each part's generator for dropout, as that of a part which is trained alone."""
        for generator in self._generators:
            generator.manual_seed(number)

    @torch.no_grad()
    def take_apart(self) -> None:
        """Writes the values into the parts."""
        for name, values in self.named_parameters():
            for part, value in zip(self._parts, values, strict=True):
                part.get_parameter(name.replace("-", ".")).copy_(value)

    def forward(self, batches: Sequence[Arguments]) -> list[Tensor]:
        """Each part's outputs over its own batch, as of the part; a single batch is read by all parts."""
        each = list(batches) * (len(self._parts) if len(batches) == 1 else 1)
        features = self._features(each)
        sizes = [own.shape[:-1] for own in features]
        x = self._dropped(self._padded([own.flatten(0, -2) for own in features]), sizes, self.dropouts[0])
        if self.path.head.hidden:
            x = ACTIVATIONS[self.path.head.activation](self._dense("head.hidden", x))
        x = self._dense("head.output", self._dropped(x, sizes, self.dropouts[1]))
        return [x[i, : size.numel()].view(*size, -1) for i, size in enumerate(sizes)]

    def _features(self, batches: Sequence[Arguments]) -> list[Tensor]:
        """Each head's inputs, (rows, inputs) or (rows, words, inputs)."""
        texts = [[(stored, mask), *(more[:1] if self.path.head.separate else ())] for stored, mask, *more in batches]
        pooled = [[self._mixed(i, stored) for stored, _ in several] for i, several in enumerate(texts)]
        masks = [[mask for _, mask in several] for several in texts]
        if self.path.pool.positions == "attention":
            pooled = self._attended(pooled, masks)
        elif self.path.pool.positions == "tokens":
            window = self.path.head.window
            pooled = [
                [with_neighbours(x, mask, window) for x, mask in zip(*pair, strict=True)]
                for pair in zip(pooled, masks, strict=True)
            ]
        else:
            pooled = [[x[:, 0] for x in several] for several in pooled]
        return [pair_features(*several) if self.path.head.separate else several[0] for several in pooled]

    def _mixed(self, index: int, stored: Tensor) -> Tensor:
        """(rows, tokens, inputs): the layers of one part's batch, mixed."""
        layers = self.path.pool.layers
        if layers == "beside":
            return stored.flatten(2)
        if layers == "learned":
            mix = self._of("mix.scale")[index] * torch.softmax(self._of("mix.weights")[index], dim=0)
            return torch.matmul(mix.to(stored.dtype), stored)
        return stored[:, :, 0] if stored.shape[2] == 1 else stored.mean(dim=2)

    def _attended(self, values: Sequence[Sequence[Tensor]], masks: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        """The attention pooler's output of every text (`nn.ends.AttentionPooler`)."""
        queries, by_text = self._queries(), list[Tensor]()
        for own, several, hidden in zip(queries, values, masks, strict=True):
            rows = [attended(x, mask, own) for x, mask in zip(several, hidden, strict=True)]
            by_text.append(torch.cat(rows))
        pooled = self._padded(by_text)
        parts, rows_of_all, heads, width = pooled.shape
        weights = self._of("pool.value.weight").view(parts * heads, -1, width)
        mixed = _product(pooled.transpose(1, 2).reshape(parts * heads, rows_of_all, width), weights)
        mixed = mixed.view(parts, heads, rows_of_all, -1).transpose(1, 2).flatten(2)
        out = self._dense("pool.output", mixed + self._of("pool.value.bias").unsqueeze(1))
        return [
            list(torch.split(out[i, : len(by_text[i])], [len(x) for x in several])) for i, several in enumerate(values)
        ]

    def _queries(self) -> Tensor:
        """The folded queries, (parts, heads, width)."""
        query, heads = self._of("pool.query"), self.path.pool.heads
        parts, width = query.shape
        inner = self._dense("pool.inner_query", query.unsqueeze(1)).view(parts * heads, 1, width // heads)
        inner = inner / math.sqrt(width // heads)
        keys = self._of("pool.key.weight").view(parts * heads, width // heads, width)
        return torch.bmm(inner, keys).view(parts, heads, width)

    def _dense(self, name: str, x: Tensor) -> Tensor:
        """Each part's dense map, (parts, rows, inputs) to (parts, rows, outputs)."""
        out = _product(x, self._of(f"{name}.weight"))
        if not self.path.head.bias and name == "head.output":
            return out
        return out + self._of(f"{name}.bias").unsqueeze(1)

    def _of(self, name: str) -> Tensor:
        return self.get_parameter(name.replace(".", "-"))

    def _padded(self, several: Sequence[Tensor]) -> Tensor:
        """(parts, rows, ...) from each part's rows, zeros behind the shorter ones."""
        most = max(map(len, several))
        short = [functional.pad(x, (0, 0) * (x.ndim - 1) + (0, most - len(x))) if len(x) < most else x for x in several]
        return torch.stack(short)

    def _dropped(self, x: Tensor, sizes: Sequence[torch.Size], share: float) -> Tensor:
        """(parts, rows, inputs) after dropout; on a processor each part draws for its own rows, as it would alone."""
        if not self.training or not share or x.device.type != "cpu":
            return functional.dropout(x, share, self.training)
        kept = torch.zeros_like(x)
        for own, size, generator in zip(kept, sizes, self._generators, strict=True):
            own[: size.numel()].bernoulli_(1 - share, generator=generator)
        return x * kept.div_(1 - share)


class _Product(torch.autograd.Function):
    """`x W^T`; the gradient of W is computed in its own layout, where torch's is transposed and copied."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return torch.bmm(x, weight.mT)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor]:
        x, weight = ctx.saved_tensors
        own = torch.bmm(gradient, weight) if ctx.needs_input_grad[0] else None
        return own, torch.bmm(gradient.mT, x)


def _product(x: Tensor, weight: Tensor) -> Tensor:
    """(parts, rows, inputs) and (parts, outputs, inputs) to (parts, rows, outputs)."""
    out: Tensor = _Product.apply(x, weight)  # type: ignore[no-untyped-call]
    return out


class StackedBatch(msgspec.Struct, frozen=True):
    """A batch of each part."""

    batches: tuple[TrainingBatch, ...]
    tokens: int = 0


class _Feeds:
    """The updates of parts that are as many in a round."""

    def __init__(self, feeds: Sequence[TaskSchedule]) -> None:
        self._feeds, self.steps = feeds, feeds[0].steps

    def updates(self, epoch: int) -> Iterator[Sequence[tuple[str, Any]]]:
        """As of `Feed`."""
        for several in zip(*(feed.updates(epoch) for feed in self._feeds), strict=True):
            batches = tuple(batch for ((_, batch),) in several if batch is not None)
            yield (("", StackedBatch(batches)),)

    def seen(self, epochs: int) -> int:
        """Of the first part."""
        return self._feeds[0].seen(epochs)

    def state(self) -> dict[str, list[int]]:
        """Empty."""
        return {}

    def restore(self, state: dict[str, list[int]]) -> None:
        """Does nothing: there is no state."""


class StackedCourse(Curriculum):
    """A training run of several parts, each over its own examples, without validation: its last weights are kept.

    Each has its own gradient norm and its own moments, so that it learns as it would alone.
    """

    def __init__(
        self,
        parts: Sequence[PooledPart],
        feeds: Sequence[TaskSchedule],
        *,
        loss: Callable[..., Tensor],
        training: Training,
        schedule: Schedule,
        weights: Tensor | None = None,
    ) -> None:
        """`feeds` have as many updates a round as `schedule`."""
        self.stack = stack = StackedParts(parts)

        def objective(task: str, batch: StackedBatch) -> Tensor:
            outputs = stack([each.arguments for each in batch.batches])
            losses = [
                loss(each.averaged(own), each.targets, weights)
                for each, own in zip(batch.batches, outputs, strict=True)
            ]
            return torch.stack(losses).sum()

        super().__init__(
            Devices(stack, objective),
            _Feeds(feeds),
            score=lambda: None,
            training=training,
            schedule=schedule,
            last=True,
        )

    def epoch(self) -> float:
        """One round of all parts."""
        self.stack.seed(self._stream(self.done))
        return super().epoch()

    def _optimizer(self, rate: Callable[[str], float]) -> torch.optim.Optimizer:
        return adamw(self.module, self.training, rate, stacked=True)

    def _clip(self, when: str) -> None:
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        for own in zip(*gradients, strict=True):  # each part's: views
            limited(own, self.training.clip, when=when)
