"""An executor of backfills: units are tasks of a Spark job (docs/guides/scale-out.md)."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from pyspark.sql import SparkSession

from polyhead.store.jobs.executors import Executor, register_executor


class Spark(Executor):
    """Units of a backfill as tasks of a Spark job; Spark does those again whose executor was lost."""

    name = "spark"

    def results(self, units: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        context = SparkSession.builder.getOrCreate().sparkContext
        work = context.broadcast(self.work)  # once a Python worker, which then keeps the store open
        waiting = iter(units)
        while wave := list(islice(waiting, 8 * self.workers)):  # what the driver holds at once
            yield from context.parallelize(wave, len(wave)).map(lambda unit: (unit, work.value(unit))).collect()

    def close(self) -> None:
        """The session belongs to whoever made it."""


register_executor(Spark)
