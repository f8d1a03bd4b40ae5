"""Polyhead as `one_pass.py` times it: all tasks of a bundle, or the trunk alone, asked as its rivals are.

The job names a `bundle`, a `backend`, a `precision` and whether to run the `trunk_alone`; see peers/protocol.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from peers.protocol import Job, serve

PACKAGES = ("polyhead", "numpy", "tokenizers")


def load(job: Job):
    return trunk_alone(job) if job["trunk_alone"] else all_tasks(job)


def all_tasks(job: Job):
    """Every task that reads one text about each text; those that compare two about each text and its neighbour.

    So every text is read by every task once: a pair read separately needs the features of both its texts.
    """
    from polyhead.engine.session import Session

    session = Session(job["bundle"], backend=job["backend"], precision=job["precision"])
    compares = any(task.pair == "separate" for task in session.tasks.values())

    def answer(texts: Sequence[str]):
        pairs = list(zip(texts[::2], texts[1::2], strict=False)) if compares else []
        return [result.answers for result in session.predict([*texts, *pairs])]

    return answer


def trunk_alone(job: Job):
    """The states after the last layer: padded batches of texts of like length, or one batch where few are given."""
    from polyhead.bundle.read import Bundle
    from polyhead.engine.rows import TOKEN_BUDGET
    from polyhead.text.batch import batches
    from polyhead.text.tokenise import Tokeniser

    trunk = Bundle.open(job["bundle"]).trunk()
    tokeniser, run = (
        Tokeniser(trunk.tokenizer, trunk.settings),
        TRUNKS[job["backend"]](trunk, job["precision"]),
    )

    def answer(texts: Sequence[str]):
        encoded = tokeniser.encode([(text,) for text in texts])
        return [run(batch) for batch in batches(encoded, token_budget=TOKEN_BUDGET, pad_id=tokeniser.pad_id)]

    return answer


def torch_trunk(trunk, precision: str) -> Callable[..., np.ndarray]:
    """The trunk in torch: from a padded batch to its last states."""
    import torch

    from polyhead.nn.trunk import Trunk

    module = Trunk.from_data(trunk, dtype=getattr(torch, precision)).eval()

    @torch.inference_mode()
    def run(batch) -> np.ndarray:
        ids, mask, segments = map(torch.from_numpy, (batch.ids, batch.mask, batch.segments))
        states = module.go_on(module.start(ids, mask, segments=segments), stop=trunk.architecture.layers)
        return states.last.float().numpy()

    return run


# Of each backend its graph without any task: a function of a padded batch, made for a trunk and a precision.
TRUNKS = {"torch": torch_trunk}


if __name__ == "__main__":
    serve(load, PACKAGES)
