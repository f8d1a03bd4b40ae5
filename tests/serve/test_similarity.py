"""Similarity: its temperature beside a search by scipy, bits that do not depend on neighbours, a bounded cache."""

import asyncio
import itertools

import numpy as np
import pytest
from msgspec import UNSET

from polyhead.engine.receipt import Receipt
from polyhead.errors import BadValue
from polyhead.serve.questions import DecisionQuestion, Option
from polyhead.serve.similarity import (
    CENTRE,
    UNFITTED,
    OptionVector,
    Sample,
    Similarity,
    _cosines,
    fitted_to,
    option_text,
    order_free_softmax,
    words_read,
)
from support.decision_server import PROBES, TEXT, service_of, write_asked


def sample(seed, *, rows=40, labels=5, sharpness=12.0):
    """Cosines, and what a task answers that mostly follows them."""
    rng = np.random.default_rng(seed)
    cosines = rng.uniform(-0.2, 0.6, (rows, labels))
    scores = np.exp(sharpness * cosines + rng.standard_normal((rows, labels)))
    return Sample(cosines=cosines, shares=scores / scores.sum(axis=1, keepdims=True))


def entropy(samples, sharpness):
    """The cross-entropy that the fit makes small, in its plain form."""
    total = 0.0
    for each in samples:
        logits = sharpness * each.cosines
        logs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        total -= (each.shares * logs).sum(axis=1).mean() / np.log(each.cosines.shape[1])
    return total


def test_temperature_is_the_one_that_a_search_finds():
    optimize = pytest.importorskip("scipy.optimize")
    samples = {"a": sample(0), "b": sample(1, labels=3, sharpness=30.0), "c": sample(2, rows=7, labels=2)}
    found = optimize.minimize_scalar(
        lambda sharpness: entropy(samples.values(), sharpness), bounds=(1, 200), method="bounded"
    )
    fit = fitted_to(samples)
    assert 1 / fit.temperature == pytest.approx(found.x, rel=1e-4)
    said_to_hold = [
        (1 / (1 + np.exp(-(each.cosines - fit.centre) / fit.temperature))).mean() for each in samples.values()
    ]
    assert np.mean(said_to_hold) == pytest.approx(np.mean([each.shares.mean() for each in samples.values()]))
    assert fit.tasks == ("a", "b", "c")


def test_temperature_is_flat_where_words_say_nothing_of_the_answers():
    each = sample(0)
    assert fitted_to({"a": Sample(cosines=-each.cosines, shares=each.shares)}).temperature == pytest.approx(1, abs=1e-6)


def test_bundle_without_tasks_in_words_has_the_measured_temperature():
    fit = fitted_to({})
    assert (fit.temperature, fit.centre, fit.tasks) == (UNFITTED, CENTRE, ())


def test_service_fits_on_its_tasks_with_labels_over_one_text(tmp_path):
    """By hand: cosines of the probes' and labels' mean vectors, and the answers of a session."""
    service = service_of(write_asked(tmp_path / "bundle"), unknown="similarity")
    try:
        service.similarity.fit(service.queue, service.session.bundle)
        assert service.similarity.fitted.tasks == ("mood", "broken", "topics", "anger")
        session, samples = service.session, {}
        texts = [probe["text"][0] for probe in PROBES]
        for name in service.similarity.fitted.tasks:
            labels = session.tasks[name].labels
            read = [*texts, *(f"{name} {label}" for label in labels)]
            vectors = np.stack(session.outputs(service.vectors, [(text,) for text in read])).astype(np.float64)
            vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
            answers = [result.answers[name]["scores"] for result in session.predict(texts, tasks=[name])]
            shares = np.array([[answer[label] for label in labels] for answer in answers])
            cosines = vectors[: len(texts)] @ vectors[len(texts) :].T
            samples[name] = Sample(cosines=cosines, shares=shares / shares.sum(axis=1, keepdims=True))
        assert service.similarity.fitted.temperature == pytest.approx(fitted_to(samples).temperature, rel=1e-4)
        assert service.similarity.fitted.centre == pytest.approx(fitted_to(samples).centre, abs=1e-6)
    finally:
        service.queue.close()


def test_softmax_has_the_same_bits_in_any_order():
    numbers = (0.1, 3.7, -2.0, 3.6999, 1e-9)
    wanted = dict(zip(numbers, order_free_softmax(numbers), strict=True))
    for order in itertools.permutations(numbers):
        assert dict(zip(order, order_free_softmax(order), strict=True)) == wanted


@pytest.mark.parametrize("width", [16, 384, 1000])
def test_cosine_has_the_same_bits_alone_and_among_others(width):
    rng = np.random.default_rng(0)
    options, text = rng.standard_normal((255, width)).astype(np.float32), rng.standard_normal(width).astype(np.float32)
    among = _cosines(options, text)
    np.testing.assert_allclose(among, options.astype(np.float64) @ text, rtol=1e-9)
    for number in (0, 1, 7, 254):
        assert _cosines(options[number : number + 1], text)[0] == among[number]
        assert _cosines(options[number:], text)[0] == among[number]


def choice(*options, instructions="Which one?"):
    given = tuple(Option(value=value, words=words) for value, words in options)
    return DecisionQuestion(name="q", form="choice", instructions=instructions, options=given)


def predicate(instructions, holds="", fails=""):
    sides = (Option(value=True, words=holds), Option(value=False, words=fails))
    return DecisionQuestion(name="q", form="predicate", instructions=instructions, options=sides)


def test_words_of_options_follow_the_instructions():
    asked = choice(("card_lost", "the card is gone"), ("other", ""))
    assert words_read(asked) == ("Which one? card lost: the card is gone", "Which one? other")
    assert words_read(choice((True, ""), (False, ""), instructions="")) == ("true", "false")
    assert words_read(predicate("Is it late?")) == ("Is it late?",)
    assert words_read(predicate("Is it late?", "late", "in time")) == ("Is it late? late", "Is it late? in time")
    assert words_read(predicate("", fails="in time")) == ("in time",)
    assert words_read(choice(("ill-humoured", ""), ("-1", ""), instructions="")) == ("ill humoured", "-1")
    assert option_text("", "", "x") == "x"


@pytest.mark.parametrize(
    "asked", [predicate(""), choice(("", ""), ("a", ""), instructions="")], ids=["yes-no", "choice"]
)
def test_question_without_words_is_refused(asked):
    with pytest.raises(BadValue, match="no words to compare"):
        words_read(asked)


def vector(*numbers):
    return OptionVector(vector=np.array(numbers, np.float32), tokens=1)


def test_probabilities_by_hand():
    """A text of direction (1, 0): cosines 1 and 0 with the options, 0.6 with the statement."""
    similarity, text = Similarity("v", "t"), np.array([5.0, 0.0], np.float32)
    options = {"a": vector(1, 0), "b": vector(0, 1), "s": vector(0.6, 0.8)}
    asked = choice(("a", ""), ("b", ""), instructions="")
    odds = np.exp(1 / UNFITTED)
    assert similarity.probabilities(asked, text, options) == pytest.approx((odds / (1 + odds), 1 / (1 + odds)))
    holds = 1 / (1 + np.exp(-(0.6 - CENTRE) / UNFITTED))
    assert similarity.probabilities(predicate("s"), text, options) == pytest.approx((holds, 1 - holds), rel=1e-6)
    assert similarity.probabilities(predicate("", fails="s"), text, options) == pytest.approx(
        (1 - holds, holds), rel=1e-6
    )


class _Read:
    """A ticket with a vector for each text."""

    def __init__(self, count):
        receipt = Receipt(passes=1, layers=2, tokens=5)
        self.results = [type("R", (), {"receipt": receipt})()] * count
        self.outputs = [{"v": np.array([1.0, 2.0], np.float32)}] * count


def test_vectors_are_kept_up_to_a_bound_the_last_used_first():
    similarity = Similarity("v", "trunk", kept=2)
    read = similarity.learned(["a", "b"], _Read(2))
    assert read["a"].receipt.tokens == 5 and similarity.known(["a", "b"])[1] == []
    similarity.known(["a"])  # used after b
    similarity.learned(["c"], _Read(1))
    known, unread = similarity.known(["a", "b", "c"])
    assert unread == ["b"] and known["a"].receipt is None and known["a"].tokens == 5


def test_vectors_of_another_trunk_are_not_used():
    one, other = Similarity("v", "trunk"), Similarity("v", "other")
    one.learned(["a"], _Read(1))
    other._kept = one._kept
    assert other.known(["a"])[1] == ["a"]


def test_options_are_read_once_and_the_text_each_time(tmp_path):
    """Receipts: one pass of the text for all questions; options cost passes only at first."""
    from polyhead.serve.decide import decide_request

    service = service_of(write_asked(tmp_path / "bundle"), unknown="similarity")
    questions = [
        DecisionQuestion(
            name="mood.good", form="predicate", instructions="", options=(Option(value=True), Option(value=False))
        ),
        choice(("bill", ""), ("card", "")),
        choice(("bill", ""), ("phone", "")),
    ]

    async def twice():
        await service.start()
        first = await decide_request(service, TEXT, questions)
        second = await decide_request(service, TEXT, questions)
        await service.stop()
        return first, second

    first, second = asyncio.run(twice())
    assert [answer.answered_by for answer in first.answers] == ["task", "similarity", "similarity"]
    assert (first.receipt.passes, first.receipt.layers, first.receipt.options.passes) == (1, 2, 3)  # bill, card, phone
    assert second.receipt.passes == 1 and second.receipt.options is UNSET
    assert second.options_kept == first.options_read > 0 == second.options_read
    assert first.input_tokens == second.input_tokens
    assert [answer.probabilities for answer in first.answers] == [answer.probabilities for answer in second.answers]
