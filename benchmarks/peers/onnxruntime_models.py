"""A rival: for each task an ONNX Runtime model of its own, an encoder with its head, in int8 (dynamic quantization).

Each has the shape of an encoder that was fine-tuned for the task, exported by torch, its attention fused, quantized;
heads are drawn, since no time depends on their values. Texts are tokenized once for all models.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import onnxruntime
from protocol import Job, serve
from tokenizers import Tokenizer

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
MOST_TOKENS = 128


def load(job: Job):
    tokenizer = Tokenizer.from_file(f"{job['model']}/tokenizer.json")
    tokenizer.enable_truncation(MOST_TOKENS)
    tokenizer.enable_padding()

    def inputs_of(texts: Sequence[str]) -> dict[str, np.ndarray]:
        rows = tokenizer.encode_batch(texts)
        columns = ([r.ids for r in rows], [r.attention_mask for r in rows], [r.type_ids for r in rows])
        return {name: np.array(column, np.int64) for name, column in zip(INPUTS, columns, strict=True)}

    example = inputs_of(["as many words as a short message has, more or less"] * job["batch"])
    waits = min((True, False), key=lambda busily: seconds(sessions_of(job, busily=busily), example))
    sessions = sessions_of(job, busily=waits)

    def answer(texts: Sequence[str]):
        outputs = []
        for start in range(0, len(texts), job["batch"]):
            inputs = inputs_of(texts[start : start + job["batch"]])
            outputs.append({name: session.run(None, inputs)[0] for name, session in sessions.items()})
        return outputs

    return answer


def sessions_of(job: Job, *, busily: bool) -> dict[str, onnxruntime.InferenceSession]:
    """A session for each task. Threads that wait `busily` start faster, and take the cores from the next session."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = job["threads"]
    options.add_session_config_entry("session.intra_op.allow_spinning", str(int(busily)))
    return {
        task["name"]: onnxruntime.InferenceSession(model_of(job, task), options, ["CPUExecutionProvider"])
        for task in job["tasks"]
    }


def seconds(sessions: dict[str, onnxruntime.InferenceSession], inputs: dict[str, np.ndarray]) -> float:
    """The fastest of a few runs of all sessions."""
    times = []
    for _ in range(5):
        began = time.perf_counter()
        for session in sessions.values():
            session.run(None, inputs)
        times.append(time.perf_counter() - began)
    return min(times)


def model_of(job: Job, task: dict) -> str:
    """The task's file, built where it is not there."""
    folder = Path(job["work"]) / "onnx"
    file = folder / f"{task['name']}-{task['outputs']}.int8.onnx"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        # In a process of its own: what torch holds is no memory of this one.
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as apart:
            apart.submit(build, job["model"], task, file).result()
    return str(file)


def build(model: str, task: dict, file: Path) -> None:
    import onnx
    import torch
    import transformers
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.transformers.optimizer import optimize_model

    kind = "TokenClassification" if task["words"] else "SequenceClassification"
    network = getattr(transformers, f"AutoModelFor{kind}").from_pretrained(
        model, num_labels=task["outputs"], attn_implementation="eager"
    )
    plain, fused, quantized = (file.with_suffix(f".{step}") for step in ("plain", "fused", "tmp"))
    example = torch.ones((2, 16), dtype=torch.int64)
    torch.onnx.export(
        network.eval(),
        (example, example, torch.zeros_like(example)),
        plain,
        input_names=list(INPUTS),
        output_names=["logits"],
        dynamic_axes={name: {0: "rows", 1: "tokens"} for name in INPUTS},
        opset_version=17,
        dynamo=False,
    )
    config = network.config
    shape = {"num_heads": config.num_attention_heads, "hidden_size": config.hidden_size}
    optimize_model(str(plain), model_type="bert", **shape).save_model_to_file(str(fused))
    known = {"DefaultTensorType": onnx.TensorProto.FLOAT}  # of what fused operators give
    quantize_dynamic(fused, quantized, weight_type=QuantType.QInt8, extra_options=known)
    quantized.replace(file)
    plain.unlink()
    fused.unlink()


if __name__ == "__main__":
    serve(load, ("onnxruntime", "tokenizers"))
