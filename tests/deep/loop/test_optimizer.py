"""AdamW as the loop uses it, beside that of torch, and what it loads."""

import subprocess
import sys

import pytest
import torch

from polyhead.deep.loop.optimizer import adamw
from polyhead.project.recipes import Training

LOADED = """
import sys, torch
from polyhead.deep.loop.optimizer import adamw
from polyhead.project.recipes import Training

layer = torch.nn.Linear(3, 2)
optimizer = adamw(layer, Training(), lambda name: 1.0)
layer(torch.ones(1, 3)).sum().backward()
optimizer.step()
optimizer.zero_grad()
optimizer.load_state_dict(optimizer.state_dict())
print("torch._dynamo" in sys.modules)
"""


def test_an_update_leaves_the_compiler_of_torch_unloaded():
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize("adam", [{}, {"betas": (0.8, 0.95), "epsilon": 1e-3}], ids=["default", "given"])
def test_updates_are_those_of_torch_to_the_bit(adam):
    torch.manual_seed(1)
    one, training = torch.nn.Linear(5, 4), Training(learning_rate=0.01, weight_decay=0.1, **adam)
    other = torch.nn.Linear(5, 4)
    other.load_state_dict(one.state_dict())
    ours = adamw(one, training, lambda name: 1.0)
    groups = [{"params": [other.bias], "weight_decay": 0.0}, {"params": [other.weight], "weight_decay": 0.1}]
    theirs = torch.optim.AdamW(
        groups, lr=0.01, betas=adam.get("betas", (0.9, 0.999)), eps=adam.get("epsilon", 1e-8), fused=True
    )
    inputs = torch.randn(20, 3, 5)
    for batch in inputs:
        for layer, optimizer in ((one, ours), (other, theirs)):
            optimizer.zero_grad(set_to_none=True)
            layer(batch).pow(2).sum().backward()
            optimizer.step()
    assert torch.equal(one.weight, other.weight) and torch.equal(one.bias, other.bias)
