"""Texts that a trained model writes, by the rules of their task."""

from __future__ import annotations

import msgspec
import numpy as np
import torch

from polyhead.deep.examples import TextExamples, module_outputs
from polyhead.deep.model import TextBatch
from polyhead.deep.nn.decoder import TorchSteps
from polyhead.deep.recipes.joint_model import JointModel
from polyhead.engine.generate.search import write
from polyhead.tasks.task import Task
from polyhead.text.tokenizer_file import open_tokenizer

AT_ONCE, TOKENS = 32, 4096  # texts written side by side, and tokens of theirs, padding included


@torch.inference_mode()
def task_outputs(module: JointModel, task: Task, examples: TextExamples, tokenizer: bytes) -> list[np.ndarray]:
    """The module's outputs for every example, in order; of a task that writes, arrays of one string."""
    rules = task.generation
    if rules is msgspec.UNSET:
        return module_outputs(module.bound(task.name), examples)
    decoder, known = module.model.parts[task.name].decoder, open_tokenizer(tokenizer)
    assert decoder is not None
    steps = TorchSteps(decoder, module.words.float())
    texts: list[np.ndarray | None] = [None] * examples.count
    for piece in examples.in_order(max(1, AT_ONCE // rules.beams), tokens=TOKENS):
        (batch,) = piece.arguments
        assert isinstance(batch, TextBatch)
        states, mask = module.states(task.name, batch)
        for member, written in zip(piece.members, write(steps, states, mask, rules), strict=True):
            assert written is not None
            if written.error is not None:
                raise written.error
            text = known.decode(written.ids.tolist(), skip_special_tokens=True)
            texts[member] = np.array(text.strip(), np.str_)
    return [text for text in texts if text is not None]
