"""Why tasks answered as they did: an input and itself without each of its words, asked as one request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from time import monotonic

import numpy as np

from polyhead.engine.inputs import AnyInput, Words
from polyhead.engine.session import Session
from polyhead.engine.several import errors_of_call
from polyhead.engine.tickets import Ticket
from polyhead.errors import BadValue, PolyheadError
from polyhead.evaluate.explain import (
    Explanation,
    Variants,
    WordWeights,
    attention_of,
    least_variants,
    variants_of,
    with_attention,
)
from polyhead.serve.checks import AN_INPUT, characters_of, too_many_characters
from polyhead.serve.event_loop import LARGE, off_loop
from polyhead.serve.service import Service, TaskSelection
from polyhead.tasks.kinds import kind_of
from polyhead.values import Value


class Why(Value, eq=False):
    """The answers to inputs, and why."""

    ticket: Ticket
    places: Sequence[int]  # the inputs' numbers in the ticket, which holds those without a word too
    explanations: list[dict[str, Explanation]]


async def explain_request(
    service: Service,
    inputs: Sequence[AnyInput],
    tasks: TaskSelection,
    *,
    words: Sequence[np.ndarray | None] | None,
    deadline: float | None,
    is_gone: Callable[[], bool] | None,
) -> Why:
    """The answers and why; after the deadline, or once the caller is gone, no more weights of poolers are computed.

    Raises what `Service.ask` raises, and BadValue where all inputs together are more than a request may hold.
    """
    loaded = tasks.loaded
    if writing := [name for name in tasks if kind_of(loaded.tasks[name]).generates]:
        raise BadValue("a task that writes texts is not explained", got=writing, do="name other tasks")
    if mixed := [name for name in tasks if len(loaded.homes(name)) > 1]:
        raise BadValue(
            "a cascade is not explained: a text and its parts may be answered by different encoders",
            got=mixed,
            do="ask a server of one of its bundles",
        )
    timeout = service.settings.timeout
    end = monotonic() + (timeout if deadline is None else min(deadline, timeout))

    def is_over() -> bool:
        return monotonic() >= end or (is_gone is not None and is_gone())

    # An input makes many variants, so this is never little work.
    variants = await off_loop(LARGE, _variants, service, inputs, tasks, words)
    variant_words = variants.words if words is not None else None
    sizes = [1 + len(parts) for parts in variants.parts]
    with errors_of_call(np.repeat(range(len(sizes)), sizes).tolist()):
        ticket = await service.ask(variants.inputs, tasks, words=variant_words, deadline=deadline, is_gone=is_gone)
    explanations = await off_loop(LARGE, _explanations, service, tasks, variants, ticket, is_over)
    return Why(ticket=ticket, places=np.cumsum([0, *sizes])[:-1].tolist(), explanations=explanations)


def _variants(service: Service, inputs: Sequence[AnyInput], tasks: TaskSelection, words: Words) -> Variants:
    """The inputs without each of their words; raises BadValue before any is made where they are too many or too long.

    A bound of how many there are comes first, since the words of a very long text take long to count.
    """
    characters = [characters_of([entry]) for entry in inputs]
    limits = service.settings.limits

    def check(counts: Sequence[int]) -> None:
        service.check_count(sum(counts), len(tasks))
        in_all = sum(count * size for count, size in zip(counts, characters, strict=True))
        if in_all > limits.all_characters + AN_INPUT * sum(counts):
            raise too_many_characters(f"{in_all:,}, a text's once for each of its words", limits.all_characters)

    check([least_variants(entry) for entry in inputs])
    variants = variants_of(inputs, words=words, check=check)
    service.check_inputs(variants.inputs, tasks)
    return variants


def _explanations(
    service: Service, tasks: TaskSelection, variants: Variants, ticket: Ticket, is_over: Callable[[], bool]
) -> list[dict[str, Explanation]]:
    answers: dict[str, dict[int, dict[str, object]]] = {name: {} for name in tasks}
    for row, result in enumerate(ticket.results):
        for name, answer in ({} if result is None else result.answers).items():
            answers[name][row] = answer
    explanations = variants.explanations(tasks.loaded.tasks, answers)
    return [
        with_attention(by_task, {} if is_over() else _attention(service, tasks, by_task, entry))
        for entry, by_task in zip(variants.entries, explanations, strict=True)
    ]


def _attention(service: Service, tasks: TaskSelection, names: Iterable[str], entry: AnyInput) -> dict[str, WordWeights]:
    """The weights of poolers, except of tasks that were replaced or removed meanwhile."""
    records, weights = tasks.loaded.records, dict[str, WordWeights]()
    by_session: dict[Session, list[str]] = {}
    for name in names:
        by_session.setdefault(service.home(name).session, []).append(name)
    for session, its_names in by_session.items():
        same = [name for name in its_names if session.records.get(name) is records.get(name)]
        try:
            its_weights = attention_of(session, same, entry)
        except (PolyheadError, KeyError):
            if all(session.records.get(name) is records.get(name) for name in same):
                raise
            continue
        weights |= {name: each for name, each in its_weights.items() if session.records.get(name) is records.get(name)}
    return weights
