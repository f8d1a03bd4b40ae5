"""Tasks as models of the Open Inference Protocol, however they are asked: their tensors, inputs and answers.

The model `all` answers every task at once, each as one tensor of JSON, unless a task has that name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np

from polyhead.engine.familiar import check_none_below
from polyhead.engine.inputs import AnyInput, input_types_of, requested_input_of
from polyhead.engine.loaded import LoadedTasks
from polyhead.engine.tickets import Ticket
from polyhead.errors import BadValue, UnknownTask
from polyhead.serve.checks import check_deadline
from polyhead.serve.formats.asking import costs_of, ticket_answers, ticket_results
from polyhead.serve.formats.tensors import TEXT, InferRequest, Tensor, TensorFacts, tensor_texts
from polyhead.serve.http import checked_json
from polyhead.serve.service import Service, TaskSelection
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Answer, Task
from polyhead.values import Value

ALL, PLATFORM = "all", "polyhead"
LONGEST = 2**63  # microseconds of a timeout: a longer one means the same
EXTENSIONS = ("binary_tensor_data", "model_repository")
SHARED_MEMORY = "shared memory of clients is not read"


class ServedModel(Value, eq=False):
    """A task as a model, or all of them, as they were in a moment."""

    name: str
    tasks: tuple[Task, ...]
    loaded: LoadedTasks
    version: str = ""  # "" of all of them, and of a task that lies in no bundle
    is_all: bool = False

    @property
    def versions(self) -> list[str]:
        """The versions that answer: the live one, where there are any."""
        return [self.version] if self.version else []

    @property
    def inputs(self) -> list[TensorFacts]:
        """`text`, and `text_b` for a pair; of other tasks `input`: each a JSON object as `/v1/predict` takes it."""
        types: tuple[str, ...] = ("text",) if self.is_all else input_types_of(self.tasks[0])
        known: dict[tuple[str, ...], tuple[str, ...]] = {("text",): ("text",), ("pair",): ("text", "text_b")}
        names = known.get(types, ("input",))
        return [TensorFacts(name=name, datatype=TEXT, shape=[-1]) for name in names]

    @property
    def outputs(self) -> list[TensorFacts]:
        """One tensor of JSON a task of all of them; of one task `answer`, and what its kind has beside."""
        if self.is_all:
            return [TensorFacts(name=task.name, datatype=TEXT, shape=[-1]) for task in self.tasks]
        return _outputs_of(self.tasks[0])


def model_named(service: Service, name: str, version: str | None = None) -> ServedModel:
    """The model of this name; raises UnknownTask if it is not served, or not in this version."""
    is_all = name == ALL and ALL not in service.loaded.tasks
    names = service.named(None if is_all else [name])
    live = "" if is_all else names.loaded.versions.get(name, "")
    if version is not None and version != live:
        raise UnknownTask(
            f"version '{version}' of model '{name}' is not served",
            allowed=[live] if live else [],
            do="leave the version out for the live one",
        )
    return ServedModel(name=name, tasks=names.tasks, loaded=names.loaded, version=live, is_all=is_all)


class Inference(Value, eq=False):
    """A request to a model, read and checked."""

    model: ServedModel
    request: InferRequest
    inputs: list[AnyInput]
    words: list[np.ndarray | None] | None
    names: TaskSelection  # the tasks that it asks

    async def ask(
        self, service: Service, *, deadline: float | None = None, is_gone: Callable[[], bool] | None = None
    ) -> Ticket:
        """The ticket, answered within the seconds that the request and `deadline` allow."""
        parameters = self.request.parameters
        allowed = [seconds for seconds in (deadline, min(parameters.timeout or 0, LONGEST) / 1e6) if seconds]
        return await service.ask(
            self.inputs,
            self.names,
            words=self.words,
            deadline=min(allowed, default=None),
            is_gone=is_gone,
            familiar=parameters.familiar,
            none_below=parameters.none_below,
        )

    def tensors(self, ticket: Ticket) -> list[Tensor]:
        """The tensors of an answered ticket that the request wants."""
        wanted = {output.name for output in self.request.outputs}
        name = self.model.name
        if self.model.is_all:
            tensors = _tensors_of_all(ticket)
        else:
            tensors = _tensors(ticket.loaded.tasks[name], ticket_answers(ticket, name))
        return [tensor for tensor in tensors if not wanted or tensor.facts.name in wanted]

    def facts(self, ticket: Ticket) -> dict[str, Any]:
        """The parameters of an answer, in addition to its tensors."""
        version = "" if self.model.is_all else ticket.loaded.versions.get(self.model.name, "")
        facts = {"model_name": self.model.name, "model_version": version}
        identity = {} if self.request.id is None else {"id": self.request.id}
        return {**facts, "parameters": {"x_receipt": _in_json(costs_of(ticket))}, **identity}


def read_inference(service: Service, model: ServedModel, request: InferRequest, binary: bytes) -> Inference:
    """A request to a model, checked; `binary` are the data that its tensors do not hold themselves."""
    check_deadline(request.parameters.timeout or None)
    check_none_below(request.parameters.none_below, model.loaded.tasks, None)
    _check_outputs(request, {facts.name for facts in model.outputs})
    inputs, words = _inputs(model, tensor_texts(request, binary, most=service.settings.limits.inputs))
    wanted = {output.name for output in request.outputs}
    tasks = (task.name for task in model.tasks if not model.is_all or not wanted or task.name in wanted)
    names = TaskSelection.of(tasks, model.loaded)
    service.check_inputs(inputs, names)
    return Inference(model=model, request=request, inputs=inputs, words=words, names=names)


def _inputs(model: ServedModel, texts: dict[str, list[str]]) -> tuple[list[AnyInput], list[np.ndarray | None] | None]:
    """The inputs from their tensors, which are of one length, and their words; `input` in place of `text` is JSON."""
    allowed = [["input"], [facts.name for facts in model.inputs]] + [["text", "text_b"]] * model.is_all
    if sorted(texts) not in map(sorted, allowed) or len({len(each) for each in texts.values()}) > 1:
        raise BadValue(
            f"these are not the inputs of model '{model.name}'",
            got=", ".join(f"{name} ({len(each)} values)" for name, each in texts.items()) or "none",
            allowed=" or ".join(" and ".join(names) for names in allowed) + ", of one length",
        )
    if "text_b" in texts:
        return list(zip(texts["text"], texts["text_b"], strict=True)), None
    if "text" in texts:
        return [(text,) for text in texts["text"]], None
    rows = (_json(text, number) for number, text in enumerate(texts["input"]))
    read = [requested_input_of(row, where=f"input {number}") for number, row in enumerate(rows)]
    return [entry for entry, _ in read], [words for _, words in read]


def _json(text: str, number: int) -> object:
    try:
        return msgspec.json.decode(checked_json(text.encode("utf-8", "surrogatepass")))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadValue(f"input {number} is not JSON", got=str(error), do="or send the tensor 'text'") from None


@lru_cache(maxsize=4096)
def _outputs_of(task: Task) -> list[TensorFacts]:
    return [tensor.facts for tensor in _tensors(task, [])]


def _tensors(task: Task, answers: Sequence[Answer]) -> list[Tensor]:
    """`answer` in JSON, and, where the task's kind has them, its label, scores in the order of labels, or number."""
    rows, labels, kind = len(answers), len(task.labels), kind_of(task)
    tensors = [_texts("answer", [_in_json(answer) for answer in answers])]
    if kind.per_word or kind.per_option or kind.scores is None:
        return tensors
    if kind.scores == "range":
        return [*tensors, _numbers("value", "FP64", np.array([kind.cell_of(answer) for answer in answers]))]
    if kind.cell == "text":
        tensors.append(_texts("label", [str(kind.cell_of(answer)) for answer in answers]))
    scores = np.array([list(answer["scores"].values()) for answer in answers]).reshape(rows, labels)
    return [*tensors, _numbers("scores", "FP32", scores.astype(np.float32))]


def _tensors_of_all(ticket: Ticket) -> list[Tensor]:
    """One tensor of JSON a task: its answer, or why there is none."""
    results = ticket_results(ticket)

    def outcome(task: str, number: int) -> dict[str, Any]:
        result = results[number]
        if task in result.answers:
            return result.answers[task]
        for state in ("skipped", "failed"):
            if task in getattr(result, state):
                return {state: getattr(result, state)[task]}
        return {"late": True}

    return [_texts(task, [_in_json(outcome(task, number)) for number in range(len(results))]) for task in ticket.tasks]


def _in_json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _texts(name: str, texts: list[str]) -> Tensor:
    return Tensor(facts=TensorFacts(name=name, datatype=TEXT, shape=[len(texts) or -1]), values=texts)


def _numbers(name: str, datatype: str, values: np.ndarray) -> Tensor:
    shape = [values.shape[0] or -1, *values.shape[1:]]
    return Tensor(facts=TensorFacts(name=name, datatype=datatype, shape=shape), values=values)


def _check_outputs(request: InferRequest, known: set[str]) -> None:
    for output in request.outputs:
        if output.name not in known:
            raise BadValue(f"the model has no output '{output.name}'", allowed=sorted(known))
        if output.parameters.shared_memory_region is not None:
            raise BadValue(SHARED_MEMORY, got=f"output '{output.name}'", do="read it from the answer")
        if output.parameters.classification:
            raise BadValue(
                f"output '{output.name}' is not ranked here", got="class_count", do="sort 'scores', or ask 'answer'"
            )
