"""The page on a family of one's own: its code, block by block, against `transformers`."""

import re
from pathlib import Path

import pytest

from polyhead.encoder.families import FAMILIES
from polyhead.encoder.names import trunk_names
from polyhead.engine.backends import BACKENDS
from polyhead.testing import tiny_trunk
from support.hugging_face import to_hugging_face

pytest.importorskip("transformers")
PAGE = Path(__file__).parents[2] / "docs" / "project" / "a-family.md"
BLOCK = re.compile(r"^```py (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_pages_family_equals_transformers_on_every_backend(tmp_path, monkeypatch, capsys):
    blocks = dict(BLOCK.findall(PAGE.read_text(encoding="utf-8")))
    assert list(blocks) == ["names.py", "xlm_roberta_xl.py", "check.py"]
    monkeypatch.chdir(tmp_path)
    before, namespace = set(FAMILIES), {"__name__": "page"}
    with FAMILIES.temporary():
        for name, body in blocks.items():
            exec(compile(body, str(PAGE.with_name(name)), "exec"), namespace)
        (family,) = [each for each in FAMILIES.values() if each.name not in before]
        assert "encoder.layer.0.attention.self_attn_layer_norm.weight" in capsys.readouterr().out.splitlines()
        assert namespace["worst"].keys() == set(BACKENDS) - {"torch-cuda"}
        data = tiny_trunk(family=family.name)  # made of its own config.json
        assert data.architecture.layer(1).closing_norm and data.architecture.first_position == 2
        theirs = to_hugging_face(data.arrays, family.name)
        assert trunk_names(theirs, family.name).keys() == data.arrays.keys()
    assert set(FAMILIES) == before
