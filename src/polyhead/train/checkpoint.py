"""The file that a training run goes on from."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from polyhead.errors import TrainError


def write_checkpoint(checkpoint: Path, state: dict[str, Any]) -> None:
    """Under a temporary name, then renamed; raises TrainError, and leaves no half of it, where the disk refuses."""
    temporary = checkpoint.with_name(checkpoint.name + ".tmp")
    try:
        checkpoint.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as out:
            torch.save(state, out)
            out.flush()
            os.fsync(out.fileno())
        temporary.replace(checkpoint)
    except (OSError, RuntimeError) as error:  # torch turns a failed write into the latter
        temporary.unlink(missing_ok=True)
        reason = error if isinstance(error, OSError) else error.__context__
        raise TrainError(
            f"cannot write the checkpoint {checkpoint}",
            got=reason.strerror if isinstance(reason, OSError) else error,
            do="free some disk space and run the same command again; finished tasks and epochs are kept",
        ) from None


def read_checkpoint(checkpoint: Path) -> dict[str, Any]:
    """The state; raises TrainError for a file that cannot be read."""
    try:
        state: dict[str, Any] = torch.load(checkpoint, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many types for a file it cannot read
        raise TrainError(
            f"the checkpoint {checkpoint} cannot be read",
            got=str(error).splitlines()[0],
            do="delete it; the task then starts anew, and finished tasks are kept",
        ) from None
    return state
