"""Answers a task for a whole store, by Spark (docs/guides/scale-out.md)."""

import spark_executor

from polyhead.store.jobs.backfill import BackfillRequest, backfill

wish = BackfillRequest(tasks=("topic",), executor=spark_executor.Spark.name, workers=64)
print(backfill("s3://bucket/corpus", "bundle", wish, tell=print))
