"""A rival: the `adapters` library without adapters, one plain encoder and a head for each task."""

from __future__ import annotations

from adapters_parallel import answering, loaded
from protocol import Job, serve


def load(job: Job):
    model = loaded(job)
    names = [task["name"] for task in job["tasks"]]
    model.active_head = names if len(names) > 1 else names[0]
    return answering(job, model)


if __name__ == "__main__":
    serve(load, ("adapters", "transformers", "torch"))
