"""Units done by actors of a Ray cluster, local or at an address; a lost actor is replaced and its unit repeated."""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from typing import Any

from polyhead.errors import MissingExtra
from polyhead.store.jobs.executors.base import TRIES, Executor, Work, lost
from polyhead.store.jobs.executors.processes import THREADS

LOCAL = "127.0.0.1"  # address of a cluster started for a job: reachable from this machine only


class Ray(Executor):
    """Actors of a Ray cluster."""

    name = "ray"

    def __init__(self, work: Work, *, workers: int, address: str | None = None) -> None:
        """Joins the cluster at `address`; without one a local cluster with so many processors is started."""
        super().__init__(work, workers=workers, address=address)
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray reads it at import
        try:
            import ray
        except ImportError:
            raise MissingExtra("ray", "ray", "the executor 'ray'", instead="choose another executor") from None
        self._ray, self._is_ours, self._idle = ray, not ray.is_initialized(), list[Any]()
        if self._is_ours:
            local = {"num_cpus": workers, "include_dashboard": False, "_node_ip_address": LOCAL}
            ray.init(address=address, log_to_driver=False, **({} if address else local))
        options = {"num_cpus": 1, "runtime_env": {"env_vars": dict.fromkeys(THREADS, "1")}}
        self._kind = ray.remote(**options)(_Actor)
        self._held = ray.put(work)

    def results(self, units: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        """Each unit with its result, as it is done."""
        ray, ahead, again = self._ray, iter(units), deque[Any]()
        waiting: dict[Any, tuple[Any, Any]] = {}
        losses: Counter[Any] = Counter()
        while True:
            while len(waiting) < self.workers:
                unit = again.popleft() if again else next(ahead, None)
                if unit is None:
                    break
                actor = self._idle.pop() if self._idle else self._kind.remote(self._held)
                waiting[actor.do.remote(unit)] = (actor, unit)
            if not waiting:
                return
            (reference,), _ = ray.wait(list(waiting), num_returns=1)
            actor, unit = waiting.pop(reference)
            try:
                result = ray.get(reference)
            except ray.exceptions.RayTaskError as error:
                raise error.as_instanceof_cause() from None
            except ray.exceptions.RayError as error:
                losses[unit] += 1
                if losses[unit] >= TRIES:
                    raise lost(unit, str(error).splitlines()[0]) from None
                again.append(unit)
                continue
            self._idle.append(actor)
            yield unit, result

    def close(self) -> None:
        """Stops the actors, and the cluster if it was started for this job."""
        self._idle = []
        if self._is_ours:
            self._ray.shutdown()


class _Actor:
    """A worker of the cluster."""

    def __init__(self, work: Work) -> None:
        self._work = work

    def do(self, unit: Any) -> Any:
        """The result of a unit."""
        return self._work(unit)
