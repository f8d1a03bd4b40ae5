"""The weights of an attention pooler: how much of a task's vector comes from each word."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from polyhead.engine.backends.base import LoadedTask, TokenBatch
from polyhead.engine.compile.heads import folded
from polyhead.engine.inputs import AnyInput, task_input
from polyhead.engine.session import Session
from polyhead.errors import BackendError
from polyhead.plan import Path
from polyhead.plan.coding import through, tokens_of
from polyhead.tasks.kinds.base import softmax
from polyhead.text.question import Question, texts_of
from polyhead.text.tokenize import Encoded, Input
from polyhead.text.words import words_of
from polyhead.values import Value


class WordWeight(Value):
    """A word of one of an input's texts, and its share of the pooler's weight."""

    place: int  # of the text among those of the input
    start: int  # characters
    end: int
    text: str
    weight: float


class WordWeights(Value):
    """The weights of all words of an input, the mean over the pooler's heads.

    They sum to 1 with `elsewhere`, for each text of a pair that is read separately. A word that was not read, since the
    text is cut, has none.
    """

    words: tuple[WordWeight, ...]
    elsewhere: float  # of special tokens, such as [CLS]; the mean where two texts are read separately


def attention_of(session: Session, task: str, entry: AnyInput) -> WordWeights | None:
    """The weights with which the task reads this input, of a long text of its beginning.

    None for a task without an attention pooler, or with layers or prompts of its own, and for questions with options.
    """
    record = session.records.get(task)
    if record is None or record.path.pool.positions != "attention" or isinstance(entry, Question):
        return None
    texts, path = texts_of(task_input(entry)), record.path
    parts: list[Input] = [(text,) for text in texts] if path.head.separate or len(texts) < 2 else [(texts[0], texts[1])]
    words, elsewhere = list[WordWeight](), list[float]()
    for number, part in enumerate(parts):
        (encoded,) = session.tokenizer.encode([part])
        try:
            weights = token_weights(session, path, session.arrays(task), encoded)
        except BackendError:  # states of other layers than the trunk's own are not kept for anybody
            return None
        words += _by_word(part, encoded, weights, first=number)
        elsewhere.append(float(weights[encoded.sequence < 0].sum()))
    return WordWeights(words=tuple(words), elsewhere=float(np.mean(elsewhere)))


def token_weights(session: Session, path: Path, loaded: LoadedTask, encoded: Encoded) -> np.ndarray:
    """The weight of each token of an input, float64 (tokens,), the mean over heads."""
    ids = encoded.ids[None].astype(np.int64)
    mask = np.ones(ids.shape, bool)
    batch = TokenBatch(
        ids=ids, mask=mask, segments=encoded.segments[None].astype(np.int64), words=np.full((1, 1), -1, np.int64)
    )
    (values,) = session.loaded.backend.features([path], batch)  # (tokens, layers, width)
    pool = path.stored().pool
    tokens = tokens_of(pool, ids=ids, mask=mask, words=None)[0]
    states = through(np.ascontiguousarray(values), pool.codec, tokens[:, None])
    owned = {path.head.part: loaded.arrays, **loaded.others}
    own, hidden, pooler = (
        owned[part or path.head.part] for part in (path.head.part, path.head.hidden_part, path.pool.part)
    )
    scores = folded(path, own, hidden, pooler, width=states.shape[-1]).scores
    assert scores is not None
    if path.pool.layers != "learned":
        states = states.mean(axis=1, keepdims=True)
    return np.asarray(softmax((states.reshape(len(states), -1) @ scores).T).mean(axis=0))


def _by_word(texts: Sequence[str], encoded: Encoded, weights: np.ndarray, *, first: int) -> list[WordWeight]:
    """The sum over the tokens of each word; a token that several words share is shared between them evenly."""
    several = []
    for place, text in enumerate(texts):
        words = words_of(text)
        here = encoded.sequence == place
        starts, ends = encoded.offsets[here, 0], encoded.offsets[here, 1]
        overlaps = (starts[:, None] < words[:, 1]) & (ends[:, None] > words[:, 0])  # (tokens, words)
        shares = overlaps / np.maximum(overlaps.sum(axis=1, keepdims=True), 1)
        for (start, end), weight in zip(words.tolist(), (weights[here] @ shares).tolist(), strict=True):
            several.append(WordWeight(place=first + place, start=start, end=end, text=text[start:end], weight=weight))
    return several
