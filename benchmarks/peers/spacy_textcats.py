"""A rival: spaCy, one shared transformer, and for each task a text classifier, or a tagger, that listens to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import spacy
import spacy_transformers  # noqa: F401, which makes its components known
import torch
from protocol import Job, serve
from spacy.training import Example

LISTENER = {
    "@architectures": "spacy-transformers.TransformerListener.v1",
    "grad_factor": 1.0,
    "pooling": {"@layers": "reduce_mean.v1"},
}


def load(job: Job):
    torch.set_num_threads(job["threads"])
    nlp = spacy.blank("en")
    nlp.add_pipe("transformer", config={"model": transformer(job["model"])})
    kinds = {task["name"]: add(nlp, task) for task in job["tasks"]}
    nlp.initialize(lambda: examples(nlp, job["tasks"], kinds))

    def answer(texts: Sequence[str]):
        docs = nlp.pipe(texts, batch_size=job["batch"])
        return [[doc.cats, [token.tag_ for token in doc]] for doc in docs]

    return answer


def transformer(folder: str) -> dict:
    return {
        "@architectures": "spacy-transformers.TransformerModel.v3",
        "name": folder,
        "get_spans": {"@span_getters": "spacy-transformers.doc_spans.v1"},
        "tokenizer_config": {"use_fast": True, "model_max_length": 128},
    }


def add(nlp, task: dict) -> str:
    """A component for the task, with its labels; its kind."""
    if task["words"]:
        kind = "tagger"
        model: dict[str, Any] = {"@architectures": "spacy.Tagger.v2", "tok2vec": LISTENER}
    else:
        kind = "textcat" if task["outputs"] > 1 else "textcat_multilabel"
        model = {
            "@architectures": "spacy.TextCatReduce.v1",
            "tok2vec": LISTENER,
            "exclusive_classes": kind == "textcat",
            "use_reduce_first": False,
            "use_reduce_last": False,
            "use_reduce_max": False,
            "use_reduce_mean": True,
        }
    nlp.add_pipe(kind, name=task["name"], config={"model": model})
    nlp.config["initialize"]["components"][task["name"]] = {"labels": labels(task)}
    return kind


def labels(task: dict) -> list[str]:
    return [f"{task['name']}-{number}" for number in range(task["outputs"])]


def examples(nlp, tasks: Sequence[dict], kinds: dict[str, str]) -> list[Example]:
    """Two texts, from which components learn their sizes."""
    cats = {label: 0.0 for task in tasks if kinds[task["name"]] != "tagger" for label in labels(task)}
    tags = [labels(task)[0] for task in tasks if kinds[task["name"]] == "tagger"][:1] or [""]
    docs = [nlp.make_doc(text) for text in ("a text", "another text")]
    return [Example.from_dict(doc, {"cats": cats, "tags": tags * len(doc)}) for doc in docs]


if __name__ == "__main__":
    serve(load, ("spacy", "spacy-transformers", "transformers", "torch"))
