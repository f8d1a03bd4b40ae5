"""What a training run goes on from: a module's weights, where draws stand, and the file that keeps them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from polyhead.errors import TrainError
from polyhead.files import opened_folder, remove_leftovers, replacing

if TYPE_CHECKING:
    from polyhead.train.loop.devices import Place


def learned_state(module: nn.Module) -> dict[str, Tensor]:
    """The module's state without parameters that do not learn, such as a frozen trunk's."""
    frozen = {name for name, p in module.named_parameters(remove_duplicate=False) if not p.requires_grad}
    return {name: value for name, value in module.state_dict().items() if name not in frozen}


def restore(module: nn.Module, state: dict[str, Tensor]) -> None:
    """The inverse of `learned_state`; what does not learn stays as it is."""
    module.load_state_dict({**module.state_dict(), **state})


def copied(module: nn.Module) -> dict[str, Tensor]:
    """What learned, as it is now."""
    return {name: value.detach().clone() for name, value in learned_state(module).items()}


def generator_state(device: str) -> Tensor:
    """The state of the generator that dropout draws from on this device."""
    if torch.device(device).type == "cuda":
        return torch.cuda.get_rng_state(device)
    return torch.get_rng_state()


def draw_on(states: Sequence[Tensor], place: Place) -> None:
    """Draws go on from this process's state; nothing where the states are those of another number of processes."""
    if len(states) == place.world:
        if torch.device(place.device).type == "cuda":
            torch.cuda.set_rng_state(states[place.rank], place.device)
        else:
            torch.set_rng_state(states[place.rank])


def write_checkpoint(checkpoint: Path, state: dict[str, Any]) -> None:
    """Whole or not at all; raises TrainError, and leaves no half of it, where the disk refuses."""
    try:
        checkpoint.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(checkpoint.parent, of=checkpoint.name)  # another run may write the same: not of that
        with replacing(checkpoint) as out:
            torch.save(state, out)
    except (OSError, RuntimeError) as error:  # torch turns a failed write into the latter
        reason = error if isinstance(error, OSError) else error.__context__
        raise TrainError(
            f"cannot write the checkpoint {checkpoint}",
            got=reason.strerror if isinstance(reason, OSError) else error,
            do="free some disk space and run the same command again; finished tasks and epochs are kept",
        ) from None


def cache_folder(cache: Path, *names: str) -> Path:
    """A folder of the cache; raises TrainError where it, or one on the way to it, is a link that leads elsewhere."""
    folder = cache.joinpath(*names)
    try:
        with opened_folder(folder, root=cache):
            pass
    except FileNotFoundError:
        pass
    except OSError as error:
        raise TrainError(
            f"nothing can be kept in {folder}",
            got=f"{error.filename}: {error.strerror}",
            allowed="folders, below the cache without links",
            do="remove it, or name another --cache",
        ) from None
    return folder


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
