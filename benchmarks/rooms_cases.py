"""Commands that are refused and requests to every route, over a bundle with the tasks of `rooms_made`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

TEXT, BROKEN = "the lamp is broken", '{"text": '
FAULTS: dict[str, str | bytes] = {
    "missing-label.toml": "bundle = 'b'\n[trunk]\nname = 'trunk'\n[[tasks]]\nname = 'mood'\nkind = 'single_label'\n"
    "labels = ['good', 'bad']\nlabel = 'moood'\ntrain = 'data/messages-train.jsonl'\n",
    "unknown-key.toml": "bundle = 'b'\n[trunk]\nname = 'trunk'\n[[tasks]]\nname = 'mood'\nkind = 'single_label'\n"
    "labels = ['good', 'bad']\ntrian = 'data/messages-train.jsonl'\n",
    "unknown-kind.toml": "bundle = 'b'\n[[tasks]]\nname = 'mood'\nkind = 'singel_label'\n"
    "train = 'data/messages-train.jsonl'\n",
    "unknown-label.toml": "bundle = 'b'\n[trunk]\nname = 'trunk'\n[[tasks]]\nname = 'mood'\nkind = 'single_label'\n"
    "labels = ['good', 'odd']\nlabel = 'mood'\ntrain = 'data/messages-train.jsonl'\n",
    "no-trunk.toml": "bundle = 'b'\n[trunk]\nname = 'nowhere'\n[[tasks]]\nname = 'mood'\nkind = 'single_label'\n"
    "labels = ['good', 'bad']\nlabel = 'mood'\ntrain = 'data/messages-train.jsonl'\n",
    "not.toml": "bundle = [\n",
    "latin.jsonl": b'{"text": "caf\xe9", "label": "good"}\n',
    "broken.jsonl": '{"text": "good", "label": "a"}\n{"text": \n',
    "ragged.csv": "text,label\ngood,a\nbad,b,c\n",
    "table.csv": "text,label\ngood lamp,good\nbad lamp,bad\n",
    "lines.txt": "good lamp\nbad lamp\n",
    "one-label.csv": "text,label\ngood lamp,good\nbad lamp,good\n",
}
# What is named, the words after `polyhead`, and standard input.
ERRORS: dict[str, tuple[list[str], str]] = {
    name: (list(words.split()) if isinstance(words, str) else list(words), given)
    for name, words, given in (
        ("no such command", "trian", ""),
        ("no such option", "predict bundle --taks mood", ""),
        ("no such choice", "predict bundle --backend tensorflow", ""),
        ("a number out of range", "serve bundle --workers 0", ""),
        ("a missing argument", "predict", ""),
        ("init: no file", "init nowhere.csv", ""),
        ("init: no such column", "init table.csv --label sentiment", ""),
        ("init: one label", "init one-label.csv --label label", ""),
        ("init: a ragged table", "init ragged.csv", ""),
        ("init: a broken line", "init broken.jsonl", ""),
        ("init: not UTF-8", "init latin.jsonl", ""),
        ("check: no file", "check nowhere.jsonl", ""),
        ("check: no such task", "check pooled.toml --tasks moood", ""),
        ("check: columns of a project", "check pooled.toml --text body", ""),
        ("label: no file", "label nowhere.jsonl --labels good,bad", ""),
        ("train: no project", "train nowhere.toml", ""),
        ("train: not TOML", "train not.toml", ""),
        ("train: no such column", "train missing-label.toml", ""),
        ("train: no such key", "train unknown-key.toml", ""),
        ("train: no such kind", "train unknown-kind.toml", ""),
        ("train: a label that is not declared", "train unknown-label.toml", ""),
        ("train: no encoder", "train no-trunk.toml", ""),
        ("train: no such task", "train pooled.toml --tasks moood", ""),
        ("train: a task is left out and trained again", "train pooled.toml --tasks mood --retrain urgency", ""),
        ("advise: several budgets", "advise pooled.toml --layers 3 --ms 4", ""),
        ("compare: no such way", "compare pooled.toml --only branch-9", ""),
        ("evaluate: no such task", "evaluate pooled.toml --tasks moood", ""),
        ("evaluate: a bundle without data", "evaluate bundle", ""),
        ("evaluate: a file without its task", "evaluate bundle --data table.csv", ""),
        ("evaluate: no bundle", "evaluate nowhere --data table.csv", ""),
        ("evaluate: an unknown ending", "evaluate bundle --data table.csv --task mood --errors x.txt", ""),
        ("calibrate: no such task", "calibrate bundle table.csv --task moood", ""),
        ("calibrate: few rows", "calibrate bundle table.csv --task mood", ""),
        ("calibrate: a kind that cannot be", "calibrate bundle data/messages-test.jsonl --task names", ""),
        ("drift: few rows", "drift bundle table.csv --task mood", ""),
        ("predict: no bundle", "predict nowhere", TEXT),
        ("predict: no such task", "predict bundle --tasks moood", TEXT),
        ("predict: no such file", "predict bundle nowhere.csv", ""),
        ("predict: a table as lines", "predict bundle", "text,label\ngood,a\nbad,b\n"),
        ("predict: a broken line", "predict bundle", '{"text": "good"}\n{"text": \n'),
        ("predict: no such column", "predict bundle table.csv --text mesage -o out.csv", ""),
        ("predict: no server", "predict --server http://127.0.0.1:1 good", ""),
        ("score: no file", "score bundle nowhere.csv out.csv", ""),
        ("score: no such column", "score bundle table.csv out.csv --text mesage", ""),
        ("score: an unknown ending", "score bundle table.csv out.txt --text text", ""),
        ("features: no store", "features info nowhere", ""),
        ("features: no such tap", "features extract bundle lines.txt store --tap middle", ""),
        ("backfill: no store", "backfill bundle --features nowhere", ""),
        ("migrate: no store", "migrate compare nowhere nowhere --old bundle --new bundle", ""),
        ("serve: no bundle", "serve nowhere", ""),
        ("serve: a port that is none", "serve bundle --port 99999", ""),
        ("serve: no such default task", "serve bundle --default-task moood", ""),
        ("inspect: no bundle", "inspect nowhere", ""),
        ("inspect: a damaged manifest", "inspect damaged", ""),
        ("inspect: a newer format", "inspect newer", ""),
        ("predict: a truncated part", "predict truncated --tasks mood", TEXT),
        ("predict: a changed part", "predict changed --tasks mood", TEXT),
        ("tasks add: a task that is there", "tasks add bundle bundle mood", ""),
        ("tasks remove: no such task", "tasks remove bundle moood", ""),
        ("tasks rollback: no earlier version", "tasks rollback bundle mood", ""),
        ("tasks update: no such task", "tasks update bundle bundle moood", ""),
        ("tasks certificate: none", "tasks certificate bundle", ""),
        ("tasks verify: no bundle", "tasks verify nowhere", ""),
        ("scan: no folder", "scan nowhere trunk", ""),
        ("import: no folder", "import out nowhere", ""),
        ("import: not a classifier", "import out trunk", ""),
        ("merge: no bundle", "merge out nowhere", ""),
        ("quantize: few texts", "quantize bundle --texts lines.txt", ""),
        ("agree: no texts", "agree nowhere", ""),
        ("export: no such task", "export bundle out --tasks moood", ""),
        ("export: the folder is there", "export bundle data", ""),
        ("allocate: no options", "allocate nowhere.json", ""),
    )
}


def _tensors(*texts: str) -> dict[str, Any]:
    return {"inputs": [{"name": "text", "shape": [len(texts)], "datatype": "BYTES", "data": list(texts)}]}


# What is named: method, path and body; a string goes as it is.
REQUESTS: dict[str, tuple[str, str, Any]] = {
    "own": ("POST", "/v1/predict", {"inputs": [{"text": TEXT}], "tasks": ["mood", "topics", "urgency", "names"]}),
    "own, a pair": (
        "POST",
        "/v1/predict",
        {"inputs": [{"text": TEXT, "text_b": "the lamp is good"}], "tasks": ["same", "alike"]},
    ),
    "own, options": ("POST", "/v1/predict", {"inputs": [{"question": "is it good?", "choices": ["good", "bad"]}]}),
    "own, a passage": (
        "POST",
        "/v1/predict",
        {"inputs": [{"question": "where?", "context": TEXT}], "tasks": ["where"]},
    ),
    "own, nothing": ("POST", "/v1/predict", {"inputs": []}),
    "own, no such task": ("POST", "/v1/predict", {"inputs": [{"text": TEXT}], "tasks": ["moood"]}),
    "own, no such key": ("POST", "/v1/predict", {"inputs": [{"text": TEXT}], "taks": ["mood"]}),
    "own, a wrong type": ("POST", "/v1/predict", {"inputs": [{"text": 7}]}),
    "own, broken JSON": ("POST", "/v1/predict", BROKEN),
    "own, as text": ("POST", "/v1/predict", {"text": TEXT, "tasks": ["mood"]}),
    "own, said twice": ("POST", "/v1/predict", {"text": TEXT, "inputs": [TEXT]}),
    "own, streamed": ("POST", "/v1/predict/stream", {"inputs": [{"text": TEXT}], "tasks": ["mood"]}),
    "tasks": ("GET", "/v1/tasks", None),
    "a task": ("GET", "/v1/tasks/mood", None),
    "no such task": ("GET", "/v1/tasks/moood", None),
    "decisions": (
        "POST",
        "/v1/decisions",
        {
            "model": "any",
            "input": TEXT,
            "questions": [
                {"type": "predicate", "name": "topics.bill", "instructions": "About a bill?"},
                {
                    "type": "choice",
                    "name": "mood",
                    "instructions": "Which?",
                    "choices": [{"value": "good"}, {"value": "bad"}],
                },
                {"type": "predicate", "name": "nobody", "instructions": "Is it?"},
            ],
        },
    ),
    "decisions, no questions": ("POST", "/v1/decisions", {"model": "any", "input": TEXT}),
    "systemone": (
        "POST",
        "/v1/systemone",
        {
            "model": "jev-latest",
            "state": TEXT,
            "questions": {"topics.bill": {"type": "noul", "instructions": "A bill?"}},
        },
    ),
    "systemone, broken": ("POST", "/v1/systemone", BROKEN),
    "openrouter, no such task": (
        "POST",
        "/api/alpha/decisions",
        {"model": "typesafe/jev-latest", "state": TEXT, "questions": {"nobody": {"type": "noul"}}},
    ),
    "models": ("GET", "/v1/models", None),
    "embeddings": ("POST", "/v1/embeddings", {"model": "any", "input": [TEXT]}),
    "embeddings, nothing": ("POST", "/embeddings", {"model": "any", "input": []}),
    "tei predict": ("POST", "/predict?task=mood", {"inputs": TEXT}),
    "tei predict, no task": ("POST", "/predict", {"inputs": TEXT}),
    "tei embed": ("POST", "/embed", {"inputs": TEXT}),
    "tei similarity": ("POST", "/similarity", {"inputs": {"source_sentence": TEXT, "sentences": ["the lamp is good"]}}),
    "tei rerank": ("POST", "/rerank", {"query": TEXT, "texts": ["my bill", "the lamp"]}),
    "tei, broken": ("POST", "/predict", BROKEN),
    "pipeline": ("POST", "/models/mood", {"inputs": TEXT}),
    "pipeline, the address alone": ("POST", "/?task=mood", {"inputs": TEXT}),
    "pipeline, no such task": ("POST", "/models/moood", {"inputs": TEXT}),
    "info": ("GET", "/info", None),
    "classify, vllm": ("POST", "/vllm/classify", {"model": "mood", "input": TEXT}),
    "classify, infinity": ("POST", "/infinity/classify", {"model": "mood", "input": [TEXT]}),
    "classify, neither": ("POST", "/classify", {"what": TEXT}),
    "v2": ("GET", "/v2", None),
    "v2 live": ("GET", "/v2/health/live", None),
    "v2 ready": ("GET", "/v2/health/ready", None),
    "v2 index": ("POST", "/v2/repository/index", {}),
    "v2 load": ("POST", "/v2/repository/models/mood/load", {}),
    "v2 model": ("GET", "/v2/models/mood", None),
    "v2 model ready": ("GET", "/v2/models/mood/ready", None),
    "v2 infer": ("POST", "/v2/models/mood/infer", _tensors(TEXT)),
    "v2 infer, a wrong shape": (
        "POST",
        "/v2/models/mood/infer",
        {"inputs": [{"name": "text", "shape": [2], "datatype": "BYTES", "data": [TEXT]}]},
    ),
    "v2 version": ("GET", "/v2/models/mood/versions/v0001", None),
    "v2 version ready": ("GET", "/v2/models/mood/versions/v0001/ready", None),
    "v2 version infer": ("POST", "/v2/models/mood/versions/v0001/infer", _tensors(TEXT)),
    "v2 no such version": ("GET", "/v2/models/mood/versions/v0009", None),
    "v2 nothing there": ("GET", "/v2/nothing", None),
    "admin: a wrong upload": ("PUT", "/v1/tasks/other", "no archive"),
    "admin: no such task": ("DELETE", "/v1/tasks/moood", None),
    "admin: no earlier version": ("POST", "/v1/tasks/mood/rollback", None),
    "admin: changes": ("GET", "/v1/changes", None),
    "admin: a wrong candidate": ("PUT", "/v1/tasks/mood/shadow", "no archive"),
    "admin: no candidate": ("GET", "/v1/tasks/mood/shadow", None),
    "admin: no candidate to forget": ("DELETE", "/v1/tasks/mood/shadow", None),
    "admin: no candidate to promote": ("POST", "/v1/tasks/mood/shadow/promote", None),
    "health": ("GET", "/health", None),
    "no such path": ("GET", "/nowhere", None),
    "a wrong method": ("GET", "/v1/predict", None),
}


def write_faults(folder: Path, bundle: Path) -> None:
    """Files with faults, `bundle` as a copy of this one, and copies of it that are damaged."""
    for name, content in FAULTS.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    for name in ("bundle", "damaged", "newer", "truncated", "changed"):
        shutil.copytree(bundle, folder / name)
    (folder / "damaged" / "bundle.json").write_text("{")
    newer = folder / "newer" / "bundle.json"
    newer.write_text(json.dumps(json.loads(newer.read_text()) | {"format": 99}))
    (part,) = (folder / "truncated" / "tasks" / "mood").rglob("part.safetensors")
    part.write_bytes(part.read_bytes()[:-4])
    (part,) = (folder / "changed" / "tasks" / "mood").rglob("part.safetensors")
    content = part.read_bytes()
    part.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
