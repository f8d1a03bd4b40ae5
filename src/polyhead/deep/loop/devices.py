"""Devices of a training run: one process, or several with one device each that share the work and stay in step.

Every process iterates over the whole mixture, computes its share of each update's micro-batches and averages the
gradients with the others; the update equals that of a single process, up to the order of sums. Parameters that no
process gave a gradient keep none: no decay, no momentum.
"""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import torch
from torch import Tensor, distributed, nn

from polyhead.deep.loop.optimizer import EmbeddingTables, keep_freed
from polyhead.errors import ConfigError, TrainError
from polyhead.train.runs import ProcessRank, rank_in

if TYPE_CHECKING:
    from polyhead.deep.loop.feed import TrainingBatch

TIMEOUT = timedelta(hours=6)  # the first process scores and writes the bundle while the others wait

Copied = TypeVar("Copied")
Payload = TypeVar("Payload")


def place_in(environment: Mapping[str, str], device: str = "auto") -> ProcessRank:
    """The process rank from torchrun's RANK, WORLD_SIZE and LOCAL_RANK; without them the only process.

    `auto` is a CUDA device if there is one, a separate one for each local process, else the processor.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("there is no CUDA device here", got=device, allowed="cpu, auto")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return rank_in(environment, device)


@contextmanager
def process_group(place: ProcessRank) -> Iterator[None]:
    """A context in which the process belongs to its group: gloo between processors, nccl between CUDA devices.

    Its threads end with it. Threads that remain when the interpreter ends may abort the process, and torchrun would
    report a finished training as failed (pytorch issue 190489).
    """
    if place.world == 1 or distributed.is_initialized():
        yield
        return
    on_cuda = torch.device(place.device).type == "cuda"
    if on_cuda:
        torch.cuda.set_device(place.device)
    # DistributedDataParallel imports it, and modules imported while a group exists keep it as a default forever.
    import_module("torch.distributed.nn.functional")
    distributed.init_process_group(
        "cpu:gloo,cuda:nccl" if on_cuda else "gloo",
        init_method=place.meeting,
        rank=place.rank,
        world_size=place.world,
        timeout=TIMEOUT,
    )
    try:
        yield
    finally:
        distributed.destroy_process_group()
        gc.collect()  # the trained objects refer to themselves, and to the group


def gathered(place: ProcessRank, value: Payload) -> list[Payload]:
    """Every process's value, by rank."""
    if place.world == 1:
        return [value]
    values: list[Any] = [None] * place.world
    distributed.all_gather_object(values, value)
    return values


def from_first(place: ProcessRank, value: Payload) -> Payload:
    """The first process's value, in all processes."""
    return gathered(place, value if place.is_first else None)[0]  # type: ignore[return-value]


class Devices:
    """The base, for one process and device. `loss` computes a micro-batch's loss with the trained `module`."""

    def __init__(self, module: nn.Module, loss: Callable[[str, Any], Tensor], place: ProcessRank | None = None) -> None:
        self.place = place or ProcessRank()
        self.module = module.to(self.place.device)
        self._loss = loss
        keep_freed()
        adds_rows = self.place.world == 1 and self.place.device == "cpu"  # elsewhere it is reduced, or costs little
        self._tables = EmbeddingTables(self.module if adds_rows else nn.Module())

    def learn(self, update: Sequence[tuple[str, TrainingBatch | None]]) -> tuple[tuple[float, ...], int]:
        """Adds the mean of the micro-batches' gradients to those of the parameters.

        Returns their losses, each divided by their number, and the number of tokens. A micro-batch without its batch is
        another process's.
        """
        world, tasks = self.place.world, frozenset(task for task, _ in update)
        local = [index for index, (_, batch) in enumerate(update) if batch is not None]
        lost, tokens = torch.zeros(len(update), dtype=torch.float64), 0
        values = []
        with self._tables.learning():
            for index in local:
                task, batch = update[index]
                assert batch is not None
                tokens += batch.tokens
                is_last = index == local[-1]
                with self._passing(is_last):
                    value = self._computed(task, on(batch, self.place.device), tasks if is_last else ())
                    value = value / len(update)
                    (value * world).backward()  # type: ignore[no-untyped-call]  # processes' gradients are averaged
                values.append(value.detach())
        lost[local] = torch.stack(values).double().cpu()
        if world > 1:
            sums = torch.cat([lost, torch.tensor([tokens], dtype=torch.float64)])
            distributed.all_reduce(sums)
            lost, tokens = sums[:-1], int(sums[-1])
        return tuple(lost.tolist()), tokens

    @contextmanager
    def published(self) -> Iterator[None]:
        """A context in which the original module has the current weights, and its device."""
        yield

    def whole(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """Arrays by the module's names, in the shapes of the original module, for the first process to store."""
        return state

    def split(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """The inverse of `whole`."""
        return state

    def whole_optimizer(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """The optimizer's state, with arrays in those shapes, for the first process to store."""
        return optimizer.state_dict()

    def split_optimizer(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        """The inverse of `whole_optimizer`."""
        return state

    def _computed(self, task: str, batch: object, tasks: Collection[str]) -> Tensor:
        return self._loss(task, batch)

    def _passing(self, is_last: bool) -> AbstractContextManager[object]:
        """The context for one micro-batch's forward and backward pass."""
        return nullcontext()


class Replicated(Devices):
    """Every process holds everything (DistributedDataParallel); gradients are averaged in the last backward pass."""

    def __init__(self, module: nn.Module, place: ProcessRank) -> None:
        module = module.to(place.device)
        ids = [torch.device(place.device)] if place.device.startswith("cuda") else None
        self._parallel = nn.parallel.DistributedDataParallel(module, device_ids=ids, find_unused_parameters=True)
        super().__init__(module, self._parallel, place)

    def _passing(self, is_last: bool) -> AbstractContextManager[object]:
        return nullcontext() if is_last else self._parallel.no_sync()


class Sharded(Devices):
    """Every process holds a slice of each array, gradient and moment (FSDP2); layers are gathered when they run.

    Processes draw different heads, but must gather and reduce the same arrays in the same order. So the arrays that a
    task may not use (heads, private layers, the trunk above them) are gathered once for a whole micro-batch; and the
    last micro-batch of an update gives a gradient to all that any process drew, zero if it has none.
    """

    def __init__(self, module: nn.Module, place: ProcessRank) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        self._original = module
        self._shapes = {name: value.shape for name, value in module.state_dict().items()}
        sharded = _with_vectors(copy.deepcopy(module)).to(place.device)
        mesh = init_device_mesh(torch.device(place.device).type, (place.world,))
        for layer in sharded.shared_layers():  # type: ignore[operator]
            fully_shard(layer, mesh=mesh)
        self._sharded: Any = fully_shard(sharded, mesh=mesh)
        super().__init__(sharded, sharded, place)

    @contextmanager
    def published(self) -> Iterator[None]:
        """A context in which the original module is whole again, on the process's device."""
        self._original.load_state_dict(self._gathered(self.module.state_dict(), keep=True))
        self._original.to(self.place.device)
        try:
            yield
        finally:
            self._original.to("cpu")

    def whole(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """Gathered from all processes; all of them must call it, and the others get nothing."""
        return self._gathered(state, keep=self.place.is_first)

    def split(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """Each process's slices."""
        live = self.module.state_dict()
        return {name: _slice_like(live[name], value) for name, value in state.items()}

    def whole_optimizer(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Gathered from all processes; all of them must call it, and the others get nothing."""
        names, state, whole_state = self._names(optimizer), optimizer.state_dict(), {}
        for index, moments in state["state"].items():
            arrays = {key: value for key, value in moments.items() if key != "step"}
            whole = {key: self.whole({names[index]: value}) for key, value in arrays.items()}
            if self.place.is_first:
                whole_state[index] = {**moments, **{key: tensors[names[index]] for key, tensors in whole.items()}}
        return {**state, "state": whole_state}

    def split_optimizer(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        """Each process's slices."""
        names, live = self._names(optimizer), self.module.state_dict()
        slices = {
            index: {
                key: value if key == "step" else _slice_like(live[names[index]], value)
                for key, value in moments.items()
            }
            for index, moments in state["state"].items()
        }
        return {**state, "state": slices}

    def _gathered(self, state: dict[str, Tensor], *, keep: bool) -> dict[str, Tensor]:
        arrays = {}
        for name, value in state.items():
            whole = value.full_tensor() if hasattr(value, "full_tensor") else value
            if keep:
                arrays[name] = whole.cpu().reshape(self._shapes[name])
        return arrays

    def _names(self, optimizer: torch.optim.Optimizer) -> list[str]:
        """Names of the parameters, by the optimizer's indices."""
        known = {id(parameter): name for name, parameter in self.module.named_parameters()}
        return [known[id(parameter)] for group in optimizer.param_groups for parameter in group["params"]]

    def _computed(self, task: str, batch: object, tasks: Collection[str]) -> Tensor:
        self._sharded.set_requires_gradient_sync(bool(tasks))
        value: Tensor = self._sharded(task, batch, drawn=tasks)
        return value.reshape(())  # a learned weight is a vector here


def devices_of(place: ProcessRank, module: nn.Module, *, parallel: str) -> Devices:
    """The module in its trainable form; it is called with a task, its batch and `drawn`, and returns the loss.

    `drawn` are tasks whose parameters all get a gradient, zero if the batch does not reach them.
    """
    if place.world == 1:
        return Devices(module, module, place)
    return Sharded(module, place) if parallel == "fsdp" else Replicated(module, place)


def check_same(place: ProcessRank, checkpoint: str) -> None:
    """Raises TrainError unless all processes found the same checkpoint, described in words."""
    checkpoints = gathered(place, checkpoint)
    if len(set(checkpoints)) > 1:
        raise TrainError(
            "the processes of one training found different checkpoints",
            got=", ".join(checkpoints),
            do="keep the cache in a folder that all of them read",
        )


def on(value: Copied, device: str) -> Copied:
    """The value with its tensors on the device, inside structs, tuples, lists and dicts too."""
    if device == "cpu":
        return value
    moved: Any = value
    match value:
        case Tensor():
            moved = value.to(device, non_blocking=True)
        case msgspec.Struct():
            fields = {name: on(getattr(value, name), device) for name in value.__struct_fields__}
            moved = msgspec.structs.replace(value, **fields)
        case tuple() | list():
            moved = type(value)(on(item, device) for item in value)
        case dict():
            moved = {name: on(item, device) for name, item in value.items()}
    return moved  # type: ignore[no-any-return]


def _with_vectors(module: nn.Module) -> nn.Module:
    """The same module with a vector of one number instead of each single number: FSDP2 slices no others."""
    for part in module.modules():
        for name, parameter in list(part.named_parameters(recurse=False)):
            if parameter.ndim == 0:
                setattr(part, name, nn.Parameter(parameter.detach().reshape(1), parameter.requires_grad))
    return module


def _slice_like(live: Any, value: Tensor) -> Tensor:
    """This process's slice of the value, sliced like the live parameter."""
    from torch.distributed.tensor import distribute_tensor

    if not hasattr(live, "placements"):
        return value.reshape(live.shape)
    return distribute_tensor(value.reshape(live.shape).to(live.device), live.device_mesh, live.placements)
