"""Recipes: which arrays learn, from which tasks, how often and how much. Light: checked values, no tensors.

`frozen` trains parts over a frozen trunk, so that tasks come and go. `donors` does so for prompts, each task in an
input of its own, as a start for other runs. `joint` trains trunk and parts together, which makes another trunk; its
tasks are then a bundle of their own, or are dropped and the trunk serves as a better frozen one. `leave_out` makes such
trunks without some of the tasks, for those. `fine_tune` makes each task a trunk of its own.
"""

from polyhead.config import Value
from polyhead.project.recipes.fine_tune import Candidate, FineTune, Search
from polyhead.project.recipes.joint import (
    ONE_TASK,
    Joint,
    Parallel,
    Sampling,
    SamplingKind,
    Scheme,
    Smoothing,
    TrunkOnly,
    Weighting,
)
from polyhead.project.recipes.leave_out import LeaveOut, Round
from polyhead.project.recipes.training import Schedule, Training


class Frozen(Value, tag="frozen", tag_field="kind"):
    """Parts only: the trunk stays as it is, and so do the answers of all other tasks."""


class Donors(Value, tag="donors", tag_field="kind"):
    """Each prompted task alone over the frozen trunk, as a start for runs in which prompts stand in one input.

    Epochs and rate are the strategy's `donor_epochs` and `donor_learning_rate` (paper 002, single-task prompts).
    """


Recipe = Frozen | Donors | Joint | LeaveOut | FineTune

__all__ = [
    "ONE_TASK",
    "Candidate",
    "Donors",
    "FineTune",
    "Frozen",
    "Joint",
    "LeaveOut",
    "Parallel",
    "Recipe",
    "Round",
    "Sampling",
    "SamplingKind",
    "Scheme",
    "Schedule",
    "Search",
    "Smoothing",
    "Training",
    "TrunkOnly",
    "Weighting",
]
