"""Adapters that PEFT itself wrote, imported: answers are those of PEFT's own model."""

import numpy as np
import pytest

pytest.importorskip("transformers")
pytest.importorskip("peft", reason="the package peft, which nothing else here needs, is not installed")

import peft
import torch
from safetensors.torch import load_file, save_file

from polyhead.convert.run import import_folders
from polyhead.convert.task import ImportRequest
from polyhead.engine.session import Session
from support import adapters, checkpoints

# What PEFT asks of this version of transformers.
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
TEXTS = [("my order is late",), ("ANNA and Ben: where is the kettle?",), *[(f"please {'it ' * i}",) for i in range(16)]]
SETTINGS = {
    "plain": {"target_modules": ["query", "value"]},
    "all linear": {"target_modules": "all-linear"},
    "rank stabilized": {"target_modules": ["query", "value"], "use_rslora": True, "r": 3},
    "ranks and scales by layer": {
        "target_modules": ["query", "value"],
        "rank_pattern": {r"layer\.0\..*": 5},
        "alpha_pattern": {r"layer\.0\..*": 3, "encoder.layer.1.attention.self.(query|value)": 20},
    },
    "some layers": {"target_modules": ["query", "value"], "layers_to_transform": [1, 3]},
    "an expression": {"target_modules": r".*layer\.[02]\.(attention\.self\.key|output\.dense)"},
    "without some": {"target_modules": ["query", "value"], "exclude_modules": ["layer.2.attention.self.value"]},
    "full names": {
        "target_modules": ["bert.encoder.layer.0.attention.self.query", "bert.encoder.layer.0.attention.self.key"]
    },
}


def written(folder, **settings):
    """The folder of an adapter with random matrices, and PEFT's model."""
    torch.manual_seed(3)
    base = checkpoints.base("Bert")
    model = checkpoints.classifier("mood", "Bert", over=base)
    model.name_or_path = model.config._name_or_path = str(base)
    config = peft.LoraConfig(task_type="SEQ_CLS", init_lora_weights=False, lora_alpha=8, **{"r": 2, **settings})
    made = peft.get_peft_model(model, config).eval()
    made.save_pretrained(folder)
    model.config.save_pretrained(folder)
    return made


@pytest.mark.parametrize("name", SETTINGS)
def test_answers_are_those_of_the_model_that_peft_runs(name, tmp_path):
    model = written(tmp_path / "mood", **SETTINGS[name])
    import_folders(ImportRequest(folders=(str(tmp_path / "mood"),)), tmp_path / "bundle", TEXTS)
    found = Session(tmp_path / "bundle").outputs("mood", TEXTS)
    wanted = adapters.logits_of(model, TEXTS)
    for mine, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-5)
    with model.disable_adapter():
        bare = adapters.logits_of(model, TEXTS)
    assert max(abs(a - b).max() for a, b in zip(bare, wanted, strict=True)) > 0.01


def test_a_folder_that_lost_matrices_answers_as_peft_loads_it_and_says_so(tmp_path, caplog):
    """PEFT takes what is missing as if it had not learned."""
    written(tmp_path / "mood", target_modules=["query", "value"])
    lose(tmp_path / "mood", lambda name: "layer.1." in name)
    adapters.change(tmp_path / "mood", init_lora_weights=True)  # as where no test asks for other matrices than zeros
    import_folders(ImportRequest(folders=(str(tmp_path / "mood"),)), tmp_path / "bundle", TEXTS)
    assert "no matrices for 2 maps" in caplog.text and "layer.1.attention.self.query" in caplog.text
    base = checkpoints.classifier("mood", "Bert", over=checkpoints.base("Bert"))
    with pytest.warns(UserWarning, match="missing adapter keys"):
        loaded = peft.PeftModel.from_pretrained(base, tmp_path / "mood").eval()
    found = Session(tmp_path / "bundle").outputs("mood", TEXTS)
    for mine, theirs in zip(found, adapters.logits_of(loaded, TEXTS), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-5)


def lose(folder, gone):
    """Takes arrays out of the adapter's file, by name."""
    file = folder / "adapter_model.safetensors"
    kept = {name: array for name, array in load_file(file).items() if not gone(name)}
    save_file(kept, file, metadata={"format": "pt"})
