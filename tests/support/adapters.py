"""Folders of adapters in the layout of PEFT 0.21, written by hand over the tiny checkpoints, each with its model.

The model is `transformers`' own with `W + alpha / rank * B A` in the place of each W that the adapter targets.
"""

import json
import math

import torch
import transformers
from safetensors.torch import save_file

from support import checkpoints

# What `LoraConfig.save_pretrained` writes, with its defaults.
SETTINGS = {
    "alora_invocation_tokens": None,
    "alpha_pattern": {},
    "arrow_config": None,
    "auto_mapping": None,
    "base_model_name_or_path": None,
    "bias": "none",
    "corda_config": None,
    "ensure_weight_tying": False,
    "eva_config": None,
    "exclude_modules": None,
    "fan_in_fan_out": False,
    "inference_mode": True,
    "init_lora_weights": True,
    "kasa_config": None,
    "layer_replication": None,
    "layers_pattern": None,
    "layers_to_transform": None,
    "loftq_config": {},
    "lora_alpha": 8,
    "lora_bias": False,
    "lora_dropout": 0.1,
    "lora_ga_config": None,
    "megatron_config": None,
    "megatron_core": "megatron.core",
    "modules_to_save": ["classifier", "score"],
    "monteclora_config": None,
    "peft_type": "LORA",
    "peft_version": "0.21.2",
    "qalora_group_size": 16,
    "r": 2,
    "rank_pattern": {},
    "revision": None,
    "target_modules": None,
    "target_parameters": None,
    "task_type": None,
    "trainable_token_indices": None,
    "use_bdlora": None,
    "use_dora": False,
    "use_qalora": False,
    "use_rslora": False,
    "velora_config": None,
}
QUERY_VALUE = {"DistilBert": ("q_lin", "v_lin")}
ALL = ("query", "key", "value", "dense", "q_lin", "k_lin", "v_lin", "out_lin", "lin1", "lin2")
ALL += ("q", "k", "v", "o", "query_proj", "key_proj", "value_proj")
ALL += ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
ALL += ("Wqkv", "Wo", "Wi")
NO_POOLER = ("DebertaV2", "Gte", "NomicBert")  # bare encoders that `transformers` makes without one


def adapter(
    folder,
    task="mood",
    *,
    family="Bert",
    base=None,
    maps=None,
    layers=range(checkpoints.LAYERS),
    rank=2,
    alpha=8.0,
    seed=1,
    saved=("classifier", "pre_classifier"),
    beside=None,
    labels=True,
    **settings,
):
    """Writes an adapter with random matrices and head; gives the model that it is.

    `maps` are ends of module names, in these layers and, as with PEFT, outside of layers too; `rank` and `alpha` are
    numbers, or functions of a module's name. `beside` are arrays more; `settings` go into the config as they are.
    """
    base = checkpoints.base(family) if base is None else base
    model = checkpoints.classifier(task, family, over=base).eval()
    generator = torch.Generator().manual_seed(seed)
    maps = maps or QUERY_VALUE.get(family, ("query", "value"))
    rslora = settings.get("use_rslora", False)
    arrays = {}
    for name, value in model.named_parameters():
        if name.split(".")[0] in saved or "pooler" in saved and ".pooler." in name:
            value.data = 0.3 * torch.randn(value.shape, generator=generator)
            arrays[name] = value.data
    for name, module in model.named_modules():
        if not targeted(name, maps, layers) or name.split(".")[0] in saved or f"{name}.weight" in arrays:
            continue
        r = rank(name) if callable(rank) else rank
        scale = (alpha(name) if callable(alpha) else alpha) / (math.sqrt(r) if rslora else r)
        rows, columns = module.weight.shape
        a = 0.1 * torch.randn(r, columns, generator=generator)
        b = 0.1 * torch.randn(rows, r, generator=generator)
        module.weight.data += (scale * b.double() @ a.double()).float()
        arrays |= {f"{name}.lora_A.weight": a, f"{name}.lora_B.weight": b}
    arrays |= beside or {}
    write(folder, arrays, task=task, base=base, maps=maps, rank=rank, alpha=alpha, **settings)
    if labels:
        model.config.save_pretrained(folder)  # as `model.config` of PEFT's model, whose class is the base's
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"architectures": [f"{family}Model"]}))
    return model


def targeted(name, maps, layers):
    """Whether the module's name ends in one of the maps, in one of the layers or in none."""
    numbers = [int(part) for part in name.split(".") if part.isdigit()]
    return name.split(".")[-1] in maps and (not numbers or numbers[0] in layers)


def write(folder, arrays, *, task="mood", base, maps=("query", "value"), rank=2, alpha=8.0, **settings):
    """The two files of an adapter."""
    folder.mkdir(parents=True, exist_ok=True)
    named = {f"base_model.model.{name}": array.contiguous() for name, array in arrays.items()}
    save_file(named, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    made = SETTINGS | {
        "base_model_name_or_path": str(base),
        "task_type": "TOKEN_CLS" if task == "names" else "SEQ_CLS",
        "target_modules": list(maps),
        **({} if callable(rank) else {"r": rank}),
        **({} if callable(alpha) else {"lora_alpha": alpha}),
        **settings,
    }
    (folder / "adapter_config.json").write_text(json.dumps(made))


def change(folder, **settings):
    """Changes the adapter's settings."""
    file = folder / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))


def logits_of(model, inputs):
    """What the model answers, one input at a time."""
    family = next(
        name
        for name in checkpoints.FAMILIES
        if getattr(transformers, f"{name}Config").model_type == model.config.model_type
    )
    tokenizer, found = checkpoints.FAMILIES[family][0](), []
    for text in inputs:
        limit = 64 if model.config.vocab_size == 110 else 256
        given = tokenizer(*text, truncation=True, max_length=limit, return_tensors="pt")
        with torch.inference_mode():
            found.append(model(**checkpoints.inputs_of(model, given)).logits[0].numpy())
    return found
