"""Words that moved an answer, and the weights of an attention pooler."""

import msgspec
import numpy as np
import pytest
from scipy.special import logit

from polyhead import Session
from polyhead.engine.inputs import Passage
from polyhead.evaluate.explain import MOST_PARTS, attention_of, explained, parts_in, variants_of, without
from polyhead.testing import tiny_trunk
from polyhead.text.question import Question
from polyhead.text.words import words_of

TEXT = ("the lamp is broken and late, please refund",)


@pytest.fixture(scope="module")
def session(home):
    return Session(home / "bundle", backend="reference", deterministic=True)


def test_the_effect_of_a_word_is_what_the_answer_loses_without_it(session):
    (found,) = explained(session, [TEXT], ["mood", "topics", "urgency"])
    (said,) = found["mood"].said
    answer = session.predict([TEXT], tasks=["mood"])[0].answers["mood"]
    assert said.says == answer["label"] and said.support == answer["scores"][answer["label"]]
    assert [part.text for part in said.parts] == ["the", "lamp", "is", "broken", "and", "late", ",", "please", "refund"]
    for part in said.parts:
        shorter = TEXT[0][: part.start].rstrip() + TEXT[0][part.end :]
        other = session.predict([shorter.strip()], tasks=["mood"])[0].answers["mood"]
        lost = logit(said.support) - logit(other["scores"][answer["label"]])
        assert part.effect == pytest.approx(lost, abs=1e-6)
        assert part.becomes == (None if other["label"] == answer["label"] else other["label"])
    (number,) = found["urgency"].said
    assert number.support == session.predict([TEXT], tasks=["urgency"])[0].answers["urgency"]["value"]
    assert any(part.effect for part in number.parts) and not any(part.becomes for part in number.parts)


def test_all_variants_of_all_texts_are_answered_in_one_call(session, monkeypatch):
    calls, columns = [], session.columns
    monkeypatch.setattr(session, "columns", lambda inputs, **more: calls.append(len(inputs)) or columns(inputs, **more))
    explained(session, [TEXT, ("my phone",)], ["mood", "names"])
    assert calls == [(1 + 9) + (1 + 2)]


def test_a_word_that_the_model_does_not_read_moves_nothing(session):
    """The tiny trunk reads 48 tokens: what stands beyond is cut, with it and without it."""
    words = ["the", "lamp", "is", "late"] * 15
    (found,) = explained(session, [(" ".join(words),)], ["mood", "urgency"])
    read = tiny_trunk().settings.max_tokens - 2
    for explanation in found.values():
        (said,) = explanation.said
        assert len(said.parts) == len(words)
        assert [part.effect for part in said.parts[read:]] == [0.0] * (len(words) - read)
        assert any(part.effect for part in said.parts[:read])
        weights = [word.weight for word in explanation.attention.words]
        assert weights[read:] == [0.0] * (len(words) - read) and min(weights[:read]) > 0


def test_long_texts_lose_neighbours_together():
    words = [f"w{number}" for number in range(1000)]
    text = " ".join(words)
    parts = parts_in((text,))
    assert MOST_PARTS / 2 < len(parts) <= MOST_PARTS
    assert parts[0].start == 0 and parts[-1].end == len(text)
    assert all(a.end < b.start for a, b in zip(parts, parts[1:], strict=False))
    assert without((text,), parts[0])[0].split() == words[len(text[: parts[0].end].split()) :]


def test_the_only_word_of_a_text_stays():
    assert parts_in(("hello",)) == [] and parts_in(("",)) == []
    assert [part.place for part in parts_in(("hello", "to you"))] == [1, 1]


def test_every_form_of_input_loses_its_words():
    question = Question(text="what now", options=("a b", "c"), context="it is")
    assert [without(question, part) for part in parts_in(question)] == [
        msgspec.structs.replace(question, text=" now".strip()),
        msgspec.structs.replace(question, text="what "),
        msgspec.structs.replace(question, context="is"),
        msgspec.structs.replace(question, context="it "),
    ]
    passage = Passage(question="who is", context="ben")
    assert [without(passage, part) for part in parts_in(passage)] == [
        Passage(question="is", context="ben"),
        Passage(question="who ", context="ben"),
    ]
    assert without(("a b c",), parts_in(("a b c",))[1]) == ("a c",)


def test_words_of_their_own_stand_where_they_belong_without_the_others():
    text, words = "the New York lamp", np.array([[0, 3], [4, 12], [13, 17]], np.int32)
    variants = variants_of([(text,)], words=[words])
    assert [entry[0] for entry in variants.inputs] == [text, "New York lamp", "the lamp", "the New York "]
    for entry, own in zip(variants.inputs, variants.words, strict=True):
        kept = [entry[0][start:end] for start, end in own.tolist()]
        assert set(kept) <= {"the", "New York", "lamp"} and len(kept) == len(own) >= 2


def test_attention_is_that_of_the_unfolded_pooler(session):
    """Scores of query and keys, computed here from the arrays as the paper writes them."""
    record, arrays = session.records["mood"], session.arrays("mood").arrays
    by_word = attention_of(session, ["mood"], TEXT)["mood"]
    (encoded,) = session.tokenizer.encode([TEXT])
    states = states_of(session, record.path, encoded)
    heads, width = record.path.pool.heads, states.shape[-1]
    query = arrays["pool.inner_query.weight"] @ arrays["pool.query"] + arrays["pool.inner_query.bias"]
    keys = states @ arrays["pool.key.weight"].T + arrays["pool.key.bias"]
    scores = np.einsum("hk,thk->ht", query.reshape(heads, -1), keys.reshape(len(states), heads, -1))
    weights = np.exp(scores / np.sqrt(width // heads))
    weights = (weights / weights.sum(axis=1, keepdims=True)).mean(axis=0)
    assert sum(word.weight for word in by_word.words) + by_word.elsewhere == pytest.approx(1.0)
    words = words_of(TEXT[0])
    for word, (start, end) in zip(by_word.words, words.tolist(), strict=True):
        inside = (encoded.sequence == 0) & (encoded.offsets[:, 0] >= start) & (encoded.offsets[:, 1] <= end)
        assert word.text == TEXT[0][start:end] and word.weight == pytest.approx(weights[inside].sum(), abs=1e-6)


def states_of(session, path, encoded):
    """The mean of the last two layers, of every token."""
    from polyhead.engine.backends.base import TokenBatch

    ids = encoded.ids[None].astype(np.int64)
    batch = TokenBatch(
        ids=ids,
        mask=np.ones(ids.shape, bool),
        segments=encoded.segments[None].astype(np.int64),
        words=np.full((1, 1), -1),
    )
    (values,) = session.loaded.backend.features([path], batch)
    return values.mean(axis=1)


def test_tasks_without_such_a_pooler_and_pairs_have_their_attention_or_none(session):
    assert attention_of(session, ["names"], TEXT) == {}
    weights = attention_of(session, ["same", "alike"], ("my lamp", "the box is late"))
    joined, apart = weights["same"], weights["alike"]
    assert [word.place for word in joined.words] == [0, 0, 1, 1, 1, 1]
    assert sum(word.weight for word in joined.words) + joined.elsewhere == pytest.approx(1.0)
    assert sum(word.weight for word in apart.words) / 2 + apart.elsewhere == pytest.approx(1.0)


def test_tasks_that_read_the_same_layers_share_a_pass(session, monkeypatch):
    """Three tasks of one text; of two texts one reads both together, and one each separately."""
    backend, passes = type(session.loaded.backend), []
    compute = backend.features
    monkeypatch.setattr(
        backend, "features", lambda self, paths, batch: passes.append(len(paths)) or compute(self, paths, batch)
    )
    tasks = ["mood", "topics", "urgency"]
    alone = {name: attention_of(session, [name], TEXT)[name] for name in tasks}
    assert passes == [1, 1, 1]
    assert attention_of(session, tasks, TEXT) == alone and passes[3:] == [3]
    attention_of(session, ["same", "alike"], ("my lamp", "the box is late"))
    assert passes[4:] == [1, 1, 1]
