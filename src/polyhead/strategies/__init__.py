"""Strategies, one file each: settings, path and training of a way of sharing the trunk. Light: no torch."""

from __future__ import annotations

from polyhead.strategies.base import STRATEGIES, Strategy, prompt_groups, register_strategy
from polyhead.strategies.branch import Branch
from polyhead.strategies.in_layer import Adapter, InLayer
from polyhead.strategies.on_top import OnTop
from polyhead.strategies.pooled import Pooled
from polyhead.strategies.prompted import Prompted

__all__ = [
    "STRATEGIES",
    "Adapter",
    "Branch",
    "InLayer",
    "OnTop",
    "Pooled",
    "Prompted",
    "Strategy",
    "prompt_groups",
    "register_strategy",
]

for _strategy in (Pooled, Branch, Prompted, InLayer, OnTop):
    register_strategy(_strategy)
