"""The routes of text-embeddings-inference, and those of the Inference API that `InferenceClient` knows, a task each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from polyhead._version import __version__
from polyhead.engine.inputs import AnyInput
from polyhead.engine.several import errors_of_call
from polyhead.errors import BackendError, BadValue, EmptyData, Overloaded, PolyheadError
from polyhead.serve.checks import size_of
from polyhead.serve.event_loop import off_loop
from polyhead.serve.exchange import RequestCost
from polyhead.serve.formats.asking import (
    LATE,
    TaskAnswers,
    Vectors,
    answers_of,
    check_dimensions,
    check_span_labels,
    has_spans,
    label_scores,
    list_headers,
    named_task,
    pipelined,
    reads_pairs,
    receipt_headers,
    requested_task,
    short_trunk_name,
    text_list,
    text_or_pair_list,
    vectors_of,
)
from polyhead.serve.formats.base import TASK_QUERY, Handler, Operation, Wire, WireFormat, get, post
from polyhead.serve.http import HttpError, body_value, headers_of, json_content, raw, status_of
from polyhead.serve.service import Service, TaskSelection
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Task
from polyhead.values import Value, few_digits

TEXT, TEXTS = msgspec.Meta(examples=["where is my order?"]), msgspec.Meta(examples=[["where is my order?", "thanks"]])


class ReadOptions(Wire):
    """Options of every request for reading its texts."""

    truncate: bool | None = None  # False refuses texts that the trunk does not read whole
    truncation_direction: Literal["left", "Left", "right", "Right"] | None = None
    prompt_name: str | None = None

    def check(self) -> None:
        """Raises BadValue for options that are not supported."""
        if self.truncation_direction in ("left", "Left"):
            raise BadValue("texts are cut at their end", got="truncation_direction 'left'", allowed="'right'")
        if self.prompt_name is not None:
            raise BadValue(
                "the trunk has no prompts of its own", got=self.prompt_name, do="write the prompt before the text"
            )

    def check_read(self, costs: RequestCost) -> None:
        """Raises HttpError 413 where texts were cut and the request does not allow it."""
        if self.truncate is False and costs.cut:
            raise HttpError(
                413,
                "texts are longer than the trunk reads",
                got=f"{costs.cut:,} tokens too many",
                do="shorten them, or leave 'truncate' out to have them cut",
            )


class PipelineParameters(Wire):
    """Options of a pipeline's answer."""

    top_k: int | None = None
    function_to_apply: str | None = None
    aggregation_strategy: str | None = None
    ignore_labels: list[str] | None = None
    stride: int | None = None
    candidate_labels: Any = None


class TeiPredictRequest(ReadOptions, kw_only=True):
    """A text, a pair [a, b], or a list of [text] and [a, b]."""

    inputs: Annotated[Any, msgspec.Meta(examples=["where is my order?"])]
    raw_scores: bool = False
    parameters: PipelineParameters | None = None  # which `InferenceClient` sends


class EmbedRequest(ReadOptions, kw_only=True):
    """Texts for their vectors."""

    inputs: Annotated[Any, TEXTS]
    normalize: bool = True
    dimensions: int | None = None
    encoding_format: Literal["float"] | None = None
    parameters: dict[str, Any] | None = None  # where pipelines have what stands beside `inputs` here


class Sentences(Wire):
    """A text and others to compare with it."""

    source_sentence: Annotated[str, TEXT]
    sentences: Annotated[list[str], TEXTS]


class SimilarityRequest(Wire):
    """Texts to compare."""

    inputs: Sentences
    parameters: ReadOptions | None = None


class RerankRequest(ReadOptions, kw_only=True):
    """Texts to order by how well they fit a query."""

    query: Annotated[str, TEXT]
    texts: Annotated[list[str], TEXTS]
    raw_scores: bool = False
    return_text: bool = False


class Rank(Value, omit_defaults=True):
    """The place of a text."""

    index: int
    score: float
    text: str | None = None


class PipelineRequest(Wire):
    """A text or texts, as the Inference API takes them, or pairs, as pipelines of transformers do."""

    inputs: Annotated[Any, TEXT]
    parameters: PipelineParameters | None = None


class InferenceApiFormat(WireFormat):
    """`/predict`, `/embed`, `/similarity`, `/rerank`, `/info`, `/models/{task}`, and the same of one task at `/`."""

    name = "inference-api"

    def error_response(self, error: Exception) -> Response:
        """An error of the guard as text-embeddings-inference tells it."""
        if not isinstance(error, PolyheadError):
            return super().error_response(error)
        kinds: dict[type[PolyheadError], str] = {Overloaded: "Overloaded", BackendError: "Backend", EmptyData: "Empty"}
        kind = next((name for each, name in kinds.items() if isinstance(error, each)), "Validation")
        return json_content({"error": str(error), "error_type": kind}, status_of(error), headers_of(error))

    def operations(self) -> Sequence[Operation]:
        """An entry for each route."""
        pipeline = "A task's answers, as a pipeline of transformers gives them."
        predict = "Labels of texts or pairs, as text-embeddings-inference answers."
        rerank = "Texts in the order of how well they fit a query."

        def of(path: str, handler: Handler, summary: str, request: Any, response: Any = None, **more: Any) -> Operation:
            return post(path, handler, summary, request=request, response=response, statuses=LATE, **more)

        return [
            of("/predict", _predict, predict, TeiPredictRequest, queries=(TASK_QUERY,)),
            of("/embed", _embed, "Vectors of texts.", EmbedRequest, list[list[float]]),
            of("/similarity", _similarity, "Cosines of texts with one.", SimilarityRequest, list[float]),
            of("/rerank", _rerank, rerank, RerankRequest, list[Rank]),
            of("/models/{task}", _pipeline, pipeline, PipelineRequest),
            of("/", _pipeline, "The same of the task that the request means.", PipelineRequest, queries=(TASK_QUERY,)),
            get("/info", _info, "Facts of the encoder and of a task."),
        ]


_PREDICT, _EMBED = msgspec.json.Decoder(TeiPredictRequest), msgspec.json.Decoder(EmbedRequest)
_SIMILARITY, _RERANK = msgspec.json.Decoder(SimilarityRequest), msgspec.json.Decoder(RerankRequest)
_PIPELINE = msgspec.json.Decoder(PipelineRequest)


async def _predict(service: Service, request: Request) -> Response:
    requested = await body_value(request, _PREDICT)
    requested.check()
    if requested.raw_scores:
        raise _no_raw_scores("raw_scores")
    meant = requested_task(service, request)
    (task,) = meant.tasks
    check_span_labels(task, spans=False, route="POST /predict")
    parameters = requested.parameters or PipelineParameters()
    _check_parameters(task, parameters)
    inputs = _sequences(service, requested.inputs)
    answered = await answers_of(service, request, inputs, meant)
    requested.check_read(answered.costs)
    rows = await off_loop(size_of(answered.ticket), _shortened, answered, parameters)
    is_one = isinstance(requested.inputs, str) or isinstance(requested.inputs[0], str)
    return json_content(rows[0] if is_one else rows, headers=_headers(answered.costs) | list_headers(answered))


def _sequences(service: Service, inputs: object) -> list[AnyInput]:
    """Texts and pairs: a string, [a], [a, b], or a list of such lists, where the first one decides."""
    listed = [[inputs]] if isinstance(inputs, str) else inputs
    if isinstance(listed, list) and listed:
        service.check_count(len(listed), 1)
    if isinstance(listed, list) and listed:
        batch = [listed] if isinstance(listed[0], str) else listed
        if all(isinstance(texts, list) and len(texts) in (1, 2) for texts in batch) and all(
            isinstance(text, str) for texts in batch for text in texts
        ):
            return [(texts[0], texts[1]) if len(texts) == 2 else (texts[0],) for texts in batch]
    raise BadValue(
        "'inputs' is no text, pair or list of these",
        allowed='"text", ["a", "b"] for a pair, or [["text"], ["a", "b"], ...] for several',
        do="give each of several texts in a list of its own",
    )


async def _embed(service: Service, request: Request) -> Response:
    requested = await body_value(request, _EMBED)
    requested.check()
    if requested.parameters:
        raise BadValue("options stand beside 'inputs'", got=list(requested.parameters), do="leave 'parameters' out")
    texts = text_list(service, requested.inputs, "inputs")
    check_dimensions(service, requested.dimensions)
    vectors = await vectors_of(service, request, texts)
    requested.check_read(vectors.costs)
    rows = await off_loop(vectors.rows.size, _embedded, requested, vectors)
    return json_content(rows, headers=_headers(vectors.costs))


def _embedded(requested: EmbedRequest, vectors: Vectors) -> list[Any]:
    """The vectors as the request wants them, in JSON."""
    rows = vectors.normalized(requested.dimensions) if requested.normalize else vectors.rows[:, : requested.dimensions]
    return raw(row.tolist() for row in rows)


async def _similarity(service: Service, request: Request) -> Response:
    requested = await body_value(request, _SIMILARITY)
    reading = requested.parameters or ReadOptions()
    reading.check()
    texts = text_list(service, requested.inputs.sentences, "sentences")
    scores, costs = await _cosines(service, request, requested.inputs.source_sentence, texts, name="source_sentence")
    reading.check_read(costs)
    return json_content(few_digits(scores), headers=_headers(costs))


async def _cosines(
    service: Service, request: Request, text: str, others: Sequence[str], *, name: str
) -> tuple[list[float], RequestCost]:
    """The cosine of each other text's vector with that of `text`, the field `name`; one request to the queue."""
    with errors_of_call([f"'{name}'", *range(len(others))]):
        vectors = await vectors_of(service, request, [text, *others])
    return await off_loop(vectors.rows.size, _with_first, vectors), vectors.costs


def _with_first(vectors: Vectors) -> list[float]:
    """The cosine of each vector but the first with that."""
    rows = vectors.normalized().astype(np.float64)
    cosines: list[float] = (rows[1:] @ rows[0]).tolist()
    return cosines


async def _rerank(service: Service, request: Request) -> Response:
    """By a regression task over pairs, where the request means one, else by the cosine of vectors."""
    requested = await body_value(request, _RERANK)
    requested.check()
    if requested.raw_scores:
        raise _no_raw_scores("raw_scores")
    texts = text_list(service, requested.texts, "texts")
    meant = _task_of_pairs(service, request)
    if meant is None:
        scores, costs = await _cosines(service, request, requested.query, texts, name="query")
    else:
        answered = await answers_of(service, request, [(requested.query, text) for text in texts], meant)
        scores, costs = [answer["value"] for answer in answered.answers], answered.costs
    requested.check_read(costs)
    order = sorted(range(len(texts)), key=lambda index: -scores[index])
    ranks = [
        Rank(index=index, score=few_digits(scores[index]), text=texts[index] if requested.return_text else None)
        for index in order
    ]
    return await off_loop(sum(map(len, texts)), json_content, ranks, headers=_headers(costs))


def _task_of_pairs(service: Service, request: Request) -> TaskSelection | None:
    """The requested regression task over pairs; None if none is named and the default is of another kind."""
    named = named_task(request)
    try:
        requested = requested_task(service, request)
    except BadValue:  # it means none
        return None
    (task,) = requested.tasks
    if reads_pairs(task) and kind_of(task).scores == "range":
        return requested
    if named is None:
        return None
    raise BadValue(
        f"task '{task.name}' does not order texts",
        got=f"kind '{task.kind}', pair '{task.pair}'",
        allowed="a regression task over pairs, or no task for the cosine of vectors",
    )


async def _pipeline(service: Service, request: Request) -> Response:
    """As a pipeline of transformers: `[[{label, score}]]` for one text, spans for a tagging task."""
    requested = await body_value(request, _PIPELINE)
    meant = requested_task(service, request, request.path_params.get("task"))
    (task,) = meant.tasks
    check_span_labels(task, spans=True, route="POST /models/{task}")
    parameters = requested.parameters or PipelineParameters()
    _check_parameters(task, parameters)
    inputs = text_or_pair_list(service, requested.inputs, "inputs", task)
    answered = await answers_of(service, request, inputs, meant)
    rows = await off_loop(size_of(answered.ticket), _shortened, answered, parameters)
    is_one_text_of_spans = not isinstance(requested.inputs, list) and has_spans(answered.task)
    headers = _headers(answered.costs) | list_headers(answered)
    return json_content(rows[0] if is_one_text_of_spans else rows, headers=headers)


def _shortened(answered: TaskAnswers, parameters: PipelineParameters) -> list[Any]:
    """The answers of a pipeline, one per input, limited as the request asks, in JSON."""
    ignored = frozenset(parameters.ignore_labels or ())
    return raw([part for part in row if part.label not in ignored][: parameters.top_k] for row in pipelined(answered))


def _check_parameters(task: Task, parameters: PipelineParameters) -> None:
    scores = kind_of(task).scores
    function = "none" if scores == "range" else scores
    if parameters.function_to_apply not in (None, function):
        raise _no_raw_scores(f"function_to_apply '{parameters.function_to_apply}'", allowed=function)
    if parameters.top_k is not None and parameters.top_k < 1:
        raise BadValue("'top_k' is too small", got=parameters.top_k, allowed="1 or more")
    if parameters.candidate_labels is not None:
        raise BadValue(
            f"task '{task.name}' answers with labels of its own",
            got="candidate_labels",
            do="leave the parameter out; POST /v1/decisions takes options with a question",
        )
    if parameters.stride is not None:
        raise BadValue(
            "long texts are cut, or read in windows, as the task says",
            got=f"stride {parameters.stride}",
            do="leave the parameter out",
        )
    if parameters.aggregation_strategy not in (None, "simple", "first"):
        raise BadValue(
            "words are labelled by their first token",
            got=f"aggregation_strategy '{parameters.aggregation_strategy}'",
            allowed="'simple' or 'first'",
        )


def _no_raw_scores(got: str, allowed: str | None = None) -> BadValue:
    return BadValue(
        "scores are what the task's kind makes of them", got=got, allowed=allowed, do="leave the parameter out"
    )


async def _info(service: Service, request: Request) -> Response:
    """Facts of the trunk, and of the task where the request means one with labels."""
    limits, loaded, bundle = service.settings.limits, service.loaded, service.session.bundle
    return json_content(
        {
            "model_id": short_trunk_name(service),
            "model_sha": bundle.digest,
            "model_dtype": service.session.backend.precision,
            "served_model_name": short_trunk_name(service),
            "model_type": _model_type(service, request),
            "max_concurrent_requests": service.settings.queue.waiting_inputs,
            "max_input_length": loaded.tokenizer.max_tokens,
            "max_batch_tokens": service.settings.queue.batch_tokens,
            "max_batch_requests": None,
            "max_client_batch_size": limits.inputs,
            "auto_truncate": service.settings.long_texts == "cut",
            "tokenization_workers": 1,
            "version": __version__,
            "sha": None,
            "docker_label": None,
            "x_tasks": list(service.tasks),
        }
    )


def _model_type(service: Service, request: Request) -> dict[str, Any]:
    try:
        (task,) = requested_task(service, request).tasks
        check_span_labels(task, spans=True, route="GET /info")
    except BadValue:
        return {"embedding": {"pooling": "mean"}}
    labels = task.labels or tuple(scored.label for scored in label_scores(task, {"value": 0.0}))
    return {
        "classifier": {
            "id2label": {str(index): label for index, label in enumerate(labels)},
            "label2id": {label: index for index, label in enumerate(labels)},
        }
    }


def _headers(costs: RequestCost) -> dict[str, str]:
    return {**receipt_headers(costs), "x-compute-tokens": str(costs.tokens)}
