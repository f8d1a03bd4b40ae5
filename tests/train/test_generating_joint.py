"""A task that writes in the mixture of the joint recipe: its loss over ln V, R3F, and what learns of a step."""

import math

import msgspec
import numpy as np
import pytest
import torch
from torch.nn import functional
from transformers.trainer_pt_utils import LabelSmoother

from polyhead.deep.loop import fit
from polyhead.deep.recipes.joint_loop import JointLoop
from polyhead.deep.recipes.paths import joint_paths
from polyhead.errors import ConfigError
from polyhead.project.recipes import Joint, Smoothing, Weighting
from polyhead.train.data.encoder import load_any_trunk
from polyhead.train.data.prepare import prepare, with_decoders
from polyhead.train.runs import ProcessRank
from support import summarizers, writing

pytest.importorskip("rouge_score")

PLAIN = Joint(micro_batches=2, layer_dropout=0.0)
NUMBERS = msgspec.structs.replace(writing.QUICK, learning_rate=2e-3)


def course_of(folder, recipe=PLAIN, *, training=NUMBERS, checkpoint=None, place=None, **generation):
    brief = writing.entry(folder, count=12, **generation)
    made = writing.project(folder, writing.mood(folder), count=12, recipe=recipe, **generation)
    assert brief.kind == "summarization"
    data = load_any_trunk(made, folder)
    several = [msgspec.structs.replace(p, training=training) for p in prepare(made, folder)]
    several = with_decoders(several, data)
    paths = joint_paths(several, data, recipe)
    named = {"training": training, "precision": "float32", "checkpoint": checkpoint, "place": place}
    return JointLoop(several, paths, data, recipe, **named)


def given_to(loop, piece):
    """The same documents and summaries as `transformers` would be given."""
    examples = next(p for p in loop.prepared.values() if p.task.name == "brief").train.examples
    theirs, library = summarizers.theirs(summarizers.folder())
    pairs = [(examples.inputs[i][0], str(examples.targets[i][0])) for i in piece.members]
    return theirs, summarizers.batch(library, pairs)


@pytest.mark.parametrize("scaled", [True, False])
def test_the_loss_is_the_smoothed_one_of_transformers_over_ln_v(tmp_path, scaled):
    recipe = msgspec.structs.replace(PLAIN, weighting=Weighting(scaled=scaled))
    loop = course_of(tmp_path, recipe, smoothing=0.1)
    piece = loop.examples["brief"].batch(np.arange(5))
    theirs, given = given_to(loop, piece)
    with torch.no_grad():
        wanted = LabelSmoother(epsilon=0.1)(theirs(**given), given["labels"]).item()
        found = loop.loss("brief", piece).item()
    assert found == pytest.approx(wanted / (math.log(loop.data.architecture.vocabulary) if scaled else 1), abs=1e-6)


def test_a_uniform_guess_scores_one_beside_a_classification_that_does(tmp_path):
    loop = course_of(tmp_path)
    piece = loop.examples["brief"].batch(np.arange(5))
    shape = (*piece.targets.shape, loop.data.architecture.vocabulary)
    assert loop.objective("brief", torch.zeros(shape), piece).item() == pytest.approx(1.0)
    other = loop.examples["mood"].batch(np.arange(5))
    assert loop.objective("mood", torch.zeros(5, 2), other).item() == pytest.approx(1.0)


@pytest.mark.parametrize("noise", ["uniform", "normal"])
def test_r3f_is_the_divergence_of_the_decoder_s_answers_to_a_noisy_text(tmp_path, noise):
    """By torch's own divergence, from the logits of `transformers` for the same noise on the encoder's word vectors."""
    recipe = msgspec.structs.replace(PLAIN, smoothing=Smoothing(noise=noise, size=0.2, weight=0.7))
    loop = course_of(tmp_path, recipe)
    piece = loop.examples["brief"].batch(np.arange(5))
    theirs, given = given_to(loop, piece)
    torch.manual_seed(3)
    with torch.no_grad():
        found = loop.loss.eval()("brief", piece).item()
    torch.manual_seed(3)
    words = theirs.model.shared(given["input_ids"])
    drawn = torch.empty(words.shape)
    drawn = drawn.uniform_(-0.2, 0.2) if noise == "uniform" else drawn.normal_(0.0, 0.2)
    labels, mask = given["labels"], given["attention_mask"]
    with torch.no_grad():
        plain = theirs(**given)
        read = theirs.prepare_decoder_input_ids_from_labels(labels)
        noisy = theirs(inputs_embeds=words + drawn, attention_mask=mask, decoder_input_ids=read).logits
    total = 0.0
    for p, q in zip(plain.logits[labels != -100].log_softmax(-1), noisy[labels != -100].log_softmax(-1), strict=True):
        for one, other in ((p, q), (q, p)):
            total += functional.kl_div(other, one, log_target=True, reduction="sum").item()
    count = int((labels != -100).sum())
    wanted = (plain.loss.item() + 0.7 * total / count) / math.log(loop.data.architecture.vocabulary)
    assert found == pytest.approx(wanted, abs=1e-5) and total / count > 1e-3


def test_a_step_of_each_task_trains_the_encoder_and_its_own_part(tmp_path):
    loop = course_of(tmp_path)
    model = loop.module.model
    for task, other in (("brief", "mood"), ("mood", "brief")):
        loop.loss.zero_grad(set_to_none=True)
        loop.loss(task, loop.examples[task].batch(np.arange(4))).backward()
        without = {name for name, value in model.parts[task].named_parameters() if value.grad is None}
        assert without <= {"pool.key.bias"}  # which cancels
        assert all(value.grad is None for value in model.parts[other].parameters())
        assert all(value.grad is not None for value in model.trunk.parameters())


def test_word_vectors_learn_as_the_decoder_s_input_and_output_too(tmp_path):
    """A token that no document has gets a gradient through the output alone."""
    loop = course_of(tmp_path)
    piece = loop.examples["brief"].batch(np.arange(4))
    theirs, given = given_to(loop, piece)
    loop.loss("brief", piece).backward()
    theirs(**given).loss.backward()
    wanted = theirs.model.shared.weight.grad / math.log(loop.data.architecture.vocabulary)
    assert torch.allclose(loop.module.words.grad, wanted, atol=1e-6)


def test_it_learns_in_the_mixture_and_a_stopped_run_goes_on(tmp_path, monkeypatch):
    training = msgspec.structs.replace(NUMBERS, epochs=4, dropout=0.1)
    recipe = msgspec.structs.replace(PLAIN, layer_dropout=0.1, smoothing=Smoothing(size=0.1))
    whole = course_of(tmp_path, recipe, training=training).learn()
    assert set(whole.validation) == {"mood", "brief"} and "rouge_l" in whole.validation["brief"]
    assert whole.fitted.history[3]["loss"] < whole.fitted.history[0]["loss"]
    monkeypatch.setattr(fit, "SAVE_SECONDS", 0.0)
    stopped = course_of(tmp_path, recipe, training=training, checkpoint=tmp_path / "one.checkpoint")
    scores, counted = stopped.scores, []

    def stopping():
        counted.append(1)
        if len(counted) == 3:
            raise KeyboardInterrupt
        return scores()

    stopped.scores = stopping
    with pytest.raises(KeyboardInterrupt):
        stopped.learn()
    again = course_of(tmp_path, recipe, training=training, checkpoint=tmp_path / "one.checkpoint").learn()
    assert again.data.digest == whole.data.digest != stopped.data.digest
    for task, arrays in whole.arrays.items():
        assert all(np.array_equal(arrays[name], again.arrays[task][name]) for name in arrays)


def test_heads_that_learn_first_are_those_that_write_too(tmp_path):
    recipe = msgspec.structs.replace(PLAIN, head_epochs=2)
    loop = course_of(tmp_path, recipe, training=msgspec.structs.replace(NUMBERS, epochs=1))
    before = {name: value.clone() for name, value in loop.module.model.parts["brief"].state_dict().items()}
    learned = loop.learn()
    assert any(not np.array_equal(before[name].numpy(), array) for name, array in learned.arrays["brief"].items())


def test_what_a_tied_output_cannot_do_is_refused(tmp_path):
    spectral = msgspec.structs.replace(PLAIN, smoothing=Smoothing(spectral=True))
    with pytest.raises(ConfigError, match="spectral"):
        course_of(tmp_path, spectral)
    sharded = msgspec.structs.replace(PLAIN, parallel="fsdp")
    with pytest.raises(ConfigError, match="decoders"):
        course_of(tmp_path, sharded, place=ProcessRank(rank=0, world=2))
