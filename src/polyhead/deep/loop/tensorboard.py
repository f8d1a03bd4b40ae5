"""Training events in TensorBoard's format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from polyhead.errors import MissingExtra
from polyhead.train.events import Listener


def tensorboard(folder: Path) -> Listener:
    """Writes events `training` and `epoch` for TensorBoard; raises MissingExtra without its package."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise MissingExtra("tensorboard", "tensorboard", "writing for TensorBoard") from None
    writers: dict[str, SummaryWriter] = {}

    def write(name: str, facts: Mapping[str, object]) -> None:
        if name in ("training", "epoch"):
            run = str(facts.get("run", ""))
            writer = writers[run] = writers.get(run) or SummaryWriter(str(folder / run))
            for tag, value in _numbers("", {n: fact for n, fact in facts.items() if n != "step"}):
                writer.add_scalar(tag, value, facts["step"])
            writer.flush()

    return write


def _numbers(prefix: str, facts: Mapping[str, object]) -> Iterator[tuple[str, float]]:
    """Numbers with the path to them: `loss/mood`, `validation/mood/accuracy`."""
    for name, fact in facts.items():
        if isinstance(fact, Mapping):
            yield from _numbers(f"{prefix}{name}/", fact)
        elif isinstance(fact, (int, float)):
            yield f"{prefix}{name}", float(fact)
