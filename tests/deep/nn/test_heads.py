import math

import numpy as np
import pytest
import torch

from polyhead.deep.nn.heads import OutputHead


def test_head_with_a_hidden_layer_is_the_papers_formula():
    """`y = U tanh(W z + b) + u` in numpy."""
    head = OutputHead(4, 3, hidden=5, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        head.hidden.bias.copy_(torch.arange(5.0))
        head.output.bias.copy_(torch.arange(3.0))
    z = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)
    a = {name: value.numpy() for name, value in head.state_dict().items()}
    expected = np.tanh(z @ a["hidden.weight"].T + a["hidden.bias"]) @ a["output.weight"].T + a["output.bias"]
    np.testing.assert_allclose(head(torch.from_numpy(z)).detach().numpy(), expected, atol=1e-6)


@pytest.mark.parametrize("name", ["tanh", "relu", "gelu"])
def test_the_hidden_layers_activation_is_the_one_asked_for(name):
    """Against numpy; `gelu` by the error function, which its approximation misses by 5e-4."""
    formulas = {
        "tanh": np.tanh,
        "relu": lambda x: np.where(x > 0, x, 0),
        "gelu": lambda x: x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
    }
    head = OutputHead(4, 3, hidden=5, activation=name, generator=torch.Generator().manual_seed(0))
    z = np.linspace(-4, 4, 8, dtype=np.float32).reshape(2, 4)
    a = {key: value.numpy() for key, value in head.state_dict().items()}
    expected = formulas[name](z @ a["hidden.weight"].T) @ a["output.weight"].T
    np.testing.assert_allclose(head(torch.from_numpy(z)).detach().numpy(), expected, atol=1e-6)


def test_parameters_are_the_papers_count():
    """Du et al. 2020: 1,051,650 at width 1024 and two classes."""
    assert sum(p.numel() for p in OutputHead(1024, 2, hidden=1024).parameters()) == 1_051_650


def test_linear_head_has_no_hidden_arrays():
    assert set(OutputHead(4, 3).state_dict()) == {"output.weight", "output.bias"}
    assert set(OutputHead(4, 3, bias=False, hidden=2).state_dict()) == {"hidden.weight", "hidden.bias", "output.weight"}


def test_head_reads_words_as_it_reads_texts():
    head = OutputHead(4, 3, hidden=5)
    words = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(head(words)[1, 2], head(words[1, 2]))


def test_same_generator_gives_the_same_head_and_touches_nothing_global():
    before = torch.random.get_rng_state()
    first, again = (OutputHead(4, 3, hidden=5, generator=torch.Generator().manual_seed(9)) for _ in range(2))
    other = OutputHead(4, 3, hidden=5, generator=torch.Generator().manual_seed(10))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(first.hidden.weight, again.hidden.weight)
    assert not torch.equal(first.hidden.weight, other.hidden.weight)
    assert not first.hidden.bias.any()


def test_dropout_acts_in_training_mode_only():
    head = OutputHead(4, 3, dropout=0.9, generator=torch.Generator().manual_seed(0))
    z = torch.ones(5, 4)
    assert torch.equal(head.eval()(z), head(z))
    torch.manual_seed(0)
    assert not torch.equal(head.train()(z), head.eval()(z))
