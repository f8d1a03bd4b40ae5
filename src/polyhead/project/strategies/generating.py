"""The strategy of a task that writes texts: the layers of another strategy, read by a decoder at every position."""

from __future__ import annotations

from typing import ClassVar

from polyhead.encoder.decoder import Decoder
from polyhead.encoder.shape import Architecture
from polyhead.errors import ConfigError
from polyhead.plan import Codec, Head, Path, Pool
from polyhead.project.generation import DecoderChoice
from polyhead.project.recipes import Training
from polyhead.project.strategies.base import LIVE, LiveStrategy, Owners, Strategy
from polyhead.tasks.task import Task
from polyhead.values import Value

WRITING = Training(epochs=3, patience=3, batch=8, learning_rate=3e-5, warmup=0.025, clip=0.1)
"""Where nothing is said, a checkpoint's decoder is trained as BART was on summaries (Lewis et al. 2020), in smaller
batches."""

WRITING_FROM_RANDOM = Training(epochs=20, patience=5, batch=16, learning_rate=3e-4, warmup=0.06)
"""Where nothing is said, a decoder that starts at random."""


class Generating(LiveStrategy, Value, tag="generating", tag_field="kind"):
    """What `strategy_of` makes of a strategy for a task whose kind generates; no project file names it.

    The layers are those of the strategy `under` it; what that says of poolers and heads is not read.
    """

    under: Strategy
    choice: DecoderChoice = DecoderChoice()
    decoder: Decoder | None = None  # None: until the trunk is read
    start: str = ""  # digest of the arrays that the decoder starts from; '': random ones

    reaches_inside: ClassVar[bool] = True  # logits are products with the trunk's word vectors
    default_training: ClassVar[Training] = WRITING

    def path(self, task: Task, *, trunk: str, shape: Architecture, group: Owners = (), codec: Codec = LIVE) -> Path:
        """`Embed, Layers..., Pool(all), Head(decoder)`."""
        if self.under.isolated or self.under.donor_arrays():
            raise ConfigError(
                f"task '{task.name}' writes from the states of the text, which no isolated prompt changes, and for "
                "which there are no donors",
                got=f"strategy '{self.under.kind}', isolated or with donors",
                do="set isolated = false and leave init and pooler_init out, or give the task another strategy",
            )
        if self.decoder is None:
            raise ConfigError(f"task '{task.name}': its decoder is known when the trunk is read")
        path = self.under.path(task, trunk=trunk, shape=shape, group=group, codec=LIVE)
        head = Head(kind=task.kind, width=shape.vocabulary, part=path.head.part, decoder=self.decoder)
        return Path(nodes=(*path.nodes[:-2], Pool(positions="all"), head))

    @property
    def is_undecided(self) -> bool:
        """As the strategy under it."""
        return self.under.is_undecided

    @property
    def prompt_group(self) -> str | None:
        """As the strategy under it."""
        return self.under.prompt_group

    def bonds(self) -> frozenset[str]:
        """As the strategy under it."""
        return self.under.bonds()
