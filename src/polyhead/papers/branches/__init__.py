"""The study behind Wei et al. 2021 at our scale: its tasks and its runs."""

from polyhead.papers.branches.runs import SEEDS, STUDENTS, TEACHERS, Runs
from polyhead.papers.branches.tasks import TASKS, TRAINING, Size, entries
from polyhead.papers.branches.together import TogetherRuns

__all__ = ["SEEDS", "STUDENTS", "TASKS", "TEACHERS", "TRAINING", "Runs", "Size", "TogetherRuns", "entries"]
