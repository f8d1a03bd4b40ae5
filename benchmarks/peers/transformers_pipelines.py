"""A rival: for each task a `transformers` pipeline over a model of its own.

On the processor in the library's own precision, float32; on a graphics processor in bfloat16.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from protocol import Job, serve
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification, AutoTokenizer, pipeline


def load(job: Job):
    torch.set_num_threads(job["threads"])
    tokenizer = AutoTokenizer.from_pretrained(job["model"], model_max_length=128)
    pipelines = [pipeline_of(job, task, tokenizer) for task in job["tasks"]]

    def answer(texts: Sequence[str]):
        return [pipeline(list(texts), batch_size=job["batch"]) for pipeline in pipelines]

    return answer


def pipeline_of(job: Job, task: dict, tokenizer):
    kind = AutoModelForTokenClassification if task["words"] else AutoModelForSequenceClassification
    model = kind.from_pretrained(job["model"], num_labels=task["outputs"]).eval()
    device = job.get("device", "cpu")
    if device != "cpu":
        model = model.to(torch.bfloat16)
    if task["words"]:
        return pipeline("token-classification", model=model, tokenizer=tokenizer, device=device)
    made = pipeline("text-classification", model=model, tokenizer=tokenizer, top_k=None, device=device)
    return lambda texts, batch_size: made(texts, batch_size=batch_size, truncation=True)


if __name__ == "__main__":
    serve(load, ("transformers", "torch"))
