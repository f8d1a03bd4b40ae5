"""One training with SetFit: a JSON job on standard input, one JSON line about it last on standard output.

The job: `model`, a folder; `train` and `test`, lists of [text, label]; `seed`; `max_steps`, of the encoder's training.
Everything else is as `TrainingArguments` of SetFit has it: 16 pairs a step, one pass over all pairs of texts, those
with one label drawn as often as the others ("oversampling"), then logistic regression on the tuned vectors. A pass of
fewer than `max_steps` steps is not cut.
"""

from __future__ import annotations

import contextlib
import json
import math
import sys
import tempfile
import time
from collections import Counter


def main() -> None:
    job = json.load(sys.stdin)
    with contextlib.redirect_stdout(sys.stderr):
        row = trained(job)
    print(json.dumps(row), flush=True)


def trained(job: dict) -> dict:
    """Accuracy on the test rows, and the seconds of training from the loaded encoder on."""
    import sentence_transformers
    import setfit
    import transformers
    from datasets import Dataset
    from setfit import SetFitModel, Trainer, TrainingArguments

    texts, labels = zip(*job["train"], strict=True)
    model = SetFitModel.from_pretrained(job["model"], local_files_only=True)
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(output_dir=folder, save_strategy="no", report_to="none", show_progress_bar=False)
        whole = steps_of(labels, batch=settings.embedding_batch_size)
        settings.max_steps = job["max_steps"] if whole > job["max_steps"] else -1
        settings.seed = job["seed"]
        trainer = Trainer(model, args=settings, train_dataset=Dataset.from_dict({"text": texts, "label": labels}))
        began = time.perf_counter()
        trainer.train()
        seconds = time.perf_counter() - began
    held, wanted = zip(*job["test"], strict=True)
    answered = model.predict(list(held), as_numpy=True)
    return {
        "accuracy": sum(map(str.__eq__, map(str, answered), wanted)) / len(wanted),
        "seconds": round(seconds, 1),
        "steps": min(whole, job["max_steps"]),
        "steps_of_a_pass": whole,
        "max_tokens": model.model_body.max_seq_length,
        "versions": {module.__name__: module.__version__ for module in (setfit, sentence_transformers, transformers)},
    }


def steps_of(labels: tuple[str, ...], *, batch: int) -> int:
    """Steps of one pass over all pairs of different texts, twice as many as the larger of the two kinds of pairs."""
    alike = sum(math.comb(count, 2) for count in Counter(labels).values())
    return math.ceil(2 * max(alike, math.comb(len(labels), 2) - alike) / batch)


if __name__ == "__main__":
    main()
