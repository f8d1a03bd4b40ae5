"""Texts that a trained model writes, by the rules of their task."""

from __future__ import annotations

import msgspec
import numpy as np
import torch
from torch import Tensor

from polyhead.deep.examples import TextExamples, module_outputs
from polyhead.deep.model import TextBatch
from polyhead.deep.nn.decoder import TextDecoder, Written
from polyhead.deep.recipes.together import JointModel
from polyhead.tasks.generation import GenerationRules
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
        for member, ids in zip(piece.members, _written(steps, states, mask, rules), strict=True):
            texts[member] = np.array(known.decode(ids, skip_special_tokens=True).strip(), np.str_)
    return [text for text in texts if text is not None]


def _written(steps: TorchSteps, states: Tensor, mask: Tensor, rules: GenerationRules) -> list[list[int]]:
    """Greedily."""
    written, rows = steps.begin(states, mask), len(states)
    last, over = np.full(rows, rules.start), np.zeros(rows, bool)
    texts: list[list[int]] = [[] for _ in range(rows)]
    for _ in range(rules.tokens):
        logits = steps.step(last, written, np.arange(rows))
        last = np.where(over, rules.pad, logits.argmax(axis=1))
        for row in np.flatnonzero(~over):
            texts[row].append(int(last[row]))
        over |= np.isin(last, rules.ends)
        if over.all():
            break
    return texts


class TorchSteps:
    """A decoder in float32 as steps of a search."""

    def __init__(self, decoder: TextDecoder, words: Tensor) -> None:
        self._decoder, self._words = decoder, words

    def begin(self, states: Tensor, mask: Tensor) -> Written:
        """The beginning of texts over these states, (rows, tokens, width)."""
        return self._decoder.begin(states.float(), mask)

    def step(self, ids: np.ndarray, written: Written, rows: np.ndarray) -> np.ndarray:
        """Logits (rows, vocabulary) after `ids` of texts that go on with these rows."""
        if len(rows) != len(written.seen) or (rows != np.arange(len(rows))).any():
            written.take(torch.from_numpy(rows))
        logits = self._decoder.step(torch.from_numpy(ids).to(self._words.device), written, self._words)
        return logits.cpu().numpy()
