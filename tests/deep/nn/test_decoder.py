"""The decoder of a generating head against BART of `transformers`: logits, losses, gradients, and single steps."""

import msgspec
import numpy as np
import pytest
import torch
from transformers.trainer_pt_utils import LabelSmoother

from polyhead.deep.examples import read_before
from polyhead.deep.loop.loss import token_cross_entropy
from polyhead.deep.nn.decoder import TextDecoder, TorchSteps
from polyhead.deep.nn.trunk import Trunk
from polyhead.encoder.decoder import decoder_arrays
from polyhead.encoder.names import decoder_names, trunk_names
from polyhead.engine.generate.search import write
from polyhead.errors import PlanError
from polyhead.project.pretrained import load_trunk
from polyhead.tasks.generation import GenerationRules
from support import summarizers

RULES = GenerationRules(start=2, ends=(2,), pad=1)
PAIRS = [(text, summary + " today" * (index % 3)) for index, (text, summary) in enumerate(summarizers.documents(5))]
SHAPES = {
    "as it is": {},
    "deep, relu": {"decoder_layers": 3, "activation_function": "relu", "decoder_attention_heads": 4},
    "wide, tanh gelu": {"decoder_ffn_dim": 80, "activation_function": "gelu_new", "encoder_layers": 2},
}


@pytest.fixture(scope="module", params=SHAPES.values(), ids=SHAPES)
def pair(request):
    """Our trunk and decoder, and their model with its tokenizer."""
    place = summarizers.folder(config=tuple(request.param.items()))
    data = load_trunk(str(place))
    known = data.decoder()
    ours = TextDecoder(known.shape, data.architecture.width, data.architecture.vocabulary)
    ours.load_state_dict({name.removeprefix("decoder."): torch.tensor(a) for name, a in known.arrays.items()})
    return Trunk.from_data(data), ours.eval(), *summarizers.theirs(place)


def logits_of(trunk, decoder, given):
    mask = given["attention_mask"].bool()
    states = trunk(given["input_ids"], mask).last
    return decoder(read_before(given["labels"], RULES), states, mask, trunk.embeddings.word.weight)


def test_names_of_arrays_are_those_of_the_plan(pair):
    trunk, decoder, *_ = pair
    width, vocabulary = trunk.architecture.width, trunk.architecture.vocabulary
    found = {f"decoder.{name}": tuple(value.shape) for name, value in decoder.state_dict().items()}
    assert found == dict(decoder_arrays(decoder.shape, width, vocabulary))


def test_logits_are_those_of_transformers(pair):
    trunk, decoder, theirs, library = pair
    given = summarizers.batch(library, PAIRS)
    with torch.inference_mode():
        found, wanted = logits_of(trunk, decoder, given), theirs(**given).logits
    kept = given["labels"] != -100
    assert torch.allclose(found[kept], wanted[kept], atol=1e-5)
    assert not bool(kept.all())  # rows are padded


def test_loss_and_gradients_with_smoothing_are_those_of_transformers(pair):
    """Word vectors too, which encoder, decoder and output share."""
    trunk, decoder, theirs, library = pair
    given = summarizers.batch(library, PAIRS)
    trunk.zero_grad(), decoder.zero_grad(), theirs.zero_grad()
    found = token_cross_entropy(logits_of(trunk, decoder, given), given["labels"], None, smoothing=0.1)
    wanted = LabelSmoother(epsilon=0.1)(theirs(**given), given["labels"])
    assert found.item() == pytest.approx(wanted.item(), abs=1e-6)
    found.backward(), wanted.backward()
    ours = dict(trunk.named_parameters()) | {f"decoder.{n}": p for n, p in decoder.named_parameters()}
    names = [name for name, _ in theirs.named_parameters()]
    their = {own: place.name for own, place in trunk_names(names, "bart").items()} | decoder_names(names, "bart")
    gradients = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    assert set(ours) - set(their) == {"decoder.output.bias"}  # a buffer there
    for name, theirs_name in their.items():
        assert torch.allclose(ours[name].grad, gradients[theirs_name], atol=1e-6), name


def test_single_steps_give_the_logits_of_the_whole_text(pair):
    trunk, decoder, _, library = pair
    given = summarizers.batch(library, PAIRS)
    ids, mask, words = read_before(given["labels"], RULES), given["attention_mask"].bool(), trunk.embeddings.word.weight
    with torch.inference_mode():
        states, steps = trunk(given["input_ids"], mask).last, []
        whole, cache = decoder(ids, states, mask, words), decoder.begin(states, mask)
        for place in range(ids.shape[1]):
            logits, cache = decoder.step(ids[:, place, None], cache, words)
            steps.append(logits[:, 0])
    assert torch.allclose(torch.stack(steps, dim=1), whole, atol=1e-5)


def test_beams_go_on_as_their_own_rows(pair):
    """Two beams of each of two texts, which go on with others' beginnings; one text is left out."""
    trunk, decoder, _, library = pair
    given = summarizers.batch(library, PAIRS)
    ids, mask, words = read_before(given["labels"], RULES), given["attention_mask"].bool(), trunk.embeddings.word.weight
    texts, beams = np.array([3, 0]), np.array([7, 6, 1, 1])  # the latter of 5 texts with 2 beams each
    with torch.inference_mode():
        states = trunk(given["input_ids"], mask).last
        steps = TorchSteps(decoder, words)
        cache = steps.begin(states.numpy(), mask.numpy())
        first = torch.stack([ids[:, 0], ids[:, 1]], dim=1)  # another beginning for the second beam
        _, cache = steps.step(first.numpy(), cache)
        after = np.array([[5, 6], [7, 8]])
        found, _ = steps.step(after, cache.only(texts, beams))
        for row, (text, parent) in enumerate(zip(np.repeat(texts, 2), beams, strict=True)):
            own = torch.tensor([[first[parent // 2, parent % 2], after.reshape(-1)[row]]])
            wanted = decoder(own, states[text, None], mask[text, None], words)[0, 1]
            assert np.allclose(found.reshape(4, -1)[row], wanted.numpy(), atol=1e-5)


@pytest.mark.parametrize("beams", [1, 3])
def test_texts_are_those_of_generate(pair, beams):
    trunk, decoder, theirs, library = pair
    given = summarizers.batch(library, PAIRS)
    mask = given["attention_mask"].bool()
    rules = msgspec.structs.replace(RULES, tokens=12, beams=beams, last=(2,))
    with torch.inference_mode():
        states = trunk(given["input_ids"], mask).last.numpy()
        found = write(TorchSteps(decoder, trunk.embeddings.word.weight), states, mask.numpy(), rules)
        for row, written in enumerate(found):
            one = {name: given[name][row, mask[row]][None] for name in ("input_ids", "attention_mask")}
            wanted = theirs.generate(**one, num_beams=beams, do_sample=False, max_new_tokens=12)
            assert written.ids.tolist() == wanted[0, 1:].tolist()


def test_a_text_longer_than_the_table_is_refused(pair):
    trunk, decoder, *_ = pair
    most = decoder.shape.most_tokens
    with pytest.raises(PlanError, match="no positions"):
        decoder(
            torch.zeros(1, most + 1, dtype=torch.long),
            torch.zeros(1, 2, 32),
            torch.ones(1, 2).bool(),
            torch.zeros(9, 32),
        )


def test_a_random_decoder_depends_on_its_generator_alone():
    shape = msgspec.structs.replace(load_trunk(str(summarizers.folder())).decoder().shape, layers=2)
    states = [
        {
            n: v.numpy()
            for n, v in TextDecoder(shape, 32, 50, generator=torch.Generator().manual_seed(s)).state_dict().items()
        }
        for s in (1, 1, 2)
    ]
    torch.manual_seed(0)
    before = torch.get_rng_state()
    TextDecoder(shape, 32, 50)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(np.array_equal(states[0][name], states[1][name]) for name in states[0])
    assert not np.array_equal(states[0]["position.weight"], states[2]["position.weight"])
