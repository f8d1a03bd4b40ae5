"""A task over a table of word vectors without layers, from fitting to answers."""

import json

from safetensors.numpy import save_file

from polyhead.api.estimators import PolyheadClassifier
from polyhead.testing import tiny_trunk
from support.tiny_project import messages


def test_moods_are_told_by_the_vectors_of_words(tmp_path):
    words = tiny_trunk(family="static")
    (tmp_path / "tokenizer.json").write_bytes(words.tokenizer)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "model2vec"}))
    save_file({"embeddings": words.arrays["embeddings.word.weight"]}, tmp_path / "model.safetensors")
    rows = messages(120)
    texts, moods = [row["text"] for row in rows], [row["mood"] for row in rows]
    model = PolyheadClassifier(trunk=str(tmp_path)).fit(texts[:80], moods[:80])
    assert model.score(texts[80:], moods[80:]) > 0.9
