"""Joint training of trunk and parts: the order of tasks, the weights of their losses, and smoothing."""

from __future__ import annotations

import math
from typing import Literal

from polyhead.errors import ConfigError
from polyhead.project.numbers import check_least, check_positive, check_shares
from polyhead.tasks.kinds import KINDS
from polyhead.values import Value, check_unused

SamplingKind = Literal["size", "annealed", "round_robin", "all", "shuffled", "schedule"]
Scheme = Literal["heterogeneous", "batch", "dataset"]
Parallel = Literal["ddp", "fsdp"]


class Sampling(Value):
    """The task of each micro-batch: `p_i ∝ min(N_i, cap)^exponent`, N_i the tasks' numbers of examples.

    `size`: exponent 1 is proportional, 0.5 the square root, 0 uniform. `annealed`: the exponent falls in equal steps
    per epoch from `exponent` to `end` (Stickland and Murray 2019). `round_robin`: the tasks in turn. `all`: every
    update holds one micro-batch of each task (Du et al. 2020). `shuffled`: each pass takes every task's batches once,
    in random order (Liu et al. 2019). `schedule`: the shares are given for each epoch.
    """

    kind: SamplingKind = "size"
    exponent: float = 1.0
    end: float = 0.2  # `annealed`: the exponent of the last epoch
    cap: int | None = None  # maximum examples of a task that count; None: all
    schedule: tuple[dict[str, float], ...] = ()  # `schedule`: tasks' shares, by epoch; the last ones remain

    def __post_init__(self) -> None:
        check_least("sampling.", self, {"exponent": 0, "end": 0, "cap": 1})
        readers = {"exponent": ("size", "annealed"), "end": ("annealed",)}
        why = f"kind '{self.kind}' does not read it"
        check_unused("sampling.", self, {name: why for name, kinds in readers.items() if self.kind not in kinds})
        if (self.kind == "schedule") != bool(self.schedule):
            raise ConfigError("sampling.kind 'schedule' and sampling.schedule belong together", got=self.kind)
        for shares in self.schedule:
            bad = [share for share in shares.values() if not (math.isfinite(share) and share >= 0)]
            if bad or not any(shares.values()):
                raise ConfigError(
                    "an epoch of sampling.schedule has wrong shares", got=shares, allowed="0 or more, not all 0"
                )


class Weighting(Value):
    """The factor of a micro-batch's loss.

    `size`: `N_i^exponent / sum_j N_j^exponent` (Du et al. 2020, with the exponent as their text means it; `literal`
    uses it as printed, 1 / exponent). These sum to 1 over the tasks. `fixed`: as given, 1 for others. `uncertainty`: a
    learned variance per task (Kendall et al. 2018). `scaled` divides each example's loss by ln n(x), n the number of
    possible outcomes for x (Aghajanyan et al. 2021).
    """

    kind: Literal["none", "size", "fixed", "uncertainty"] = "none"
    exponent: float = 0.1
    literal: bool = False
    fixed: dict[str, float] = {}
    scaled: bool = True

    def __post_init__(self) -> None:
        if not (self.exponent >= 0 and math.isfinite(self.exponent)) or (self.literal and not self.exponent):
            raise ConfigError("weighting.exponent is wrong", got=self.exponent, allowed="0 or more, above 0 if literal")
        if self.kind != "size":
            why = f"kind '{self.kind}' does not read it"
            check_unused("weighting.", self, dict.fromkeys(("exponent", "literal"), why))
        if (self.kind == "fixed") != bool(self.fixed):
            raise ConfigError("weighting.kind 'fixed' and weighting.fixed belong together", got=self.kind)
        bad = {name: weight for name, weight in self.fixed.items() if not (math.isfinite(weight) and weight >= 0)}
        if bad:
            raise ConfigError("weighting.fixed has wrong weights", got=bad, allowed="0 or more")


class Smoothing(Value):
    """R3F and R4F (Aghajanyan et al. 2020): symmetric KL between the answers to a text and to its noisy word vectors.

    `L + weight * [KL(f(x) || f(x + z)) + KL(f(x + z) || f(x))]`, z uniform in [-size, size] or normal with that
    deviation, added to the word vectors before positions and layer norm. Regressions have no such term. Choices that
    the paper's code makes without mention are options here.
    """

    weight: float = 1.0  # lambda
    size: float = 1e-5  # epsilon
    noise: Literal["uniform", "normal"] = "uniform"
    spectral: bool = False  # R4F: divide the output layer's matrix by its largest singular value
    detached: bool = True  # no gradient flows from the noisy pass to the word vectors
    dropout: bool = True  # both passes use dropout, each with its own mask
    both: bool = True  # the gradient flows through both answers, not only through the noisy one
    scaled: bool = True  # the term is divided by ln n(x) too, if losses are

    def __post_init__(self) -> None:
        check_least("smoothing.", self, {"weight": 0, "size": 0})


class Joint(Value, tag="joint", tag_field="kind"):
    """Trunk and parts train together; an update averages the gradients of `micro_batches` single-task batches.

    `heterogeneous`: each micro-batch's task is drawn independently (Aghajanyan et al. 2021). `batch`: one draw per
    update. `dataset`: all updates of one task, then all of the next. The numbers of training are `[training]`'s:
    `epochs`, each of `steps` updates, `batch` examples per micro-batch, patience on the mean of the tasks' validation
    scores. With `head_epochs` training begins as linear probing, then fine-tuning (Kumar et al. 2022). With `tokens` a
    micro-batch of long texts holds fewer examples, so that a pass has more and smaller ones; a single longer text is a
    micro-batch of its own.

    The saved trunk is `blend` times the learned weights plus the rest of the initial ones (WiSE-FT, Wortsman et al.
    2022, eq. 1), which keeps some earlier abilities. The heads fit only the learned trunk, so this requires `strip`,
    and validation scores are the learned trunk's.
    """

    heads: Literal["keep", "strip"] = "keep"  # strip: the bundle holds only the learned trunk
    # shared: one head for all
    families: tuple[str, ...] = tuple(name for name, kind in KINDS.items() if kind.shares_head)
    sampling: Sampling = Sampling()
    weighting: Weighting = Weighting()
    scheme: Scheme = "heterogeneous"
    micro_batches: int = 4  # over all devices
    tokens: int | None = None  # maximum in a micro-batch, padding included; None: only `batch` limits it
    steps: int | None = None  # updates per epoch; None: enough to read every task's examples once
    layer_dropout: float = 0.1  # inside the trunk, while it is trained
    head_rate: float = 1.0  # learning rate of parts relative to that of the trunk
    # before: parts are trained alone over the frozen trunk, so that random heads do not distort it
    head_epochs: int = 0
    head_learning_rate: float = 1e-3  # of those epochs
    blend: float = 1.0  # share of the learned weights in the saved trunk
    smoothing: Smoothing | None = None
    validation_rows: int | None = None  # of each task, read after every epoch; None: all
    checkpointing: bool = False  # recompute layers in the backward pass: less memory, a third more time
    parallel: Parallel = "ddp"  # on several devices: full copies on each, or (fsdp) a slice

    def __post_init__(self) -> None:
        for name in self.families:
            if not KINDS.named(name).shares_head:
                raise ConfigError(
                    f"recipe.families: tasks of kind '{name}' have heads of different widths",
                    got=list(self.families),
                    allowed=[kind.name for kind in KINDS.values() if kind.shares_head],
                )
        check_least("recipe.", self, dict.fromkeys(("micro_batches", "tokens", "steps", "validation_rows"), 1))
        check_least("recipe.", self, {"head_epochs": 0})
        check_shares("recipe.", self, "layer_dropout")
        check_positive("recipe.", self, "head_rate", "head_learning_rate")
        if not 0 < self.blend <= 1:
            raise ConfigError("recipe.blend is a share", got=self.blend, allowed="above 0 to 1")
        if self.blend < 1 and self.heads == "keep":
            raise ConfigError(
                "recipe.blend makes a trunk that the heads did not learn over",
                got=self.blend,
                do="set heads to 'strip', or leave blend out",
            )
        if self.sampling.kind == "all" and self.scheme != "heterogeneous":
            raise ConfigError(
                "sampling 'all' reads every task in each update", got=self.scheme, allowed="heterogeneous"
            )


class TrunkOnly(Joint, tag="joint", tag_field="kind"):
    """Trunk and parts train together, and only the trunk is kept."""

    heads: Literal["strip"] = "strip"


ONE_TASK = Joint(families=(), micro_batches=1)
"""One task a step, heads of their own: fine-tuning of one task, prompts and adapters over a frozen trunk."""
