"""A rival: the `adapters` library, one encoder with an adapter and a head for each task, all at once in `Parallel`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from adapters import AutoAdapterModel
from adapters.composition import Parallel
from protocol import Job, serve
from transformers import AutoTokenizer


def load(job: Job):
    model = loaded(job)
    names = [task["name"] for task in job["tasks"]]
    for name in names:
        model.add_adapter(name, config="seq_bn")
    model.active_adapters = Parallel(*names) if len(names) > 1 else names[0]
    model.active_head = names if len(names) > 1 else names[0]
    return answering(job, model)


def loaded(job: Job):
    """The encoder with a head for each task."""
    torch.set_num_threads(job["threads"])
    model = AutoAdapterModel.from_pretrained(job["model"])
    for task in job["tasks"]:
        if task["words"]:
            model.add_tagging_head(task["name"], num_labels=task["outputs"])
        else:
            model.add_classification_head(task["name"], num_labels=task["outputs"])
    return model


def answering(job: Job, model):
    tokenizer = AutoTokenizer.from_pretrained(job["model"], model_max_length=128)
    model.eval()

    @torch.inference_mode()
    def answer(texts: Sequence[str]):
        logits = []
        for start in range(0, len(texts), job["batch"]):
            rows = list(texts[start : start + job["batch"]])
            outputs = model(**tokenizer(rows, padding=True, truncation=True, return_tensors="pt"))
            outputs = [outputs] if "logits" in outputs else outputs
            logits.append([output["logits"].numpy() for output in outputs])
        return logits

    return answer


if __name__ == "__main__":
    serve(load, ("adapters", "transformers", "torch"))
