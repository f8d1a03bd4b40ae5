"""Modules with the arrays of one owner: the part at the end of a path, and families, which several tasks read."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from typing import Literal, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from polyhead.deep.nn.decoder import TextDecoder
from polyhead.deep.nn.dropout import dropped
from polyhead.deep.nn.heads import AttentionPooler, HashedWords, LearnedMix, WordRows, xavier
from polyhead.deep.nn.heads import OutputHead as HeadModule
from polyhead.deep.nn.layer import Dense, Layer, fill_normal
from polyhead.deep.nn.positions import RowPlaces, relative_table
from polyhead.deep.nn.trunk import States, run_layer
from polyhead.deep.sharing.in_layer import Adapters, delta_layers
from polyhead.encoder.decoder import Decoder
from polyhead.encoder.shape import RELATIVE, Architecture
from polyhead.errors import PlanError
from polyhead.plan import Delta, Path
from polyhead.plan.cost.arrays import head_inputs, layer_form
from polyhead.project.strategies.base import DeltaStart

LAYERED = ("enter", "layers", "relative", "leave", "delta")  # modules that compute in the trunk's precision

LEAST_SQUARE = 1e-24  # added to the mean square of a vector that is divided by its root


class PooledPart(nn.Module):
    """The module of a pooled task: a learned layer mix and an attention pooler if its path has them, and a head.

    A head that generates is a `decoder`, which is called by itself.

    Reads the stored value (rows, tokens, layers, width), decoded, and its mask (rows, tokens). `hidden` is the head's
    hidden layer if a family owns it.
    """

    def __init__(
        self,
        path: Path,
        width: int,
        *,
        hidden: Dense | None = None,
        dropouts: tuple[float, float] = (0.0, 0.0),
        layer_dropout: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        node, head = path.pool, path.head
        self.path = path
        depth = path.layers[-1].stop if path.layers else 0
        if head.hidden_part is not None and hidden is None:
            raise PlanError("the hidden layer that tasks share is missing", got=head.hidden_part)
        self.owner, self.positions, self.separate = head.part, node.positions, head.separate
        self._rows = own_rows(path) if node.positions == "prompt" else slice(0, 1)
        self.mix = LearnedMix(depth) if node.layers == "learned" else None
        self.pool = AttentionPooler(width, node.heads, generator=generator) if node.positions == "attention" else None
        self.dropout, self.decoder, self.words = dropouts[0], None, None
        if isinstance(head.decoder, Decoder):
            self.decoder = TextDecoder(head.decoder, width, head.width, dropout=layer_dropout, generator=generator)
            return  # there is no `head`
        self.head = HeadModule(
            head_inputs(head, width * node.of if node.layers == "beside" else width),
            head.width,
            hidden=head.hidden,
            bias=head.bias,
            activation=head.activation,
            norm=head.norm,
            shared=hidden,
            dropout=dropouts[1],
            generator=generator,
        )
        self.words = HashedWords(head.words, head.width) if head.words else None

    def features(self, stored: Tensor, mask: Tensor) -> Tensor:
        """(rows, width), or (rows, words, width) for a path that reads words, with their neighbours if it has them.

        Of layers side by side, as many times the width.
        """
        if self.path.pool.layers == "beside":
            mixed = at_one_length(stored).flatten(2)
        else:
            mixed = self.mix(stored) if self.mix is not None else _mean(stored)
        if self.positions == "tokens":
            return with_neighbours(mixed, mask, self.path.head.window)
        if self.positions == "prompt":
            return mixed[:, self._rows].mean(dim=1)
        return self.pool(mixed, mask) if self.pool is not None else mixed[:, 0]

    def inputs(
        self,
        stored: Tensor,
        mask: Tensor,
        second: tuple[Tensor, Tensor] | None = None,
        words: WordRows | None = None,  # as `forward` takes them; they are no input of its maps
    ) -> Tensor:
        """The head's inputs: features, or both texts' features compared; `second` is the other text of a pair."""
        features = self.features(stored, mask)
        if self.separate:
            assert second is not None
            features = pair_features(features, self.features(*second))
        return features

    def forward(
        self, stored: Tensor, mask: Tensor, second: tuple[Tensor, Tensor] | None = None, words: WordRows | None = None
    ) -> Tensor:
        """Outputs (rows, labels), or (rows, words, labels); `second` is the other text of a pair read separately.

        Without `words`, those of the rows' texts, a head that reads them leaves them out.
        """
        outputs: Tensor = self.head(dropped(self.inputs(stored, mask, second), self.dropout, self.training))
        if self.words is not None and words is not None:
            outputs = outputs + self.words(words).reshape(outputs.shape)
        return outputs


def with_neighbours(words: Tensor, mask: Tensor, window: int) -> Tensor:
    """Words joined with their neighbours, (rows, words, (2 window + 1) width): zeros past ends and for unread words.

    `words` (rows, words, width), `mask` (rows, words).
    """
    if not window:
        return words
    padded = functional.pad(words * mask.unsqueeze(-1), (0, 0, window, window))
    return torch.cat([padded[:, start : start + words.shape[1]] for start in range(2 * window + 1)], dim=-1)


def _mean(stored: Tensor) -> Tensor:
    """The mean over layers; of a single layer a view of it."""
    return stored[:, :, 0] if stored.shape[2] == 1 else stored.mean(dim=2)


class OwnedPart(PooledPart):
    """The arrays of the owner of a path's head: prompt rows, deltas, its own layers, and those of a pooled part.

    Its layers are numbered from the trunk's on; `enter` and `leave` map into narrow ones and back. If the pooler reads
    only the first position, the last of them computes only that.
    """

    def __init__(
        self,
        path: Path,
        shape: Architecture,
        *,
        families: Mapping[str, Family] | None = None,
        starts: Mapping[Delta, DeltaStart] | None = None,
        norm_init: Literal["one", "legacy"] = "one",
        dropouts: tuple[float, float] = (0.0, 0.0),
        layer_dropout: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> None:
        families, owner = families or {}, path.head.part
        shared = families.get(path.head.hidden_part or "")
        hidden = shared.hidden if shared is not None else None
        super().__init__(
            path, shape.width, hidden=hidden, dropouts=dropouts, layer_dropout=layer_dropout, generator=generator
        )
        self.prompt = _prompt(owner, [path], shape, generator)
        places = delta_layers([path], owner)
        ends = {name: family.delta for name, family in families.items() if family.delta is not None}
        self.delta = Adapters(owner, places, shape, starts=starts, shared=ends, generator=generator) if places else None
        private = [node for node in path.layers if node.weights == owner]
        self.first, self.last = (private[0].start, private[-1].stop - 1) if private else (0, -1)
        self.checkpointing = False  # like that of a trunk
        self._narrow = path.stored().pool.positions == "first"
        self.layers = nn.ModuleDict(
            {
                str(index): Layer(layer_form(node, index, shape), dropout=layer_dropout)
                for node in private
                for index in range(node.start, node.stop)
            }
        )
        self.relative = relative_table(layer_form(private[0], private[0].start, shape)) if private else None
        inner = private[0].width or shape.width if private else shape.width
        self.enter = Dense(shape.width, inner) if private and private[0].enter else None
        self.leave = Dense(inner, shape.width) if private and private[-1].leave else None
        if generator is not None:
            for module in (self.layers, self.relative, self.enter, self.leave):
                if module is not None:
                    fill_normal(module, generator, norm_init=norm_init)

    def run(self, states: States, *, stop: int) -> States:
        """The same states, and those of the part's own layers up to `stop`."""
        hidden = list(states.hidden)
        places = RowPlaces(states.last.shape[1], before=states.before, table=self.relative)
        for index in range(states.depth, stop):
            if str(index) not in self.layers:
                raise PlanError("no part here owns these layers", got=index, allowed=list(self.layers))
            hidden.append(self._through(index, hidden[-1], states.mask, places))
        return States(hidden=tuple(hidden), mask=states.mask, first=states.first, before=states.before)

    def _through(self, index: int, value: Tensor, mask: Tensor, places: RowPlaces) -> Tensor:
        layer = self.layers[str(index)]
        if not torch.is_autocast_enabled(value.device.type):
            value = value.to(next(layer.parameters()).dtype)
        if self.enter is not None and index == self.first:
            value = self.enter(value)
        narrow = int(self._narrow and index == self.last)
        value = run_layer(layer, value, mask, first=narrow, again=self.checkpointing, places=places)
        if self.leave is not None and index == self.last:
            value = self.leave(value)
        return value

    def lower(self, dtype: torch.dtype) -> None:
        """Switches to the numerics of a backend: layers in the trunk's precision, poolers and heads in float32."""
        _lower(self, dtype)

    def served(self, dtype: torch.dtype) -> Self:
        """A copy in the form of a backend."""
        copied = copy.deepcopy(self).eval()
        copied.lower(dtype)
        return copied


class BranchPart(OwnedPart):
    """The module of a branch: layers instead of the trunk's, a pooler if its path has one, and a head."""

    def start_from(self, arrays: Mapping[str, np.ndarray], *, head: bool = False) -> None:
        """Copies the private layers' weights from arrays of a trunk or a longer branch, and with `head` the rest too.

        From a longer branch it copies the bottommost layers (Wei et al. 2021), since these have the same indices. A
        norm that closes these layers starts as the one that closes those copied, if there is one.
        """
        state, arrays = self.state_dict(), {**arrays, **self._closing(arrays)}
        wanted = [name for name in state if head or name.startswith(("layers.", f"{RELATIVE}."))]
        missing = [name for name in wanted if name not in arrays or arrays[name].shape != state[name].shape]
        if missing:
            raise PlanError("a branch cannot start from these weights", got=f"none that fit for {missing[:3]}")
        self.load_state_dict({**state, **{name: torch.tensor(np.asarray(arrays[name])) for name in wanted}})

    def _closing(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The arrays of the norm that closes other layers, under the names of the norm that closes these."""
        name, state = f"layers.{self.last}.norm", self.state_dict()
        leaves = [leaf for leaf in ("weight", "bias") if f"{name}.{leaf}" in state and f"{name}.{leaf}" not in arrays]
        closing: dict[str, np.ndarray] = {}
        for leaf in leaves:
            others = [other for other in arrays if re.fullmatch(rf"layers\.\d+\.norm\.{leaf}", other)]
            closing[f"{name}.{leaf}"] = arrays[others[0]] if others else state[f"{name}.{leaf}"].numpy()
        return closing


class Family(nn.Module):
    """The arrays of an owner without a path of its own here: prompt rows, deltas, a head's hidden layer.

    Such owners are families of several tasks, and tasks whose prompt is in another's input.
    """

    def __init__(
        self,
        owner: str,
        paths: Sequence[Path],
        shape: Architecture,
        *,
        starts: Mapping[Delta, DeltaStart] | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.owner = owner
        self.prompt = _prompt(owner, paths, shape, generator)
        places = delta_layers(paths, owner)
        self.delta = Adapters(owner, places, shape, starts=starts, generator=generator) if places else None
        self.head = nn.ModuleDict()
        heads = [path.head for path in paths if path.head.hidden_part == owner]
        if heads:
            self.head["hidden"] = Dense(shape.width, heads[0].hidden)
            xavier(self.head, generator)

    @property
    def hidden(self) -> Dense | None:
        """The hidden layer of heads, if this owner has it."""
        hidden = dict(self.head.items()).get("hidden")
        assert hidden is None or isinstance(hidden, Dense)
        return hidden

    def lower(self, dtype: torch.dtype) -> None:
        """Switches to the numerics of a backend: modules inside layers in the trunk's precision."""
        _lower(self, dtype)


class PromptRows(nn.Module):
    """Trained rows before the text, used as word vectors: `weight` (rows, embedding width).

    Start as N(0, 0.02), redrawn beyond two standard deviations; without a generator at zero, to be filled.
    """

    def __init__(self, rows: int, shape: Architecture, *, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(rows, shape.embedding_width or shape.width))
        if generator is not None:
            nn.init.trunc_normal_(self.weight, std=0.02, a=-0.04, b=0.04, generator=generator)


def pair_features(first: Tensor, second: Tensor) -> Tensor:
    """[u, v, |u - v|, u * v] (rows, 4 width), of two texts' features, each scaled to the length sqrt(width).

    At that length the mean of u * v is the cosine, and single values stay near one (decision 0010).
    """
    u, v = at_one_length(first), at_one_length(second)
    return torch.cat([u, v, (u - v).abs(), u * v], dim=-1)


def at_one_length(features: Tensor) -> Tensor:
    """Vectors (..., width) at the length sqrt(width): divided by their root mean square."""
    return functional.rms_norm(features, features.shape[-1:], eps=LEAST_SQUARE)


def own_rows(path: Path) -> slice:
    """Which of the path's rows, counted from the first, are the prompt that its pool reads."""
    before = 0
    for prompt in path.embed.prompts:
        if prompt.part == path.pool.part:
            return slice(before, before + prompt.rows)
        before += prompt.rows
    raise PlanError("a path pools a prompt that does not stand in its input", got=path.pool.part)


def _prompt(
    owner: str, paths: Sequence[Path], shape: Architecture, generator: torch.Generator | None
) -> PromptRows | None:
    rows = [prompt.rows for path in paths for prompt in path.embed.prompts if prompt.part == owner]
    return PromptRows(rows[0], shape, generator=generator) if rows else None


def _lower(module: nn.Module, dtype: torch.dtype) -> None:
    for name, child in module.named_children():
        if name in LAYERED:
            child.to(dtype)
