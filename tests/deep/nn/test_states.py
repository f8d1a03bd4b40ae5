import pytest
import torch

from polyhead.deep.nn.trunk import States
from polyhead.errors import PlanError


@pytest.fixture
def states():
    hidden = tuple(torch.full((3, 2, 4), float(i)) for i in range(2, 5))
    return States(hidden=hidden, mask=torch.ones(3, 2, dtype=torch.bool), first=2)


def test_layers_are_found_by_absolute_index(states):
    assert [float(states.layer(i)[0, 0, 0]) for i in (2, 3, 4)] == [2, 3, 4]
    assert states.depth == 4
    assert states.last is states.layer(4)


@pytest.mark.parametrize("index", [-1, 0, 1, 5])
def test_layer_outside_the_range_names_the_range(states, index):
    with pytest.raises(PlanError, match="2 to 4") as raised:
        states.layer(index)
    assert raised.value.got == index


@pytest.mark.parametrize("depth", [2, 3, 4])
def test_states_up_to_a_layer_end_there_and_start_where_they_did(states, depth):
    less = states.upto(depth)
    assert (less.first, less.depth, less.mask is states.mask) == (2, depth, True)
    assert less.last is states.layer(depth) and less.layer(2) is states.layer(2)


@pytest.mark.parametrize("depth", [0, 1, 5])
def test_states_up_to_a_layer_that_is_not_there_are_refused_with_the_range(states, depth):
    with pytest.raises(PlanError, match="2 to 4") as raised:
        states.upto(depth)
    assert raised.value.got == depth


def test_rows_pick_the_same_rows_of_every_layer(states):
    marked = States(hidden=tuple(h + torch.arange(3)[:, None, None] for h in states.hidden), mask=states.mask, first=2)
    picked = marked.rows([2, 0])
    assert [h[:, 0, 0].tolist() for h in picked.hidden] == [[4, 2], [5, 3], [6, 4]]
    assert picked.first == 2
    assert picked.mask.shape == (2, 2)


def test_states_without_any_layer_are_refused(states):
    with pytest.raises(PlanError):
        States(hidden=(), mask=states.mask)
