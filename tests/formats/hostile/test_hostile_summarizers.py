"""Folders and bundles of encoder-decoders made with bad intent: no code of theirs runs, no key reaches the library."""

import json
import os
import pickle
import shutil
import subprocess
import sys

import msgspec
import pytest

from support.cases import cases
from support.tiers import first_of

pytest.importorskip("transformers")

from polyhead.deep.summarizer import Seq2Seq, load_seq2seq
from polyhead.encoder.summarizer import Summarizer, SummarySettings
from polyhead.errors import ConfigError, PolyheadError, TrunkError, WeightsMismatch
from polyhead.project.pretrained import load_trunk
from support import summarizers
from support.tiny_project import write_trunk

pytestmark = pytest.mark.slow  # folders of trunks, which are read alike, are of the first tier
PLANT = """
import pathlib
pathlib.Path({marker!r}).write_text("run")
raise RuntimeError("planted code ran")
"""
AUTO_MAP = {
    "AutoConfig": "planted.PlantedConfig",
    "AutoModelForSeq2SeqLM": "planted.Planted",
    "AutoModel": "planted.Planted",
    "AutoTokenizer": ["planted.PlantedTokenizer", "planted.PlantedTokenizer"],
}


@pytest.fixture(scope="module")
def loaded():
    return load_seq2seq(str(summarizers.folder()), summary_tokens=16)


@pytest.fixture
def folder(tmp_path):
    """A copy of a folder that `save_pretrained` wrote."""
    return shutil.copytree(summarizers.folder(), tmp_path / "model")


def edit(path, **keys):
    path.write_text(json.dumps(json.loads(path.read_bytes()) | keys))


READ = """
import sys
from polyhead.errors import PolyheadError
from polyhead.project.pretrained import load_trunk
from polyhead.deep.summarizer import Seq2Seq, load_seq2seq
for folder in sys.argv[1:]:
    try:
        if folder.endswith("encoder"):
            load_trunk(folder)
        else:
            Seq2Seq(load_seq2seq(folder, summary_tokens=8)).write(["the lamp is late"])
        print(folder, "read")
    except PolyheadError as error:
        print(folder, "refused:", error)
"""


class Planted:
    """Makes a file when it is unpickled."""

    def __init__(self, marker):
        self.marker = str(marker)

    def __reduce__(self):
        return open, (self.marker, "w")


def planted(place, marker, *files):
    """A summarizer's folder with Python files that make the marker, and these files that name them."""
    shutil.copytree(summarizers.folder(), place)
    _plant(place, marker)
    for file in files:
        edit(place / file, auto_map=AUTO_MAP)


def _plant(folder, marker):
    for name in ("planted.py", "custom_generate/generate.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(PLANT.format(marker=str(marker)))


def encoder(place, marker, *, words):
    """An encoder's folder of that kind, with its tokenizer in one file or as a list of words."""
    write_trunk(place)
    _plant(place, marker)
    edit(place / "config.json", auto_map=AUTO_MAP, architectures=["Planted"])
    said = {"auto_map": AUTO_MAP, "tokenizer_class": "PlantedTokenizer"}
    (place / "tokenizer_config.json").write_text(json.dumps(said))
    if words:
        pieces = json.loads((place / "tokenizer.json").read_bytes())["model"]["vocab"]
        (place / "vocab.txt").write_text("\n".join(sorted(pieces, key=pieces.get)))
        (place / "tokenizer.json").unlink()


@pytest.mark.slow
def test_no_code_of_a_folder_is_run_when_every_question_is_answered_with_y(tmp_path):
    """With `auto_map` in a summarizer's config.json, `yes | polyhead train` ran its Python file."""
    marker = tmp_path / "marker"
    planted(tmp_path / "config", marker, "config.json")
    planted(tmp_path / "tokenizer", marker, "tokenizer_config.json")
    planted(tmp_path / "generate", marker)
    planted(tmp_path / "pickle", marker)
    (tmp_path / "pickle/model.safetensors").unlink()
    (tmp_path / "pickle/pytorch_model.bin").write_bytes(pickle.dumps(Planted(marker)))
    encoder(tmp_path / "encoder", marker, words=False)
    encoder(tmp_path / "words-encoder", marker, words=True)
    names = ["config", "tokenizer", "generate", "pickle", "encoder", "words-encoder"]
    done = subprocess.run(
        [sys.executable, "-c", READ, *(str(tmp_path / name) for name in names)],
        input="y\n" * 1000,
        capture_output=True,
        text=True,
        check=True,
    )
    assert not marker.exists()
    said = [line.split(" ", 1)[1] for line in done.stdout.splitlines()]
    assert len(said) == len(names)
    assert said[0].startswith("refused") and "auto_map" in said[0]
    assert said[2] == "read" and said[3].startswith("refused") and said[4] == "read"


FOREIGN = {
    "auto_map": AUTO_MAP,
    "attn_implementation": "kernels-community/flash-attn",
    "_attn_implementation": "kernels-community/flash-attn",
    "_attn_implementation_internal": "kernels-community/flash-attn",
    "_attn_implementation_autoset": True,
    "experts_implementation": "someone/kernel",
    "kernel_config": {"RMSNorm": "someone/kernel"},
    "use_kernels": True,
    "quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True},
    "custom_pipelines": {"summarization": {"impl": "planted.Pipeline"}},
    "custom_generate": "someone/generate",
    "base_model_tp_plan": {"layers": "colwise"},
    "sub_configs": {"encoder": "planted"},
    "encoder": {"model_type": "planted"},
    "decoder": {"model_type": "planted"},
    "add_cross_attention": True,
    "pruned_heads": {"0": [1]},
    "torchscript": True,
    "chunk_size_feed_forward": 7,
    "output_attentions": True,
    "output_hidden_states": True,
    "tie_word_embeddings": False,
    "is_decoder": True,
    "is_encoder_decoder": False,
    "never seen": 1,
}


@pytest.mark.parametrize("key", first_of(FOREIGN))
def test_a_key_that_is_not_known_is_refused_by_name(loaded, folder, key):
    edit(folder / "config.json", **{key: FOREIGN[key]})
    with pytest.raises(TrunkError, match=key):
        load_seq2seq(str(folder))
    config = json.dumps(json.loads(loaded.config) | {key: FOREIGN[key]}).encode()
    with pytest.raises(TrunkError, match=key):
        Seq2Seq(msgspec.structs.replace(loaded, config=config))


WRITING = {
    "custom_generate": "someone/generate",
    "trust_remote_code": True,
    "penalty_alpha": 0.6,
    "dola_layers": "low",
    "num_beam_groups": 2,
    "diversity_penalty": 0.5,
    "num_return_sequences": 10**6,
    "assistant_early_exit": 1,
    "prompt_lookup_num_tokens": 4,
    "cache_implementation": "offloaded",
    "cache_config": {"backend": "planted"},
    "compile_config": {"fullgraph": True},
    "watermarking_config": {"bias": 2.0},
    "constraints": [1],
    "force_words_ids": [[1]],
    "stop_strings": ["a"],
    "max_time": 0.1,
    "return_dict_in_generate": True,
    "output_scores": True,
    "min_length": -1,
    "max_length": "many",
    "early_stopping": "often",
    "eos_token_id": 10**6,
    "bad_words_ids": [[10**6]],
    "forced_bos_token_id": -1,
    "suppress_tokens": [2**40],
    "length_penalty": "x",
}


@pytest.mark.parametrize("key", WRITING)
def test_a_setting_of_writing_that_is_not_known_is_refused(loaded, key):
    generation = json.dumps(json.loads(loaded.generation) | {key: WRITING[key]}).encode()
    with pytest.raises(TrunkError):
        Seq2Seq(msgspec.structs.replace(loaded, generation=generation))


NUMBERS = [-1, 0, 10**8, 10**12, 2**64, 1.5, "7", None, [1], {"a": 1}, True]
SHAPES = ["d_model", "encoder_layers", "decoder_attention_heads", "vocab_size", "max_position_embeddings"]


@pytest.mark.parametrize("number", NUMBERS, ids=str)
@pytest.mark.parametrize("key", SHAPES)
def test_a_config_of_another_shape_is_refused(loaded, key, number):
    config = json.dumps(json.loads(loaded.config) | {key: number}).encode()
    with pytest.raises(TrunkError):
        Seq2Seq(msgspec.structs.replace(loaded, config=config))


@pytest.mark.parametrize("raw", [b"", b"7", b"[]", b"null", b"{", b"[" * 100_000, b'{"a": "\xff"}', b"{}"])
def test_a_config_that_is_none_is_refused(loaded, raw):
    for field in ("config", "generation"):
        if (field, raw) != ("generation", b"{}"):
            with pytest.raises(TrunkError):
                Seq2Seq(msgspec.structs.replace(loaded, **{field: raw}))


@pytest.mark.parametrize("labels", [{"num_labels": 10**8}, {"_num_labels": 10**8}, {"id2label": {"0": "a"}}])
def test_labels_of_a_summarizer_mean_nothing_and_are_not_made(loaded, labels):
    """100,000,000 labels were named one by one."""
    config = json.dumps(json.loads(loaded.config) | labels).encode()
    model = Seq2Seq(msgspec.structs.replace(loaded, config=config))
    assert [one.text for one in model.write(["the lamp"])] == [one.text for one in Seq2Seq(loaded).write(["the lamp"])]


@cases("key", ["beams", "max_tokens", "summary_tokens"])
@cases("number", [10**6 + 1, 10**9, 2**63, 2**100, 0, -1])
def test_numbers_that_no_memory_holds_are_refused(key, number):
    with pytest.raises(ConfigError, match=key):
        SummarySettings(**({"max_tokens": 8, "summary_tokens": 8, "beams": 1} | {key: number}))
    with pytest.raises(ConfigError, match=key):
        Summarizer(name="x", **{key: number})


def test_more_tokens_than_the_model_has_positions_are_refused(loaded):
    for key in ("max_tokens", "summary_tokens"):
        settings = msgspec.structs.replace(loaded.settings, **{key: 41})
        with pytest.raises(ConfigError, match="positions"):
            Seq2Seq(msgspec.structs.replace(loaded, settings=settings))


def test_a_tokenizer_beyond_the_word_vectors_of_a_bundle_is_refused(loaded):
    words = json.dumps(
        {"version": "1.0", "model": {"type": "WordLevel", "vocab": {"<unk>": 5000}, "unk_token": "<unk>"}}
    ).encode()
    with pytest.raises(WeightsMismatch, match="5000"):
        Seq2Seq(msgspec.structs.replace(loaded, tokenizer=words))


def test_keys_of_old_checkpoints_that_mean_nothing_are_left_out(loaded, folder):
    """As in the config.json of facebook/bart-large-cnn."""
    old = {"_num_labels": 3, "add_bias_logits": False, "output_past": True, "save_step": 58, "prefix": " "}
    edit(folder / "config.json", **old, task_specific_params={"summarization": {"num_beams": 4}})
    assert load_seq2seq(str(folder), summary_tokens=16).digest != ""
    assert load_seq2seq(str(folder), summary_tokens=16).config == loaded.config


def test_an_encoder_whose_config_is_a_pipe_is_refused(tmp_path):
    folder = write_trunk(tmp_path / "trunk")
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")
    with pytest.raises(PolyheadError):
        load_trunk(str(folder))
