"""A rival: Infinity, in this process, with a classification model of its own for each task."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import torch
from infinity_emb import AsyncEngineArray, EngineArgs
from protocol import Job, serve
from transformers import AutoModelForSequenceClassification, AutoTokenizer


def load(job: Job):
    torch.set_num_threads(job["threads"])
    engines = AsyncEngineArray.from_args(
        [
            EngineArgs(
                model_name_or_path=folder_of(job, task["outputs"]),
                served_model_name=task["name"],
                engine="torch",
                device="cpu",
                dtype="float32",
                trust_remote_code=False,
                batch_size=job["batch"],
                bettertransformer=False,
                model_warmup=False,
            )
            for task in job["tasks"]
        ]
    )
    loop = asyncio.new_event_loop()
    loop.run_until_complete(engines.astart())

    async def each(texts: Sequence[str]):
        return [
            (await engines[task["name"]].classify(sentences=list(texts), raw_scores=True))[0] for task in job["tasks"]
        ]

    return lambda texts: loop.run_until_complete(each(texts))


def folder_of(job: Job, outputs: int) -> str:
    """A model with so many labels, saved where it is not there; one label alone would make it a reranker."""
    labels = {number: f"label-{number}" for number in range(max(2, outputs))}  # default names are not saved
    folder = Path(job["work"]) / "infinity" / f"labels-{len(labels)}"
    if not (folder / "config.json").exists():
        AutoTokenizer.from_pretrained(job["model"], model_max_length=128).save_pretrained(folder)
        model = AutoModelForSequenceClassification.from_pretrained(job["model"], id2label=labels)
        model.save_pretrained(folder)
    return str(folder)


if __name__ == "__main__":
    serve(load, ("infinity-emb", "transformers", "torch"))
