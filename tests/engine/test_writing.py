"""Texts that a decoder writes, against `generate` of `transformers`: the same tokens under every rule."""

from functools import partial

import numpy as np
import pytest
import torch

from polyhead.encoder.decoder import decoder_arrays
from polyhead.encoder.shape import WORD_VECTORS
from polyhead.engine.backends import open_backend
from polyhead.engine.backends.reference.decoder import ReferenceDecoder
from polyhead.engine.compile.decoder import GraphDecoder, begin_graph, step_graph
from polyhead.engine.generate.search import write
from polyhead.engine.probes import has_bfloat16
from polyhead.errors import BackendError
from polyhead.tasks.generation import GenerationRules, generation_rules
from polyhead.testing import tiny_trunk, tiny_writing
from support.numpy_graphs import NumpyRuntime
from support.writing_models import (
    VOCABULARY,
    decoder_of,
    decoder_parts,
    documents,
    generated,
    small_bart,
    states_of,
    words_of,
)

RULES = {
    "greedy": {},
    "length": {"min_new_tokens": 6},
    "old lengths": {"max_length": 9, "min_length": 5, "max_new_tokens": None},
    "no repeats": {"no_repeat_ngram_size": 2},
    "single tokens": {"no_repeat_ngram_size": 1},
    "penalty": {"repetition_penalty": 1.7},
    "reward": {"repetition_penalty": 0.6},
    "forced": {"forced_bos_token_id": 7, "forced_eos_token_id": 2},
    "bad words": {"bad_words_ids": [[5], [6, 8], [2], [9, 10, 11]]},
    "suppressed": {"suppress_tokens": [4, 5, 6]},
    "two ends": {"eos_token_id": [2, 11]},
    "all": {"no_repeat_ngram_size": 3, "min_length": 4, "repetition_penalty": 1.2, "forced_bos_token_id": 0},
}
SEARCHES = {
    "two": {"num_beams": 2},
    "early": {"num_beams": 3, "early_stopping": True},
    "never": {"num_beams": 4, "early_stopping": "never", "length_penalty": 0.5},
    "never, short": {"num_beams": 3, "early_stopping": "never", "length_penalty": -1.0},
    "long": {"num_beams": 5, "length_penalty": 2.0},
    "short": {"num_beams": 2, "length_penalty": -0.5, "early_stopping": True},
}


def reference(model):
    return ReferenceDecoder(decoder_of(model), decoder_parts(model), words_of(model))


def rules_of(**settings):
    given = {"decoder_start_token_id": 2, "eos_token_id": 2, "pad_token_id": 1, "max_new_tokens": 12, **settings}
    return generation_rules(given, source="test")


def check(model, step, seed, **settings):
    ids, mask = documents(seed)
    settings = {"forced_eos_token_id": None, "max_new_tokens": 12, **settings}
    expected = generated(model, ids, mask, **{k: v for k, v in settings.items() if v is not None or "eos" in k})
    written = write(step, states_of(model, ids, mask), mask, rules_of(**settings))
    assert [text.ids.tolist() for text in written] == expected


def test_arrays_of_a_checkpoint_are_those_of_the_decoder():
    model = small_bart(0)
    expected = dict(decoder_arrays(decoder_of(model), 16, VOCABULARY))
    assert {name: array.shape for name, array in decoder_parts(model).items()} == expected


def test_scores_are_those_of_the_model():
    model, (ids, mask) = small_bart(1), documents(1)
    read = np.random.default_rng(0).integers(0, VOCABULARY, (len(ids), 5))
    with torch.inference_mode():
        expected = model(
            input_ids=torch.from_numpy(ids),
            attention_mask=torch.from_numpy(mask).long(),
            decoder_input_ids=torch.from_numpy(read),
        ).logits.numpy()
    step = reference(model)
    cache = step.begin(states_of(model, ids, mask), mask)
    for token in range(read.shape[1]):
        scores, cache = step.step(read[:, token : token + 1], cache)
        np.testing.assert_allclose(scores[:, 0], expected[:, token], atol=1e-4)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("beams", [1, 3])
def test_a_text_is_written_by_every_rule_as_generate_writes_it(name, beams):
    for seed in range(4):
        model = small_bart(seed)
        check(model, reference(model), seed, num_beams=beams, **RULES[name])


@pytest.mark.parametrize("seeds", [range(3), pytest.param(range(3, 10), marks=pytest.mark.slow)], ids=["few", "more"])
@pytest.mark.parametrize("name", SEARCHES)
def test_beams_are_searched_as_generate_searches_them(name, seeds):
    for seed in seeds:
        model = small_bart(100 + seed)
        check(model, reference(model), seed, **SEARCHES[name])


def test_a_token_that_scores_no_number_is_no_answer_and_touches_no_other_text():
    model, (ids, mask) = small_bart(5), documents(5)
    states = states_of(model, ids, mask)
    alone = write(reference(model), states, mask, rules_of(num_beams=2))
    states[1] = np.nan
    first, wrong, last = write(reference(model), states, mask, rules_of(num_beams=2))
    assert isinstance(wrong.error, BackendError)
    assert [first.ids.tolist(), last.ids.tolist()] == [alone[0].ids.tolist(), alone[2].ids.tolist()]


def test_a_text_that_is_late_is_not_there():
    model, (ids, mask), asked = small_bart(5), documents(5), iter(range(100))
    rules = rules_of(min_new_tokens=8)
    written = write(reference(model), states_of(model, ids, mask), mask, rules, is_late=lambda: next(asked) == 5)
    assert written == [None, None, None]


def runtimes():
    from polyhead.engine.backends.onnx import OnnxRuntime
    from polyhead.engine.backends.openvino import OpenVINORuntime

    return {
        "numpy": NumpyRuntime,
        "onnxruntime": OnnxRuntime,
        "openvino": partial(OpenVINORuntime, precision="float32"),
    }


@pytest.mark.parametrize("name", ["numpy", "onnxruntime", "openvino"])
def test_graphs_with_kept_keys_and_values_write_the_same(name):
    runtime = runtimes()[name]()
    for seed, beams in ((0, 1), (1, 3), (2, 2)):
        model = small_bart(seed, activation_function=("gelu", "relu", "gelu_new")[seed])
        decoder, arrays, words = decoder_of(model), decoder_parts(model), words_of(model)
        begin = runtime.compile(begin_graph(decoder, arrays), label="begin", layers=False)
        step = runtime.compile(step_graph(decoder, arrays, words[WORD_VECTORS]), label="step", layers=False)
        graphs = GraphDecoder(decoder, arrays, words, begin=begin, step=step)
        # more tokens than there is room for at first
        check(model, graphs, seed, num_beams=beams, max_new_tokens=40, min_new_tokens=20, no_repeat_ngram_size=3)


def test_decoders_write_in_float32_where_the_encoder_is_in_bfloat16():
    """A step in bfloat16 wrote 31 of 36 texts as `generate` does, one in float32 all of them."""
    from polyhead.engine.backends.openvino import OpenVINORuntime

    if not has_bfloat16("openvino"):
        pytest.skip("openvino has no bfloat16 on this processor")
    runtime = OpenVINORuntime(precision="bfloat16")
    for seed in (0, 3, 5, 7):
        model = small_bart(seed)
        decoder, arrays, words = decoder_of(model), decoder_parts(model), words_of(model)
        builds = begin_graph(decoder, arrays), step_graph(decoder, arrays, words[WORD_VECTORS])
        begin, step = (runtime.compile(build, label="decoder", layers=False, exact=True) for build in builds)
        check(model, GraphDecoder(decoder, arrays, words, begin=begin, step=step), seed, num_beams=2)


def test_a_backend_in_bfloat16_asks_for_exact_decoders():
    if not has_bfloat16("openvino"):
        pytest.skip("openvino has no bfloat16 on this processor")
    trunk = tiny_trunk()
    _, loaded = tiny_writing(trunk)
    states, mask = np.random.default_rng(0).standard_normal((2, 5, trunk.architecture.width)), np.ones((2, 5), bool)
    scores = []
    for name, precision in (("reference", "float32"), ("openvino", "bfloat16")):
        step = open_backend(name, trunk, {"brief": loaded}, precision=precision).decoder("brief")
        cache = step.begin(states.astype(np.float32), mask)
        for ids in ([[5], [6]], [[7], [8]]):
            found, cache = step.step(np.array(ids), cache)
            scores.append(found)
    np.testing.assert_allclose(scores[2:], scores[:2], atol=1e-4)


def test_the_rules_of_a_model_are_those_that_it_was_saved_with():
    model = small_bart(3)
    model.generation_config.update(num_beams=3, max_length=10, no_repeat_ngram_size=2, early_stopping=True)
    rules = generation_rules(model.generation_config.to_dict(), source="test")
    assert rules == GenerationRules(
        start=2, ends=(2,), pad=1, last=(2,), tokens=9, beams=3, early_stopping="yes", no_repeat=2
    )
    ids, mask = documents(3)
    written = write(reference(model), states_of(model, ids, mask), mask, rules)
    assert [text.ids.tolist() for text in written] == generated(model, ids, mask)
