"""Why tasks answered as they did: an input and itself without each of its words, asked as one request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np

from polyhead.engine.inputs import AnyInput
from polyhead.engine.queue import Ticket
from polyhead.errors import BadValue
from polyhead.evaluation.attention import attention_of
from polyhead.evaluation.explain import Explanation, variants_of
from polyhead.serve.service import Names, Service
from polyhead.tasks.kinds import kind_of


class Why:
    """The answers to inputs, and why."""

    def __init__(self, ticket: Ticket, places: Sequence[int], explanations: list[dict[str, Explanation]]) -> None:
        """`places` are the inputs' numbers in the ticket, which holds those without a word too."""
        self.ticket, self.places, self.explanations = ticket, tuple(places), explanations


async def explained(
    service: Service,
    inputs: Sequence[AnyInput],
    tasks: Names,
    *,
    words: Sequence[np.ndarray | None] | None,
    deadline: float | None,
    is_gone: Callable[[], bool] | None,
) -> Why:
    """Raises what `Service.ask` raises, and BadValue where all inputs together are more than a request may hold."""
    loaded = tasks.loaded
    if writing := [name for name in tasks if kind_of(loaded.tasks[name]).owns_model]:
        raise BadValue("a task that writes texts is not explained", got=writing, do="name other tasks")
    variants = variants_of(inputs, words=words)
    service.check_inputs(variants.inputs, tasks)
    own = variants.words if words is not None else None
    ticket = await service.ask(variants.inputs, tasks, words=own, deadline=deadline, is_gone=is_gone)
    answers: dict[str, dict[int, dict[str, object]]] = {name: {} for name in tasks}
    for row, result in enumerate(ticket.results):
        for name, answer in ({} if result is None else result.answers).items():
            answers[name][row] = answer
    explanations = variants.explanations(loaded.tasks, answers)
    with_attention = await asyncio.to_thread(_with_attention, service, tasks, inputs, explanations)
    sizes = [1 + len(parts) for parts in variants.parts]
    return Why(ticket, np.cumsum([0, *sizes])[:-1].tolist(), with_attention)


def _with_attention(
    service: Service, tasks: Names, inputs: Sequence[AnyInput], explanations: Sequence[Mapping[str, Explanation]]
) -> list[dict[str, Explanation]]:
    """The same with the weights of poolers, but of tasks that were replaced meanwhile."""
    session = service.session
    now = [name for name in tasks if session.records.get(name) is tasks.loaded.records.get(name)]
    return [
        {
            name: msgspec.structs.replace(explanation, attention=attention_of(session, name, entry))
            if name in now
            else explanation
            for name, explanation in several.items()
        }
        for entry, several in zip(inputs, explanations, strict=True)
    ]
