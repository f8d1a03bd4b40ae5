"""Strategies for sharing the trunk, one file each: settings, path and training. No torch."""

from __future__ import annotations

from polyhead.project.strategies.base import STRATEGIES, Strategy, prompt_groups, register_strategy
from polyhead.project.strategies.branch import Branch
from polyhead.project.strategies.in_layer import Adapter, InLayer
from polyhead.project.strategies.on_top import OnTop
from polyhead.project.strategies.pooled import Pooled
from polyhead.project.strategies.prompted import Prompted

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
