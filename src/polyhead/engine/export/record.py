"""export.json: what each file of an export reads and gives, and how that was checked."""

from __future__ import annotations

from typing import Literal

from polyhead.config import Value
from polyhead.engine.inputs import InputType
from polyhead.tasks.task import Task

FORMAT = 1
RECORD, README, TOKENIZER, TRUNK = "export.json", "README.md", "tokenizer.json", "trunk.onnx"


class Array(Value):
    """An input or output; a size that each run chooses has a name."""

    type: Literal["int64", "float32"]
    shape: tuple[int | str, ...]


class ModelFile(Value):
    """One ONNX model."""

    file: str
    inputs: dict[str, Array]
    outputs: dict[str, Array]
    digests: dict[str, str]  # SHA-256 of the file, and of the one beside it that holds its arrays, where there is one


class TaskFiles(Value):
    """How one task is answered: its model is run on what it reads of the trunk's outputs and of the text."""

    task: Task
    reads: InputType  # text: one; pair: two as one input; question: a pair for each option
    version: str  # in the bundle
    arrays: str  # digest of the arrays that the task owns
    max_tokens: int  # of a text or pair that it reads, special tokens included
    model: ModelFile
    compare: ModelFile | None = None  # of a pair read separately: features of both texts to the answer
    largest_difference: float = 0.0  # of a logit from the session's
    probes: int = 0  # inputs that were compared


class TokenizerFile(Value):
    """How a text becomes ids."""

    file: str
    sha256: str
    max_tokens: int
    pad_id: int


class Export(Value):
    """All of an export."""

    format: int
    polyhead: str
    trunk_digest: str
    opset: int
    tokenizer: TokenizerFile
    trunk: ModelFile | None  # None where no task reads the plain text's states
    tasks: dict[str, TaskFiles]
    left_out: dict[str, str]  # tasks that cannot be exported, and why
    checked_with: dict[str, str]
    tolerance: float
