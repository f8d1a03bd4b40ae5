"""Heads with a decoder: their arrays and work, the paths that may have them, and the rules by which they write."""

import itertools

import msgspec
import pytest
import torch
from transformers import BartConfig, BartForConditionalGeneration

from polyhead.encoder.configs import architecture_of
from polyhead.encoder.decoder import Decoder
from polyhead.errors import ConfigError, PlanError
from polyhead.plan import TRUNK, Embed, Head, Path, Pool, cost, digest, merge, shared_layers
from polyhead.plan.cost.work import WRITTEN, decoder_flops
from polyhead.tasks.generation import GenerationRules, generation_rules
from polyhead.tasks.task import Task
from polyhead.testing import tiny_path, tiny_tasks, tiny_trunk
from polyhead.values import digested

SIZES = {
    "vocab_size": 60,
    "d_model": 24,
    "encoder_layers": 3,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 3,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 52,
    "max_position_embeddings": 30,
}
DECODER = Decoder(layers=2, heads=3, feed_forward=52, positions=32, first_position=2)


def shape_of(**changes):
    config = BartConfig(**{**SIZES, **changes})
    return architecture_of(msgspec.json.encode(config.to_dict()), source="config.json")


def path_of(shape, decoder=DECODER, *, pool=None, **head):
    given = {"kind": "summarization", "width": shape.vocabulary, "part": "task:x", "decoder": decoder, **head}
    pool = pool or Pool(positions="all")
    return Path(nodes=(Embed(trunk="a" * 64), *shared_layers(shape.layers), pool, Head(**given)))


def test_parameters_are_those_of_transformers():
    with torch.device("meta"):
        model = BartForConditionalGeneration(BartConfig(**SIZES))
    shape = shape_of()
    arrays = list(cost.arrays_of_path(path_of(shape), shape))
    decoder = sum(p.numel() for p in model.model.decoder.parameters()) - model.model.shared.weight.numel()
    assert sum(each.size for each in arrays if each.owner != TRUNK) == decoder + SIZES["vocab_size"]
    whole = sum(p.numel() for p in model.parameters())
    assert sum(each.size for each in arrays) == whole + SIZES["vocab_size"]


@pytest.mark.parametrize(("tokens", "steps", "beams"), [(1, 1, 1), (7, 5, 1), (7, 5, 3)])
def test_work_is_that_of_every_product_one_by_one(tokens, steps, beams):
    width, vocabulary, total = 24, 60, 0
    for _ in range(DECODER.layers):
        total += 2 * 2 * tokens * width * width  # keys and values of the states
        for step, _ in itertools.product(range(1, steps + 1), range(beams)):
            total += 2 * 6 * width * width  # four maps of the first half, two of the second
            total += 2 * 2 * step * width + 2 * 2 * tokens * width  # scores and sums over the text, and the states
            total += 2 * 2 * width * DECODER.feed_forward
    total += 2 * steps * beams * width * vocabulary
    assert decoder_flops(DECODER, width, vocabulary, tokens, steps, beams=beams) == total


def test_a_plan_counts_a_text_of_so_many_tokens_and_no_layers_of_the_text():
    shape = shape_of()
    plan, bare = merge({"x": path_of(shape)}), merge({"x": Path(nodes=path_of(shape).nodes[:-1])})
    assert cost.flops(plan, shape, 20) - cost.flops(bare, shape, 20) == decoder_flops(DECODER, 24, 60, 20, WRITTEN)
    assert cost.layer_evaluations(plan) == cost.layer_evaluations(bare) == 3


def test_a_head_without_a_decoder_is_as_it_was():
    """Its record and its digest do not name one, so that older versions read it."""
    trunk = tiny_trunk()
    path = tiny_path(tiny_tasks()[0], trunk, pool=Pool())
    assert "decoder" not in msgspec.to_builtins(path.head) and "decoder" not in digested(path.head)
    assert "generation" not in msgspec.to_builtins(tiny_tasks()[0])
    written = path_of(shape_of())
    assert digest(written, {"task:x": "0" * 64}) != digest(
        path_of(shape_of(), msgspec.structs.replace(DECODER, layers=1)), {"task:x": "0" * 64}
    )


REFUSED = {
    "one vector": ({"pool": Pool(positions="mean")}, "all positions"),
    "layers": ({"pool": Pool(layers="mean", of=2, positions="all")}, "all positions"),
    "hidden": ({"hidden": 4}, "decoder alone"),
    "words": ({"words": 64}, "decoder alone"),
    "separate": ({"separate": True}, "decoder alone"),
    "width": ({"width": 59}, "output for each token"),
    "heads": ({"decoder": msgspec.structs.replace(DECODER, heads=5)}, "multiple of its heads"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_path_that_cannot_write_is_refused(name):
    changes, words = REFUSED[name]
    shape = shape_of()
    with pytest.raises(PlanError, match=words):
        list(cost.arrays_of_path(path_of(shape, **changes), shape))


def test_word_vectors_of_another_width_are_refused():
    shape = msgspec.structs.replace(shape_of(), embedding_width=8)
    with pytest.raises(PlanError, match="word vectors of width 8"):
        list(cost.arrays_of_path(path_of(shape), shape))


@pytest.mark.parametrize(
    "wrong", [{"layers": 0}, {"heads": 0}, {"positions": 2}, {"norm_epsilon": 0.0}, {"first_position": -1}]
)
def test_a_decoder_that_means_nothing_is_refused(wrong):
    with pytest.raises(PlanError, match=next(iter(wrong)) if "position" not in next(iter(wrong)) else "positions"):
        msgspec.structs.replace(DECODER, **wrong)


GIVEN = {"decoder_start_token_id": 2, "eos_token_id": 2, "pad_token_id": 1}
RULES = GenerationRules(start=2, ends=(2,), pad=1)


def test_rules_are_read_as_transformers_means_them():
    assert generation_rules(GIVEN, source="g") == RULES
    lengths = {"max_length": 10, "min_length": 4}
    assert (generation_rules({**GIVEN, **lengths}, source="g").tokens, 3) == (9, 3)
    assert generation_rules({**GIVEN, **lengths}, source="g").least == 3
    newer = {**lengths, "max_new_tokens": 5, "min_new_tokens": 2}
    assert generation_rules({**GIVEN, **newer}, source="g").tokens == 5
    assert generation_rules({**GIVEN, **newer}, source="g").least == 2
    sampled = {"do_sample": True, "temperature": 0.3, "top_p": 0.5}
    assert generation_rules({**GIVEN, **sampled}, source="g") == RULES, "nothing is ever sampled"
    started = {"bos_token_id": 0, "eos_token_id": [2, 3], "pad_token_id": 1}
    assert generation_rules(started, source="g") == GenerationRules(start=0, ends=(2, 3), pad=1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"encoder_no_repeat_ngram_size": 3},
        {"exponential_decay_length_penalty": [3, 1.1]},
        {"penalty_alpha": 0.6},
        {"num_beam_groups": 2},
        {"custom_generate": "some/code"},
        {"renormalize_logits": True},
        {"guidance_scale": 1.5},
    ],
)
def test_a_key_that_cannot_be_honoured_is_refused_by_name(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        generation_rules({**GIVEN, **wrong}, source="generation_config.json")


@pytest.mark.parametrize(
    "wrong",
    [{"num_beams": 0}, {"num_beams": 65}, {"max_length": -1}, {"early_stopping": "soon"}, {"repetition_penalty": 0.0}]
    + [{"length_penalty": float("nan")}, {"eos_token_id": []}, {"bad_words_ids": [[]]}, {"suppress_tokens": [-1]}]
    + [{"num_beams": "two"}, {"max_new_tokens": 0}, {"decoder_start_token_id": None}, {"bad_words_ids": [5]}],
)
def test_values_that_mean_nothing_are_refused_with_the_place(wrong):
    with pytest.raises(ConfigError, match="generation_config.json"):
        generation_rules({**GIVEN, **wrong}, source="generation_config.json")


def test_rules_are_held_against_the_decoder():
    RULES.check(vocabulary=3, most_tokens=128, task="x")
    with pytest.raises(ConfigError, match="no word vector.*Got: 2"):
        RULES.check(vocabulary=2, most_tokens=128, task="x")
    with pytest.raises(ConfigError, match="no positions.*at most 100"):
        RULES.check(vocabulary=3, most_tokens=100, task="x")


def test_only_kinds_that_write_have_rules():
    Task(name="x", kind="summarization", generation=RULES)
    with pytest.raises(ConfigError, match="no use for 'generation'.*summarization"):
        Task(name="x", kind="regression", range=(0.0, 1.0), generation=RULES)
