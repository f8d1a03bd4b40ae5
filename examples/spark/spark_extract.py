"""Adds a column of texts of a Spark data frame to a store (docs/guides/scale-out.md)."""

import json
import tempfile
from collections.abc import Iterable
from functools import cache

from polyhead.bundle.read import Bundle
from polyhead.engine.backends import open_backend
from polyhead.store.jobs.extract import ExtractRequest, extract
from polyhead.store.taps import Tap

BUNDLE, STORE, TAPS = "bundle", "s3://bucket/corpus", [Tap()]


@cache
def encoder():
    """Once a Python worker."""
    trunk = Bundle.open(BUNDLE).trunk()
    return trunk, open_backend(None, trunk, {}, precision="float32")


def add(texts: Iterable[str]) -> int:
    """Adds texts to the store; how many it had not."""
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl", encoding="utf-8") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in texts)
        file.flush()
        trunk, backend = encoder()
        return extract(STORE, file.name, TAPS, ExtractRequest(processes=0), trunk=trunk, backend=backend).documents


def add_partition(rows):
    texts = [row.text for row in rows]
    return [add(texts)] if texts else []


def run(frame):
    """Adds the column `text` of a data frame of Spark."""
    add([row.text for row in frame.select("text").sample(0.01, seed=0).limit(10_000).collect()])
    return frame.select("text").rdd.mapPartitions(add_partition).sum()
