"""The decoder of a generating head against BART of `transformers`: logits, losses, gradients, and single steps."""

import msgspec
import numpy as np
import pytest
import torch
from transformers.trainer_pt_utils import LabelSmoother

from polyhead.deep.examples import read_before
from polyhead.deep.loop.loss import token_cross_entropy
from polyhead.deep.nn.decoder import TextDecoder
from polyhead.deep.nn.trunk import Trunk
from polyhead.encoder.decoder import decoder_arrays
from polyhead.encoder.names import decoder_names, trunk_names
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
        states = trunk(given["input_ids"], mask).last
        whole, written = decoder(ids, states, mask, words), decoder.begin(states, mask)
        steps = torch.stack([decoder.step(ids[:, i], written, words) for i in range(ids.shape[1])], dim=1)
    assert torch.allclose(steps, whole, atol=1e-5)


def test_rows_in_another_order_go_on_as_their_own(pair):
    trunk, decoder, _, library = pair
    given = summarizers.batch(library, PAIRS)
    ids, mask, words = read_before(given["labels"], RULES), given["attention_mask"].bool(), trunk.embeddings.word.weight
    order = torch.tensor([3, 3, 0])
    with torch.inference_mode():
        states = trunk(given["input_ids"], mask).last
        whole, written = decoder(ids, states, mask, words), decoder.begin(states, mask)
        decoder.step(ids[:, 0], written, words)
        written.take(order)
        assert torch.allclose(decoder.step(ids[order, 1], written, words), whole[order, 1], atol=1e-5)


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
