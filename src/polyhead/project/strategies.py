"""Strategies: ways of sharing the trunk. Light: checked values, which `sharing` lowers to paths.

Which of the trunk's arrays learn, a recipe says: under `frozen` none of them, under `joint` all.
"""

from __future__ import annotations

import math
import re
from typing import Literal

import msgspec

from polyhead.config import Value, check_unused
from polyhead.errors import ConfigError
from polyhead.plan import ADDED, DeltaKind, Dense, GeluPlace
from polyhead.store.codecs import HALF, codec_named

DONORLESS = "neither prompt nor pooler starts from donors (init, pooler_init = 'donors')"
_GROUP = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Pooled(Value, tag="pooled", tag_field="kind"):
    """Strategy `pooled` (Du et al. 2020, second stage): frozen features, a pooler and a head of the task's own.

    With positions `auto` several heads are tried over a frozen trunk, and the rows that are held out choose: linear
    ones on mean vectors, and the attention head that the other fields describe. Where the trunk learns too, `auto` is
    that attention head. Its defaults, attention over the mean of the last four layers, were the best of the frozen
    poolers that were measured on two tweet tasks on validation (rows of results/first_light_quality.json).
    """

    layers: Literal["last", "mean", "learned"] = "mean"
    of: int = 4  # last layers that `mean` averages; cut to the trunk's depth
    positions: Literal["first", "mean", "attention", "auto"] = "auto"
    heads: int | None = None  # of attention; None: one per 64 dimensions
    hidden: int | None = None  # width of the tanh layer, 0 for none; None: the trunk's width
    codec: str = HALF  # the name of a registered codec
    codec_per: Literal["tensor", "dimension"] = "tensor"  # of its constants, where it has any
    codec_before_mean: bool = False

    def __post_init__(self) -> None:
        for name, least in (("of", 1), ("heads", 1), ("hidden", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(f"strategy.{name} is too small", got=value, allowed=f"{least} or more")
        codec_named(self.codec)


class Branch(Value, tag="branch", tag_field="kind"):
    """Strategy `branch` (Wei et al. 2021): private layers above a tap, each task trained alone on kept states.

    Without `layers` the depth is searched, each depth from `least` to `most` at `seeds` seeds. `students` are shorter
    branches distilled from the one trained; which one is kept, `[allocation]` says.
    """

    layers: int | None = None  # private layers; None: searched
    tap: int | None = None  # the private layers stand above this state; None: the trunk's depth less `layers`
    least: int = 1
    most: int | None = None  # None: the trunk's depth
    search: Literal["halving", "grid"] = "halving"
    seeds: int = 1  # of each depth in the search
    positions: Literal["first", "mean", "attention"] = "first"
    hidden: int | None = None  # width of the tanh layer, 0 for none; None: the trunk's width
    dropout: float = 0.1  # inside the private layers, while training; the trunk below has none
    students: tuple[int, ...] = ()  # private layers of each student
    init: Literal["teacher", "pretrained"] = "teacher"  # what a student starts from
    temperature: float = 2.0  # of distillation
    noisy_teacher: bool = False  # the teacher keeps its dropout, as in the paper's code

    def __post_init__(self) -> None:
        for name, least in (("layers", 1), ("tap", 0), ("least", 1), ("most", 1), ("seeds", 1), ("hidden", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(f"strategy.{name} is too small", got=value, allowed=f"{least} or more")
        if self.tap is not None and self.layers is None:
            raise ConfigError("strategy.tap needs strategy.layers: a search tries every tap", got=self.tap)
        if self.most is not None and self.most < self.least:
            raise ConfigError("strategy.most is below strategy.least", got=self.most, allowed=self.least)
        if not 0 <= self.dropout < 1:
            raise ConfigError("strategy.dropout is a share", got=self.dropout, allowed="0 to below 1")
        if not (self.temperature > 0 and math.isfinite(self.temperature)):
            raise ConfigError("strategy.temperature must be positive", got=self.temperature)
        most = self.layers or self.most
        if any(layers < 1 or (most is not None and layers >= most) for layers in self.students):
            raise ConfigError(
                "strategy.students: a student has fewer private layers than its teacher, at least one",
                got=list(self.students),
                allowed="1 or more" if most is None else f"1 to {most - 1}" if most > 1 else "none",
            )
        if len(set(self.students)) < len(self.students):
            raise ConfigError("strategy.students names a length twice", got=list(self.students))


class Prompted(Value, tag="prompted", tag_field="kind"):
    """Strategy `prompted` (concatenated task prompts, MTOP): trained rows before the text, and a pooler reading them.

    The tasks of one `group` stand in one input and see each other: they are one unit and are trained together. With
    `isolated` the text sees no prompt and a prompt sees the text and itself, so that tasks come and go over a frozen
    trunk. Donors are the same prompt, pooler and head trained for the task alone over the frozen trunk.
    """

    group: str = "prompts"  # unless isolated
    isolated: bool = False
    rows: int = 2  # L_P
    shared: int = 0  # task-agnostic rows before those of the tasks; they always learn and are not pooled
    shift: bool = False  # the text's positions count the rows before it
    hidden: int | None = None  # width of the tanh pooler; None: the trunk's width
    stop_gradient: bool = True  # a task's step leaves the other tasks' prompts alone
    init: Literal["random", "frequent", "donors"] = "random"  # of the prompts
    pooler_init: Literal["random", "donors"] = "random"
    donor_epochs: int = 5
    donor_learning_rate: float = 3e-3

    def __post_init__(self) -> None:
        for name, least in (("rows", 1), ("shared", 0), ("hidden", 1), ("donor_epochs", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(f"strategy.{name} is too small", got=value, allowed=f"{least} or more")
        if not (self.donor_learning_rate > 0 and math.isfinite(self.donor_learning_rate)):
            raise ConfigError("strategy.donor_learning_rate must be positive", got=self.donor_learning_rate)
        if not _GROUP.fullmatch(self.group) or ".." in self.group or self.group.endswith("."):
            raise ConfigError(  # the name of a folder where the group has shared rows
                "strategy.group cannot have this name",
                got=self.group,
                allowed="a name as tasks have them: 1 to 64 letters, digits, '.', '_', '-'; a letter or digit first",
            )
        if self.isolated:
            alone = "isolated prompts stand in no group"
            check_unused("strategy.", self, {"group": alone, "stop_gradient": "isolated prompts see no other"})
        if not self.from_donors:
            unused = dict.fromkeys(("donor_epochs", "donor_learning_rate"), DONORLESS)
            check_unused("strategy.", self, unused)
        if self.isolated and (self.shared or self.shift):
            raise ConfigError(
                "isolated prompts see no other rows than the text, and leave the text where it is",
                got=f"shared = {self.shared}, shift = {str(self.shift).lower()}",
                do="leave these out",
            )

    @property
    def from_donors(self) -> bool:
        """Whether prompt or pooler starts from a donor."""
        return "donors" in (self.init, self.pooler_init)

    def without_donors(self) -> Prompted:
        """The same, begun at random."""
        plain = Prompted()
        return msgspec.structs.replace(
            self,
            init="frequent" if self.init == "frequent" else "random",
            pooler_init="random",
            donor_epochs=plain.donor_epochs,
            donor_learning_rate=plain.donor_learning_rate,
        )


class Adapter(Value):
    """One function that a task adds in a range of the trunk's layers; see `plan.Delta` for the kinds."""

    delta: DeltaKind = "projected_attention"
    start: int = 0
    stop: int | None = None  # None: the trunk's depth
    size: int | None = None  # None: 204 of 768, in proportion to the trunk's width; 0 for `scale`; 8 rows or ranks
    heads: int = 6  # of projected attention, as in the released code
    tied: bool | None = None  # encoder and decoder over the layers; None: but for low rank
    share: Literal["nothing", "ends", "all"] = (
        "nothing"  # what all tasks with this strategy share: encoders and decoders, all
    )
    gelu: GeluPlace = "none"
    serial: bool = False
    scaled: bool = False  # what is added, times 2 sigmoid(r)
    alpha: float = 16.0  # of `lora`
    targets: tuple[Dense, ...] = ("attention.query", "attention.value")  # of `lora`
    init: Literal["zero", "normal"] = (
        "zero"  # of the decoder: the trunk unchanged, or N(0, 0.02) as in the paper's code
    )
    norm_init: Literal["one", "legacy"] = "one"  # of a serial norm: gain N(0, 0.02), as the released code has it
    dropout: float = 0.1  # inside projected attention, and on prefixes, while training

    def __post_init__(self) -> None:
        for name, least in (("start", 0), ("size", 0), ("heads", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(f"adapters: {name} is too small", got=value, allowed=f"{least} or more")
        if self.stop is not None and self.stop <= self.start:
            raise ConfigError("adapters: layers must run upward", got=f"[{self.start}, {self.stop})")
        if not 0 <= self.dropout < 1:
            raise ConfigError("adapters: dropout is a share", got=self.dropout, allowed="0 to below 1")
        self._check_size()
        given = {
            "tied": self.tied or False,
            "share = 'ends'": self.share == "ends",
            "serial": self.serial,
            "scaled": self.scaled,
            "gelu": self.gelu != "none",
        }
        if self.delta not in ADDED and any(given.values()):
            raise ConfigError(
                f"adapters: '{self.delta}' has no encoder and decoder that this would change",
                got=[name for name, said in given.items() if said],
                do="leave these out",
            )
        kind, unused = f"'{self.delta}'", dict[str, str]()
        if self.delta != "projected_attention":
            unused["heads"] = f"{kind} has no heads of its own"
        if self.delta not in ("projected_attention", "prefix"):
            unused["dropout"] = f"{kind} drops nothing"
        if self.delta in ("scale", "prefix"):
            unused["init"] = f"{kind} has no decoder"
        if not self.serial:
            unused["norm_init"] = "only a serial adapter has a norm"
        if self.delta != "lora":
            unused |= dict.fromkeys(("alpha", "targets"), "they are of 'lora'")
        check_unused("adapters: ", self, unused)
        if self.delta == "lora":
            if not (self.alpha > 0 and math.isfinite(self.alpha)):
                raise ConfigError("adapters: alpha must be positive", got=self.alpha)
            if not self.targets or len(set(self.targets)) < len(self.targets):
                raise ConfigError(
                    "adapters: targets are dense maps, each once", got=self.targets or "none", allowed="one or more"
                )

    def _check_size(self) -> None:
        if self.size is None:
            return
        wrong = {
            "scale": (self.size != 0, "0, or left out: 'scale' has none"),
            "feed_forward": (self.size < 1 or self.size % 2, "an even number, 2 or more"),
            "projected_attention": (
                self.size < 1 or self.size % self.heads,
                f"a multiple of heads = {self.heads}, such as {6 * self.heads}",
            ),
        }
        refused, allowed = wrong.get(self.delta, (self.size < 1, "1 or more"))
        if refused:
            raise ConfigError(
                f"adapters: '{self.delta}' cannot have this size",
                got=self.size,
                allowed=allowed,
                do="change size, or leave it out",
            )


class InLayer(Value, tag="in_layer", tag_field="kind"):
    """Strategy `in_layer` (projected attention layers, Stickland and Murray 2019): the trunk's layers, with adapters.

    Adapters of different kinds may sit in different ranges of layers.
    """

    adapters: tuple[Adapter, ...] = (Adapter(),)
    positions: Literal["first", "mean", "attention"] = "first"
    hidden: int | None = None  # width of the tanh pooler, 0 for none; None: the trunk's width
    pooler: Literal["private", "shared"] = "private"  # shared: one for all tasks with this strategy, as in the paper

    def __post_init__(self) -> None:
        spans = sorted((one.start, one.stop or math.inf) for one in self.adapters)
        if not spans or any(a[1] > b[0] for a, b in zip(spans, spans[1:], strict=False)):
            raise ConfigError(
                "strategy.adapters: one or more, each in layers of its own",
                got=[f"[{start}, {stop})" for start, stop in spans] or "none",
            )
        if self.hidden is not None and self.hidden < 0:
            raise ConfigError("strategy.hidden is too small", got=self.hidden, allowed="0 or more")
        if self.hidden == 0 and self.pooler == "shared":
            raise ConfigError("strategy.pooler 'shared' needs a hidden layer", got="hidden = 0")


class OnTop(Value, tag="on_top", tag_field="kind"):
    """Strategy `on_top` (Stickland and Murray 2019): layers of the task's own above the whole trunk.

    `attention`: projected attention, narrow layers between an encoder and a decoder. `feed_forward`: the same with the
    feed-forward half alone. `layer`: whole layers of the trunk's shape.
    """

    form: Literal["attention", "feed_forward", "layer"] = "attention"
    layers: int | None = None  # None: 6 of attention, else 1
    width: int | None = None  # of narrow layers; None: 204 of 768, in proportion to the trunk's width
    heads: int = 6
    feed_forward: int | None = None  # of that form; None: what weighs as much as attention, 408 or twice 252 of 204
    hidden_layers: int = 1  # of that form
    residual: bool = True  # False: nothing added and no norm
    positions: Literal["first", "mean", "attention"] = "first"
    hidden: int | None = None  # width of the tanh pooler, 0 for none; None: the trunk's width
    pooler: Literal["private", "shared"] = "private"
    norm_init: Literal["one", "legacy"] = "one"  # gains N(0, 0.02), as the released code has them by mistake
    dropout: float = 0.1  # inside the layers, while training

    def __post_init__(self) -> None:
        leasts = {"layers": 1, "width": 1, "heads": 1, "feed_forward": 1, "hidden_layers": 1, "hidden": 0}
        for name, least in leasts.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(f"strategy.{name} is too small", got=value, allowed=f"{least} or more")
        if not 0 <= self.dropout < 1:
            raise ConfigError("strategy.dropout is a share", got=self.dropout, allowed="0 to below 1")
        if self.hidden == 0 and self.pooler == "shared":
            raise ConfigError("strategy.pooler 'shared' needs a hidden layer", got="hidden = 0")
        unused = dict[str, str]()
        if self.form == "layer":
            unused["width"] = "whole layers are as wide as the trunk"
        if self.form != "attention":
            unused["heads"] = f"layers of form '{self.form}' have none of their own"
        if self.form != "feed_forward":
            unused |= dict.fromkeys(
                ("feed_forward", "hidden_layers"), f"it is of form 'feed_forward', not '{self.form}'"
            )
        if not self.residual:
            unused["norm_init"] = "layers without residual have no norm"
        check_unused("strategy.", self, unused)
        if self.form == "attention" and self.width is not None and self.width % self.heads:
            raise ConfigError(
                "strategy.width: narrow layers are as wide as a multiple of their heads",
                got=self.width,
                allowed=f"a multiple of heads = {self.heads}",
                do="change width or heads",
            )


Live = Prompted | InLayer | OnTop
"""Those that change what the trunk's layers read or compute: no kept state serves while they learn."""

Strategy = Pooled | Branch | Live
