"""The mean vector of a text, from the same pass as its answers: a hidden task of a session."""

from __future__ import annotations

import secrets

import numpy as np

from polyhead.bundle.manifest import TaskRecord
from polyhead.codecs import EXACT
from polyhead.engine.session import Session
from polyhead.plan import Codec, Embed, Head, Layers, Path, Pool
from polyhead.tasks.kinds import KINDS
from polyhead.tasks.task import Task, owner_of


def vector_path(trunk: str, depth: int, *, codec: str = EXACT) -> Path:
    """The path of the mean of a trunk's last states, without a head; `codec` is how it is kept."""
    pool = Pool(positions="mean", codec=Codec(name=codec))
    return Path(nodes=(Embed(trunk=trunk), Layers(start=0, stop=depth), pool))


def attach_vectors(session: Session) -> str:
    """Adds a hidden task whose output is the mean of the trunk's last states, float32 (width,); returns its name.

    Its head is the identity, so that nothing but the engine's usual path computes it. The mean is over all tokens of
    the text, special tokens included, as sentence-transformers pools; it is not normalized.
    """
    width, depth = session.shape.width, session.shape.layers
    # Any kind with an output a label serves: only raw outputs of hidden tasks are read.
    kind = next(each.name for each in KINDS.values() if each.scores == "sigmoid" and "labels" in each.uses)
    labels = tuple(str(number) for number in range(width))
    task = Task(name=f"vector-{secrets.token_hex(8)}", kind=kind, labels=labels)
    owner = owner_of(task)
    vector = vector_path(session.bundle.digest, depth)
    path = Path(nodes=(*vector.nodes, Head(kind=task.kind, width=width, part=owner)))
    arrays = {"head.output.weight": np.eye(width, dtype=np.float32), "head.output.bias": np.zeros(width, np.float32)}
    session.attach(TaskRecord(task=task, path=path, trunk=session.bundle.digest), arrays, hidden=True)
    return task.name
