"""Every family of encoders on every backend against `transformers`, and what a family's file promises."""

import base64
import itertools
import json
import os
import tracemalloc
from importlib.util import find_spec
from pathlib import Path

import msgspec
import numpy as np
import pytest
import tokenizers
import torch
from safetensors.numpy import load_file, save_file

from polyhead import plan
from polyhead.encoder.configs import architecture_of
from polyhead.encoder.families import FAMILIES, EncoderFamily, register_encoder_family
from polyhead.encoder.names import trunk_names
from polyhead.encoder.relative import frequencies
from polyhead.engine.backends import open_backend
from polyhead.engine.backends.base import LoadedTask, TokenBatch
from polyhead.errors import ConfigError, TrunkError, WeightsMismatch
from polyhead.plan import Pool
from polyhead.project.pretrained import load_trunk
from polyhead.project.weights import open_weights
from polyhead.testing.tiny import tiny_batch, tiny_part, tiny_path, tiny_tasks, tiny_trunk
from polyhead.text.tokenize import Tokenizer
from support.encoder_families import CASES, saved_model
from support.tiny_project import write_trunk

transformers = pytest.importorskip("transformers")
LENGTHS = (12, 1, 7, 28, 3)
FAR = {"mpnet": 170, "deberta-v2": 48, "deberta-v3": 48, "deberta-v2-c2p": 48, "modernbert": 48, "modernbert-long": 601}


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def batch_of(lengths, *, padding):
    """Ids that are none of the padding ids inside the texts."""
    mask = np.arange(max(lengths)) < np.array(lengths)[:, None]
    ids = np.where(mask, np.random.default_rng(1).integers(2, 50, mask.shape), padding)
    return TokenBatch(ids=ids, mask=mask, segments=np.zeros_like(ids), words=np.full((len(lengths), 1), -1))


def states_of_backend(name, data, batch):
    """The state of every token behind every layer, (tokens, width) each."""
    task = tiny_tasks()[0]
    paths = [tiny_path(task, data, pool=Pool(positions="all"), stop=i + 1) for i in range(data.architecture.layers)]
    whole = tiny_path(task, data, pool=Pool(positions="mean"))
    arrays = tiny_part(whole, data.architecture, whole.head.part)
    backend = open_backend(name, data, {task.name: LoadedTask(path=whole, arrays=arrays)}, precision="float32")
    backend.run(plan.merge({task.name: whole}), batch)
    return [values[:, 0] for values in backend.features(paths, batch)]


def states_of_transformers(model, batch):
    given = {"input_ids": torch.from_numpy(batch.ids), "attention_mask": torch.from_numpy(batch.mask).long()}
    with torch.inference_mode():
        states = model(**given, output_hidden_states=True).hidden_states
    return [state[torch.from_numpy(batch.mask)].numpy() for state in states[1:]]


@pytest.mark.parametrize("backend", ["reference", "openvino", "onnxruntime"])
@pytest.mark.parametrize("case", CASES)
def test_every_layer_equals_transformers(case, backend, tmp_path):
    model, data = saved_model(case, tmp_path), load_trunk(str(tmp_path))
    batch = batch_of((*LENGTHS, FAR.get(case, 1)), padding=model.config.pad_token_id)
    ours, theirs = states_of_backend(backend, data, batch), states_of_transformers(model, batch)
    assert len(ours) == len(theirs) == data.architecture.layers
    worst = [np.abs(a - b).max() / max(1, b.std()) for a, b in zip(ours, theirs, strict=True)]
    assert max(worst) < 1e-5, worst


@pytest.mark.parametrize(
    ("parameters", "width"),
    [
        ({"rope_type": "default", "rope_theta": 160_000.0}, 64),
        ({"rope_type": "linear", "rope_theta": 10_000.0, "factor": 8.0}, 32),
        ({"rope_type": "yarn", "rope_theta": 160_000.0, "factor": 4.0, "original_max_position_embeddings": 8192}, 64),
        ({"rope_type": "yarn", "rope_theta": 5e5, "factor": 0.5, "original_max_position_embeddings": 2048}, 128),
        (
            {
                "rope_type": "yarn",
                "rope_theta": 10_000.0,
                "factor": 16.0,
                "original_max_position_embeddings": 512,
                "beta_fast": 24.0,
                "beta_slow": 2.0,
                "attention_factor": 1.25,
            },
            64,
        ),
    ],
)
def test_frequencies_are_those_of_transformers(parameters, width):
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    from transformers.models.eurobert.modeling_eurobert import EuroBertRotaryEmbedding

    sizes = {"hidden_size": 4 * width, "num_attention_heads": 4, "num_hidden_layers": 1, "intermediate_size": 4}
    config = transformers.EuroBertConfig(**sizes, max_position_embeddings=2**16, rope_parameters=dict(parameters))
    default = EuroBertRotaryEmbedding.compute_default_rope_parameters
    theirs, scale = ROPE_INIT_FUNCTIONS.get(parameters["rope_type"], default)(config)
    raw = json.dumps(config.to_dict()).encode()
    rotary = architecture_of(raw, source="config.json").rotary
    np.testing.assert_allclose(frequencies(rotary, width // 2), theirs.numpy(), rtol=1e-6)
    assert rotary.scale == pytest.approx(scale)


def equal(data, other):
    assert data.arrays.keys() == other.arrays.keys()
    assert all(np.array_equal(data.arrays[name], other.arrays[name]) for name in data.arrays)
    assert (data.architecture, data.digest) == (other.architecture, other.digest)


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "static"])
def test_a_tiny_trunk_of_every_family_is_written_and_read(family, tmp_path):
    data = tiny_trunk(family=family)
    equal(load_trunk(str(write_trunk(tmp_path, data)), max_tokens=data.settings.max_tokens), data)


@pytest.mark.parametrize("case", ["mpnet", "modernbert", "deberta-v3", "bart", "eurobert", "gte", "nomic"])
def test_a_sharded_checkpoint_is_the_same_trunk(case, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    saved_model(case, whole)
    saved_model(case, parts, max_shard_size="20KB")
    assert len(list(parts.glob("model-*.safetensors"))) > 2
    equal(load_trunk(str(parts)), load_trunk(str(whole)))


WITH_HEADS = {
    "mpnet": "MPNetForMaskedLM",
    "modernbert": "ModernBertForMaskedLM",
    "deberta-v3": "DebertaV2ForSequenceClassification",
    "bart": "BartForConditionalGeneration",
    "eurobert": "EuroBertForMaskedLM",
    "gte": "GteForMaskedLM",
    "nomic": "NomicBertForMaskedLM",
}


@pytest.mark.parametrize("case", WITH_HEADS)
def test_an_encoder_is_found_inside_a_model_with_a_head(case, tmp_path):
    saved_model(case, tmp_path / "bare")
    bare = load_trunk(str(tmp_path / "bare"))
    model = getattr(transformers, WITH_HEADS[case])(transformers.AutoConfig.from_pretrained(tmp_path / "bare"))
    prefix = FAMILIES[bare.architecture.family].prefix or bare.architecture.family
    encoder = getattr(model, prefix)
    arrays = encoder.load_state_dict(
        getattr(transformers, CASES[case][0] + "Model").from_pretrained(tmp_path / "bare").state_dict(), strict=False
    )
    assert not arrays.missing_keys
    model.save_pretrained(tmp_path / "headed")
    (tmp_path / "headed" / "tokenizer.json").write_bytes(bare.tokenizer)
    equal(load_trunk(str(tmp_path / "headed")), bare)


@pytest.mark.parametrize("case", ["gte", "nomic"])
def test_names_of_modules_in_memory_are_read_as_those_that_are_saved(case, tmp_path):
    """A pickled state dict has the names of the modules, with queries, keys and values apart."""
    model, saved = saved_model(case, tmp_path), load_trunk(str(tmp_path))
    (tmp_path / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    equal(load_trunk(str(tmp_path)), saved)


@pytest.mark.parametrize(("dtype", "digits"), [("bfloat16", 8), ("float16", 11)])
def test_fused_arrays_in_half_precision_are_split_as_in_full(dtype, digits, tmp_path):
    saved_model("modernbert", tmp_path / "full")
    saved_model("modernbert", tmp_path / "half", dtype=dtype)
    full, half = load_trunk(str(tmp_path / "full")), load_trunk(str(tmp_path / "half"))
    for name, array in full.arrays.items():
        np.testing.assert_allclose(half.arrays[name], array, rtol=2.0**-digits, atol=1e-7)


def test_one_array_at_a_time_is_split(tmp_path):
    """What reading takes is the arrays themselves and one of them more, however many are fused."""
    size = 512
    fused = {f"layers.{i}.attn.Wqkv.weight": np.zeros((3 * size, size), np.float32) for i in range(6)}
    save_file(fused | {"embeddings.tok_embeddings.weight": np.zeros((4, size), np.float32)}, tmp_path / "x.safetensors")
    checkpoint = open_weights(tmp_path / "x.safetensors")
    places = trunk_names(checkpoint.files, "modernbert")
    tracemalloc.start()
    arrays = checkpoint.read(places)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(arrays) == 19
    assert peak < sum(array.nbytes for array in arrays.values()) + 2.5 * 4 * size**2


def test_rows_that_cannot_be_shared_out_are_refused(tmp_path):
    saved_model("modernbert", tmp_path)
    arrays = load_file(tmp_path / "model.safetensors")
    arrays["layers.1.attn.Wqkv.weight"] = arrays["layers.1.attn.Wqkv.weight"][:-1]
    save_file(arrays, tmp_path / "model.safetensors")
    with pytest.raises(WeightsMismatch, match=r"layers\.1\.attn\.Wqkv\.weight.*3 equal parts.*95 rows"):
        load_trunk(str(tmp_path))


def test_a_table_that_deberta_saved_and_does_not_read_is_left_out(tmp_path):
    saved_model("deberta-v3", tmp_path)
    before = load_trunk(str(tmp_path))
    arrays = load_file(tmp_path / "model.safetensors")
    save_file(
        arrays | {"embeddings.position_embeddings.weight": np.ones((48, 32), np.float32)},
        tmp_path / "model.safetensors",
    )
    equal(load_trunk(str(tmp_path)), before)


def test_a_family_of_ones_own_is_registered_and_read(tmp_path):
    saved_model("bert", tmp_path)
    bert, before = FAMILIES["bert"], load_trunk(str(tmp_path))
    config = json.loads((tmp_path / "config.json").read_text()) | {"model_type": "mine", "depth": 3}
    (tmp_path / "config.json").write_text(json.dumps(config))
    mine = msgspec.structs.replace(bert, name="mine", model_types=("mine",), keys={**bert.keys, "layers": "depth"})
    with FAMILIES.temporary():
        register_encoder_family(mine)
        found = load_trunk(str(tmp_path))
        assert found.architecture == msgspec.structs.replace(before.architecture, family="mine")
        for taken in ({"model_types": ("mine",), "name": "other"}, {"model_types": ("x",), "name": "mine"}):
            with pytest.raises(ConfigError, match="there is an encoder family 'mine' already"):
                register_encoder_family(EncoderFamily(keys={}, table=(), **taken))


def static_folder(folder, **arrays):
    """A static table as model2vec writes it, over a tokenizer of five words."""
    words = {"[UNK]": 0, "good": 1, "bad": 2, "lamp": 3, "box": 4}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="good $A bad", special_tokens=[("good", 1), ("bad", 2)]
    )
    made.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"model_type": "model2vec", "normalize": True}))
    save_file(arrays, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("parts", [(), ("weights",), ("mapping",), ("weights", "mapping")], ids="+".join)
def test_means_of_a_static_table_have_the_direction_of_model2vecs(parts, tmp_path):
    """Its code: the mean of `embeddings[mapping[id]] * weights[id]` over all pieces but the unknown, at length 1."""
    rng = np.random.default_rng(0)
    given = {"weights": rng.random(5).astype(np.float32), "mapping": np.array([2, 0, 1, 1, 2])}
    arrays = {name: given[name] for name in parts}
    table = rng.standard_normal((3 if "mapping" in parts else 5, 6)).astype(np.float32)
    data = load_trunk(str(static_folder(tmp_path, embeddings=table, **arrays)))
    assert (data.architecture.layers, data.architecture.width, data.architecture.vocabulary) == (0, 6, 5)
    texts = ["good lamp", "bad unknown box box", "lamp", ""]
    expected = []
    for text in texts:
        ids = [["good", "bad", "lamp", "box"].index(word) + 1 for word in text.split() if word != "unknown"]
        vectors = [table[arrays.get("mapping", range(5))[i]] * arrays.get("weights", [1] * 5)[i] for i in ids]
        expected.append(np.mean(vectors, axis=0) if ids else np.zeros(6))
    ours = [
        data.arrays["embeddings.word.weight"][encoded.ids].mean(axis=0)
        for encoded in Tokenizer(data.tokenizer, data.settings).encode([(text,) for text in texts])
    ]
    unit = [vector / max(1e-9, np.linalg.norm(vector)) for vector in (*ours, *expected)]
    np.testing.assert_allclose(unit[:4], unit[4:], atol=1e-6)
    assert np.linalg.norm(unit[0]) == pytest.approx(1) and np.linalg.norm(unit[3]) == 0


@pytest.mark.parametrize("backend", ["reference", "torch", "openvino", "onnxruntime"])
def test_features_over_a_static_table_are_its_vectors(backend):
    data, task = tiny_trunk(family="static"), tiny_tasks()[0]
    batch = tiny_batch(data, (5, 3, 9))
    paths = [tiny_path(task, data, pool=Pool(positions=positions)) for positions in ("mean", "first")]
    loaded = LoadedTask(path=paths[0], arrays=tiny_part(paths[0], data.architecture, paths[0].head.part))
    opened = open_backend(backend, data, {task.name: loaded}, precision="float32")
    table = data.arrays["embeddings.word.weight"]
    vectors = [table[ids[mask]] for ids, mask in zip(batch.ids, batch.mask, strict=True)]
    means, firsts = (values[:, 0] for values in opened.features(paths, batch))
    np.testing.assert_allclose(means, [each.mean(axis=0) for each in vectors], atol=1e-6)
    np.testing.assert_allclose(firsts, [each[0] for each in vectors], atol=1e-6)
    assert opened.layers_run == 0


def test_the_unknown_piece_of_a_unigram_tokenizer_keeps_its_vector(tmp_path):
    """model2vec leaves out the unknown piece of tokenizers that name it, and a unigram one has its index alone."""
    pieces = [("<pad>", 0.0), ("<unk>", 0.0), ("good", -1.0)]
    made = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, unk_id=1))
    made.add_special_tokens(["<pad>", "<unk>"])
    folder = static_folder(tmp_path, embeddings=np.ones((3, 6), np.float32))
    made.save(str(folder / "tokenizer.json"))
    data = load_trunk(str(folder))
    assert data.arrays["embeddings.word.weight"].sum(axis=1).tolist() == [0, 6, 6]
    (encoded,) = Tokenizer(data.tokenizer, data.settings).encode([("good",)])
    assert encoded.ids.tolist() == [0, 2]


@pytest.mark.parametrize(
    "change",
    [
        {"model": None},
        {"model": {"type": "Unigram", "vocab": [0], "unk_id": 0}},
        {"model": {"type": "WordLevel", "vocab": {"x": "y"}, "unk_token": "x"}},
        {"added_tokens": [{"special": True, "id": "1"}, 3]},
        {"added_tokens": [{"special": True, "id": 10**12, "content": "[X]"}]},
    ],
)
def test_a_tokenizer_that_is_none_is_refused_over_a_static_table_too(change, tmp_path):
    folder = static_folder(tmp_path, embeddings=np.ones((5, 6), np.float32))
    file = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps(file | change))
    with pytest.raises(WeightsMismatch, match="tokenizer"):
        load_trunk(str(folder))


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"mapping": np.array([0, 1, 2, 3, 9])}, "'mapping'"),
        ({"mapping": np.zeros(5, np.float32)}, "'mapping'"),
        ({"weights": np.zeros(4, np.float32)}, "'weights'"),
        ({"other": np.zeros(4, np.float32)}, "other"),
    ],
)
def test_parts_of_a_static_table_that_do_not_fit_are_refused_by_name(arrays, words, tmp_path):
    folder = static_folder(tmp_path, embeddings=np.ones((5, 6), np.float32), **arrays)
    with pytest.raises(WeightsMismatch, match=words):
        load_trunk(str(folder))


# A sentencepiece model of [PAD] [CLS] [SEP] [UNK] ▁the ▁lamp ▁ a b s, unigram.
PIECES = (
    "Cg4KBVtQQURdFQAAAIAYAwoOCgVbQ0xTXRUAAIC/GAMKDgoFW1NFUF0VAAAAwBgDCg4KBVtVTktdFQAAQMAYAgoPCgbiloF0aGUVAACAwBgBChAKB+KW"
    "gWxhbXAVAACgwBgBCgwKA+KWgRUAAMDAGAEKCgoBYRUAAODAGAEKCgoBYhUAAADBGAEKCgoBcxUAABDBGAESBRgBwAID"
)


@pytest.fixture
def pieces(tmp_path):
    """DeBERTa with a sentencepiece model and no tokenizer.json, as the hub has it."""
    saved_model("deberta-v3", tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "spm.model").write_bytes(base64.b64decode(PIECES))
    return tmp_path


def test_tokenizer_of_deberta_is_built_from_its_pieces(pieces):
    pytest.importorskip("sentencepiece")
    data = load_trunk(str(pieces))
    single, pair = Tokenizer(data.tokenizer, data.settings).encode([("the lamp sab",), ("the", "lamp")])
    assert single.ids.tolist() == [1, 4, 5, 6, 9, 7, 8, 2]
    assert (pair.ids.tolist(), pair.segments.tolist()) == ([1, 4, 2, 5, 2], [0, 0, 0, 1, 1])


@pytest.mark.skipif(find_spec("sentencepiece") is not None, reason="sentencepiece is installed")
def test_the_package_that_reads_pieces_is_named(pieces):
    with pytest.raises(TrunkError, match=r"spm\.model, and no package sentencepiece.*pip install sentencepiece"):
        load_trunk(str(pieces))


MPNET = Path(os.environ.get("POLYHEAD_MPNET", Path(__file__).parents[3] / "shared" / "all-mpnet-base-v2"))


@pytest.fixture
def mpnet():
    if not (MPNET / "model.safetensors").is_file():
        pytest.skip(f"no all-mpnet-base-v2 in {MPNET}; set POLYHEAD_MPNET to where it is")
    return MPNET


def test_every_layer_of_mpnet_equals_transformers(mpnet):
    """Long texts too, whose far distances share buckets; on the backend that reads graphs without torch."""
    data, model = load_trunk(str(mpnet)), transformers.AutoModel.from_pretrained(str(mpnet)).eval()
    mask = np.arange(200) < np.array([200, 5])[:, None]
    ids = np.where(mask, np.random.default_rng(0).integers(5, 30000, mask.shape), 1)
    batch = TokenBatch(ids=ids, mask=mask, segments=np.zeros_like(ids), words=np.full((2, 1), -1))
    ours, theirs = states_of_backend("onnxruntime", data, batch), states_of_transformers(model, batch)
    worst = [np.abs(a - b).max() for a, b in zip(ours, theirs, strict=True)]
    assert len(worst) == 12 and max(worst) < 1e-4, worst


def test_mpnet_reads_texts_as_its_own_tokenizer_does(mpnet):
    """Single texts, pairs, words beyond its vocabulary, and texts that are cut."""
    data, theirs = load_trunk(str(mpnet)), transformers.AutoTokenizer.from_pretrained(str(mpnet))
    texts = ["Where is my order?", "Ünïcode ☃ and 漢字", "", "word " * 600]
    encoded = Tokenizer(data.tokenizer, data.settings).encode([(text,) for text in texts])
    assert [e.ids.tolist() for e in encoded] == theirs(texts, truncation=True, max_length=512)["input_ids"]
    pairs = [("Where is it?", "It is late."), ("a ☃", "b" * 200)]
    encoded = Tokenizer(data.tokenizer, data.settings).encode(pairs)
    assert [e.ids.tolist() for e in encoded] == [theirs(*pair)["input_ids"] for pair in pairs]


WORDS = (
    ("the happy", "a broken", "our old", "no", "my neighbour's"),
    ("lamp", "telephone", "garden", "train to Vienna", "customer", "naïve question", "invoice", "dog", "song", "law"),
    ("was late", "was never sold", "is on the table", "cannot be opened"),
    ("today.", "again!", "in 1987", "because of the rain", ", I think"),
)


@pytest.mark.slow
def test_mean_vectors_of_mpnet_are_those_of_transformers_and_similarity_that_of_sentence_transformers(mpnet):
    """1,000 texts; sentence-transformers' is the cosine of normalised means over all tokens, special ones too."""
    texts = [" ".join(words) for words in itertools.product(*WORDS)]
    assert len(texts) == len(set(texts)) == 1000
    data, theirs = load_trunk(str(mpnet), max_tokens=64), transformers.AutoTokenizer.from_pretrained(str(mpnet))
    task, model = tiny_tasks()[0], transformers.AutoModel.from_pretrained(str(mpnet)).eval()
    path = tiny_path(task, data, pool=Pool(positions="mean"), hidden=0)
    backend = open_backend("onnxruntime", data, {}, precision="float32")
    tokenizer, means, wanted = Tokenizer(data.tokenizer, data.settings), [], []
    for start in range(0, len(texts), 50):
        some = texts[start : start + 50]
        rows = tokenizer.encode([(text,) for text in some])
        mask = np.arange(max(len(row.ids) for row in rows)) < np.array([[len(row.ids)] for row in rows])
        ids = np.full(mask.shape, 1)
        ids[mask] = np.concatenate([row.ids for row in rows])
        batch = TokenBatch(ids=ids, mask=mask, segments=np.zeros_like(ids), words=np.full((len(ids), 1), -1))
        (values,) = backend.features([path], batch)
        means.append(values.reshape(len(some), -1))
        given = theirs(some, padding=True, return_tensors="pt")
        with torch.inference_mode():
            states, read = model(**given).last_hidden_state, given["attention_mask"][..., None]
        wanted.append(((states * read).sum(1) / read.sum(1)).numpy())
    ours, expected = np.concatenate(means), np.concatenate(wanted)
    np.testing.assert_allclose(ours, expected, atol=1e-4)
    first, second = (torch.nn.functional.normalize(torch.from_numpy(each)) for each in (ours, expected))
    similar, published = first @ first.T, second @ second.T  # `util.cos_sim` of `encode(normalize_embeddings=True)`
    torch.testing.assert_close(similar, published, atol=1e-4, rtol=0)
    assert published.min() < 0.3 < 0.9 < published[0, 1]
