"""The encoders that have a short name, each with its place on the hub, and what choosing it costs and brings."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from polyhead.encoder.data import TextSettings
from polyhead.encoder.shape import Architecture, Relative
from polyhead.plan import TRUNK, Embed, Path, merge, shared_layers
from polyhead.plan.cost import flops
from polyhead.text.question import TaskInput, texts_of
from polyhead.text.script_coverage import unread_texts
from polyhead.text.tokenize import Tokenizer
from polyhead.values import Value

MINILM = "minilm"
LARGER = "mpnet"
OTHER_LANGUAGES = "multilingual"
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9]|-)[\w.-]*")  # oldest have no owner, and a hyphen: roberta-base
TOKENS = 32  # of the text whose work is compared
MAX_TOKENS = 512  # of a text whose letters are looked at
SAMPLE, TELLING = 200, 0.1  # inputs of a task that are looked at, and the share of their texts that is worth a word


class NamedEncoder(Value):
    """An encoder with a short name."""

    name: str
    hub: str
    shape: Architecture
    languages: str
    about: str  # beside minilm
    sha256: str | None = None  # of model.safetensors; None: whatever the hub has

    @property
    def work(self) -> float:
        """FLOPs of its layers on a text of TOKENS tokens, over those of minilm."""
        return _flops(self.shape) / _flops(ENCODERS[MINILM].shape)

    @property
    def line(self) -> str:
        """What choosing it costs and brings."""
        return f"{self.name} ({self.languages}): {self.about}, at {self.work:.0f} times the work for each text"


ENCODERS = {
    encoder.name: encoder
    for encoder in (
        NamedEncoder(
            name=MINILM,
            hub="sentence-transformers/all-MiniLM-L6-v2",
            shape=Architecture(layers=6, width=384, heads=12, feed_forward=1536, vocabulary=30522),
            languages="English",
            about="the default",
            sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        ),
        NamedEncoder(
            name=LARGER,
            hub="sentence-transformers/all-mpnet-base-v2",
            shape=Architecture(
                layers=12,
                width=768,
                heads=12,
                feed_forward=3072,
                vocabulary=30527,
                family="mpnet",
                positions=514,
                segments=0,
                first_position=2,
                norm_epsilon=1e-5,
                relative=Relative(kind="bias", buckets=32, distance=128),
            ),
            languages="English",
            about="about 4 points better at 8 rows a label (mean of ten sets, three draws)",
            sha256="78c0197b6159d92658e319bc1d72e4c73a9a03dd03815e70e555c5ef05615658",
        ),
        NamedEncoder(
            name=OTHER_LANGUAGES,
            hub="sentence-transformers/paraphrase-multilingual-MiniLM-L12-v2",
            shape=Architecture(layers=12, width=384, heads=12, feed_forward=1536, vocabulary=250037),
            languages="50 languages",
            about="never tried here",
        ),
    )
}
"""By name."""
NAMES = f"one of {', '.join(ENCODERS)}"


def unread_line(inputs: Mapping[str, Sequence[TaskInput]], tokenizer: bytes, encoder: str) -> str | None:
    """A line about the tasks with many texts in scripts that the encoder hardly knows; None if there are none."""
    opened, unread = None, list[str]()
    for task, rows in inputs.items():
        texts = [text for row in rows[:: max(1, -(-len(rows) // SAMPLE))] for text in texts_of(row)]
        if all(map(str.isascii, texts)):
            continue
        opened = opened or Tokenizer(tokenizer, TextSettings(max_tokens=MAX_TOKENS))
        share = len(unread_texts(texts, opened)) / len(texts)
        unread += [f"{share:.0%} of the texts of {task}"] if share >= TELLING else []
    if not unread:
        return None
    other = f", such as '{OTHER_LANGUAGES}'" if encoder != OTHER_LANGUAGES else ""
    return (
        f"{' and '.join(unread)} are in a script that the encoder '{encoder}' hardly knows: it gets unknown or single "
        f"letters of them, and can learn little; name one that reads them{other}"
    )


def _flops(shape: Architecture) -> int:
    path = Path(nodes=(Embed(trunk=TRUNK), *shared_layers(shape.layers)))
    return flops(merge({"": path}), shape, TOKENS)
