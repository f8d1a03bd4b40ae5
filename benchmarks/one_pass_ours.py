"""Polyhead as `one_pass.py` times it: all tasks of a bundle, or the trunk alone, asked as its rivals are.

The job names a `bundle`, a `backend`, a `precision` and whether to run the `trunk_alone`; see peers/protocol.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from peers.protocol import Answer, Job, serve

if TYPE_CHECKING:
    from polyhead.bundle.read import Bundle
    from polyhead.engine.answers import AnswerColumn
    from polyhead.engine.inputs import Inputs
    from polyhead.text.batch import PaddedBatch
    from polyhead.text.tokenize import Input

PACKAGES = ("polyhead", "numpy", "tokenizers")


def load(job: Job) -> Answer:
    return trunk_alone(job) if job["trunk_alone"] else all_tasks(job)


def all_tasks(job: Job) -> Answer:
    """Every task about every text: probabilities or values, of words each label's output.

    A task over pairs compares each text with the one before it, the first with itself. All is asked in one call, each
    pair after its text.
    """
    from polyhead.engine.session import Session

    session = Session(job["bundle"], backend=job["backend"], precision=job["precision"])
    compares = any(task.pair == "separate" for task in session.tasks.values())

    def answer(texts: Sequence[str]) -> list[object]:
        inputs: Inputs = with_pairs(texts) if compares else texts
        return [numbers(column) for column in session.columns(inputs).tasks.values()]

    return answer


def with_pairs(texts: Sequence[str]) -> list[Input]:
    """Each text, and after it the pair of it and the text before."""
    before = [*texts[:1], *texts[:-1]]
    read: list[list[Input]] = [[(text,), (text, other)] for text, other in zip(texts, before, strict=True)]
    return [texts_read for several in read for texts_read in several]


def numbers(column: AnswerColumn) -> object:
    """All that a column's answers rest on."""
    for values in (column.scores, column.value):
        if values is not None:
            return values[column.rows]
    return list(column.outputs)


def trunk_alone(job: Job) -> Answer:
    """The trunk over padded batches of texts of like length, cut and tokenized ahead as for tasks.

    The first position's state is what is taken of each text.
    """
    from polyhead.bundle.read import Bundle
    from polyhead.engine.batch import TOKEN_BUDGET, ahead, tokenizer_ranges
    from polyhead.text.batch import cuts, pad_cut
    from polyhead.text.tokenize import Tokenizer

    bundle = Bundle.open(job["bundle"])
    trunk = bundle.trunk()
    tokenizer = Tokenizer(trunk.tokenizer, trunk.settings)
    make = torch_trunk if job["backend"] in ("torch", "torch-cuda") else graph_trunk
    run = make(bundle, job["backend"], job["precision"])

    def answer(texts: Sequence[str]) -> list[np.ndarray]:
        inputs: list[Input] = [(text,) for text in texts]
        states = []
        for piece in ahead(lambda span: tokenizer.encodings(inputs[slice(*span)]), list(tokenizer_ranges(inputs))):
            for cut in cuts(piece.lengths, token_budget=TOKEN_BUDGET):
                states.append(run(pad_cut(piece, cut, pad_id=tokenizer.pad_id)))
        return states

    return answer


def graph_trunk(bundle: Bundle, backend: str, precision: str) -> Callable[..., np.ndarray]:
    """The same graph as with tasks, without any: from a padded batch to the first positions' last states."""
    from polyhead.engine.backends import open_runtime
    from polyhead.engine.backends.base import TokenBatch
    from polyhead.engine.compile.encoder import LayerSpan, span_graph
    from polyhead.engine.compile.layout import RowLayout, Shape
    from polyhead.engine.scale_files import scales_for
    from polyhead.plan import TRUNK, Layers

    trunk = bundle.trunk()
    shape = trunk.architecture
    scales = scales_for(bundle, backend) if precision == "int8" else None
    node = Layers(start=0, stop=shape.layers, weights=TRUNK)
    span = LayerSpan(nodes=(node,), inputs=(), keep=(shape.layers,), begins=True)
    runtime = open_runtime(backend, precision=precision, scales=scales)
    graph = runtime.compile(span_graph(span, shape, {TRUNK: trunk.arrays}), label="trunk", layers=True)
    padded, alone = (
        Shape(
            first_position=shape.first_position,
            segments=shape.segments,
            width=shape.width,
            pack=pack,
            relative=shape.relative,
            window=shape.window,
            heads=shape.key_heads or shape.heads,
        )
        for pack in (False, True)
    )
    inputs = ["ids", "added", *span.reads(shape), *(["positions"] if shape.position_table else [])]
    inputs += ["segments"] if shape.segments else []

    def run(batch: PaddedBatch) -> np.ndarray:
        words = np.full((len(batch.ids), 1), -1)
        tokens = TokenBatch(ids=batch.ids, mask=batch.mask, segments=batch.segments, words=words)
        layout = RowLayout(tokens, alone if len(batch.ids) == 1 else padded)
        (states,) = graph({name: getattr(layout, name) for name in inputs}).values()
        return states[:, 0].copy()

    return run


def torch_trunk(bundle: Bundle, backend: str, precision: str) -> Callable[..., np.ndarray]:
    """The trunk in torch, on the processor or on CUDA: from a padded batch to the first positions' last states."""
    import torch

    from polyhead.deep.nn.trunk import Trunk

    trunk = bundle.trunk()
    device = "cuda" if backend == "torch-cuda" else "cpu"
    module = Trunk.from_data(trunk, dtype=getattr(torch, precision)).eval().to(device)

    @torch.inference_mode()
    def run(batch: PaddedBatch) -> np.ndarray:
        arrays = (batch.ids, batch.mask, batch.segments)
        ids, mask, segments = (torch.from_numpy(array).to(device) for array in arrays)
        states = module.go_on(module.start(ids, mask, segments=segments), stop=trunk.architecture.layers)
        return states.last[:, 0].float().cpu().numpy()

    return run


if __name__ == "__main__":
    serve(load, PACKAGES)
