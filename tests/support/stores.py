"""Stores of a corpus made of texts with the tiny trunk, as tests of training from a store need them."""

import numpy as np

from polyhead import plan
from polyhead.encoder.shape import WORD_VECTORS
from polyhead.engine.backends.base import LoadedTask
from polyhead.engine.backends.prefix import stored_layers
from polyhead.engine.backends.reference import ReferenceBackend
from polyhead.plan import Codec, Embed, Head, Layers, Path, Pool
from polyhead.plan.coding import encode
from polyhead.store.corpus import create_corpus
from polyhead.store.corpus.base import WORDS, FeatureColumn, PackedRows, Schema
from polyhead.store.corpus.ids import document_id
from polyhead.store.taps import batch_values, entry_batches, fixed_codec, sample_values
from polyhead.store.words import packed_words
from polyhead.testing import tiny_trunk
from polyhead.text.tokenize import Tokenizer, windows_of

TOKENS = {"layers": "mean", "of": 2, "positions": "all"}  # what the attention heads of these tests read
SIGN = Codec(name="sign")


def stored_path(trunk, codec=SIGN, **pool):
    """What a store keeps of every text: the last layers' mean, unless `pool` says another mix."""
    kept = Pool(**{**TOKENS, **pool}, codec=codec)
    return Path(nodes=(Embed(trunk=trunk.digest), Layers(start=0, stop=trunk.architecture.layers), kept))


def token_codec(trunk, inputs):
    """The codec that is told tokens, fixed from what these tests' attention heads read of single texts."""
    path, tokenizer = stored_path(trunk, codec=Codec(name="float32")), Tokenizer(trunk.tokenizer, trunk.settings)
    values = sample_values(_backend(trunk, path).features, path, inputs, tokenizer, budget=2048)
    return fixed_codec(Codec(name="token1"), values, per="tensor", words=trunk.arrays[WORD_VECTORS])


def make_store(place, inputs, *paths, trunk=None, source=None, windows=False, words=False):
    """A store at this place of the stored values of these inputs, by default of every token in one bit a dimension."""
    trunk = trunk or tiny_trunk()
    paths = paths or (stored_path(trunk),)
    columns = [
        FeatureColumn(
            digest=plan.digest(path), layers=stored_layers(path), width=trunk.architecture.width, codec=path.pool.codec
        )
        for path in paths
    ]
    facts = {"trunk": trunk.digest, "tokenizer": "t", "precision": "float32", "long_texts": "cut"}
    schema = Schema(features=tuple(columns), words=words, source={**facts, **(source or {})})
    store = create_corpus(place, schema)
    for size in (1, 2):
        alike = [texts for texts in inputs if len(texts) == size]
        if alike:
            _append(store, alike, paths, columns, trunk, windows)
    return store


def _backend(trunk, path):
    head = Head(kind="regression", width=1, part="task:x")
    return ReferenceBackend(trunk, {"x": LoadedTask(path=Path(nodes=(*path.nodes[:-1], Pool(), head)), arrays={})})


def _append(store, inputs, paths, columns, trunk, windows):
    backend = _backend(trunk, paths[0])
    tokenizer = Tokenizer(trunk.tokenizer, trunk.settings)
    encodings = tokenizer.encodings(inputs, windows=windows_of(tokenizer.max_tokens) if windows else None)
    values = [{} for _ in paths]
    for members, batch in entry_batches(encodings, pad_id=tokenizer.pad_id, budget=2048):
        for found, each in zip(values, batch_values(backend.features, list(paths), batch), strict=True):
            found.update({int(member): (each.of(row), each.tokens_of(row)) for row, member in enumerate(members)})
    features = {}
    for column, found in zip(columns, values, strict=True):
        raw = [
            encode(value, column.codec, tokens[:, None]).reshape(-1, column.token_bytes)
            for value, tokens in map(found.get, range(len(found)))
        ]
        features[column.digest] = PackedRows.of([len(each) for each in raw], np.concatenate(raw))
    if store.schema.words:
        hashed = packed_words([inputs[row] for row in encodings.row.tolist()])
        features[WORDS] = PackedRows.of(list(map(len, hashed)), np.concatenate(hashed))
    numbered = zip(encodings.row.tolist(), encodings.window.tolist(), strict=True)
    ids = [document_id(inputs[row], f"window:{window}" if window else "") for row, window in numbered]
    store.append(ids, features)
