"""Executors of a job's units: this process, several processes, or a Ray cluster, one file each."""

from polyhead.store.jobs.executors.base import EXECUTORS, Executor, Inline, register_executor
from polyhead.store.jobs.executors.processes import Processes
from polyhead.store.jobs.executors.ray import Ray

__all__ = ["CLUSTER", "EXECUTORS", "Executor", "HERE", "SEVERAL", "register_executor"]

for _executor in (Inline, Processes, Ray):
    register_executor(_executor)

HERE, SEVERAL, CLUSTER = Inline.name, Processes.name, Ray.name  # for short jobs, long ones, and those at an address
