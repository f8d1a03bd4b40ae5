"""Checkpoints that plain `transformers` trained, scanned: the prefix found is the one that was frozen."""

import numpy as np
import pytest

pytest.importorskip("transformers")

import torch
import transformers

from polyhead.convert.folders import scan_folders
from polyhead.errors import ConfigError, TrunkError, TrunkNotFound
from support import adapters, checkpoints


def names(*folders):
    return [str(folder) for folder in folders]


def saved(model, folder, family="Bert"):
    model.save_pretrained(folder)
    checkpoints.FAMILIES[family][0]().save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("family", checkpoints.FAMILIES)
@pytest.mark.parametrize("frozen", [0, 2, 4])
def test_prefix_is_what_training_left_frozen(family, frozen):
    folder = str(checkpoints.trained("mood", family=family, frozen=frozen))
    found = scan_folders([folder], base=str(checkpoints.base(family))).models[0]
    assert found.with_base.layers == frozen
    others = {"DistilBert": "relu"} | dict.fromkeys(("Electra", "DebertaV2", "ModernBert", "EuroBert"), "gelu")
    assert found.scanned.head.activation == others.get(family, "tanh")


@pytest.mark.parametrize(
    ("task", "kind"),
    [("mood", "single_label"), ("topics", "multi_label"), ("score", "regression"), ("names", "tagging")],
)
def test_every_kind_of_task_is_told(task, kind):
    found = scan_folders(names(checkpoints.trained(task, frozen=1))).models[0]
    assert (found.scanned.head.kind, found.refused) == (kind, "")
    assert found.labels == (() if kind == "regression" else checkpoints.LABELS[task])


def test_two_checkpoints_share_what_both_left_frozen():
    """No base is needed: layers that were trained differ from one run to the other."""
    scan = scan_folders(names(*(checkpoints.trained("mood", frozen=k, seed=k) for k in (1, 3, 2))))
    assert [pair.layers for pair in scan.pairs] == [1, 1, 2]
    (group,) = scan.groups
    assert (group.depth, list(group.taps.values())) == (2, [1, 2, 2])


def test_embeddings_that_were_trained_share_nothing():
    folder = checkpoints.trained("mood", frozen=2, embeddings=True, name="own-embeddings")
    found = scan_folders(names(folder), base=str(checkpoints.base())).models[0]
    assert (found.with_base.layers, found.with_base.differs) == (None, "the embeddings")


def test_a_table_of_distances_that_was_trained_shares_no_layer(tmp_path):
    """Every layer reads it, so that none is another encoder's although its own arrays are."""
    model = transformers.AutoModel.from_pretrained(checkpoints.base("MPNet"))
    model.encoder.relative_attention_bias.weight.data += 0.1
    found = scan_folders([saved(model, tmp_path / "other", "MPNet")], base=str(checkpoints.base("MPNet"))).models[0]
    assert found.with_base.layers == 0


def test_another_tokenizer_shares_nothing(tmp_path):
    model = checkpoints.classifier("mood")
    model.save_pretrained(tmp_path)
    checkpoints.transformers.BertTokenizer(
        vocab={piece: i for i, piece in enumerate(checkpoints.PIECES)}, do_lower_case=False
    ).save_pretrained(tmp_path)
    found = scan_folders(names(tmp_path), base=str(checkpoints.base())).models[0]
    assert (found.with_base.layers, found.with_base.differs) == (None, "the tokenizer")


def test_padding_and_truncation_left_by_a_training_script_do_not_count(tmp_path):
    """A fast tokenizer keeps the last call's settings in its file."""
    checkpoints.classifier("mood").save_pretrained(tmp_path)
    tokenizer = checkpoints.wordpiece()
    tokenizer(checkpoints.TEXTS, padding="max_length", truncation=True, max_length=9)
    tokenizer.save_pretrained(tmp_path)
    assert '"max_length": 9' in (tmp_path / "tokenizer.json").read_text()
    found = scan_folders(names(tmp_path), base=str(checkpoints.base())).models[0]
    assert found.with_base.layers == 4


def test_one_bit_in_a_layer_shortens_the_prefix(tmp_path):
    model = checkpoints.classifier("mood")
    bias = model.bert.encoder.layer[1].output.dense.bias.data
    bias.view(torch.int32)[0] ^= 1
    found = scan_folders([saved(model, tmp_path)], base=str(checkpoints.base())).models[0]
    assert (found.with_base.layers, found.with_base.differs) == (1, "layer 2")


def test_a_merged_adapter_is_told_from_full_fine_tuning(tmp_path):
    """W + B A of rank 2 in every query and value, as a merged adapter leaves it, beside three steps of AdamW."""
    model = checkpoints.classifier("mood")
    generator = torch.Generator().manual_seed(0)
    for layer in model.bert.encoder.layer:
        for part in (layer.attention.self.query, layer.attention.self.value):
            b, a = (torch.randn(size, generator=generator) for size in ((32, 2), (2, 32)))
            part.weight.data += 0.05 * (b @ a)
    adapter, full = saved(model, tmp_path / "adapter"), str(checkpoints.trained("mood", frozen=0))
    scan = scan_folders([adapter, full], base=str(checkpoints.base()))
    low, high = (found.difference for found in scan.models)
    assert (low.is_low_rank, low.rank, len(low.matrices), low.vectors) == (True, 2, 8, ())
    assert not high.is_low_rank
    assert high.rank > high.allowed == 4
    assert [found.with_base.layers for found in scan.models] == [0, 0]


def test_an_adapter_runs_as_its_base_does_up_to_its_first_matrices(tmp_path):
    """No base is needed: the adapter names it. A third, of a whole model, shares what both leave as it is."""
    for name, layers in (("low", range(4)), ("high", (2, 3))):
        adapters.adapter(tmp_path / name, layers=layers)
    folders = names(tmp_path / "low", tmp_path / "high", checkpoints.trained("mood", frozen=1))
    scan = scan_folders(folders)
    assert scan.base.name == str(checkpoints.base())
    assert [found.with_base.layers for found in scan.models] == [0, 2, 1]
    assert [pair.layers for pair in scan.pairs] == [0, 0, 1]
    (group,) = scan.groups
    assert (group.trunk, group.depth, list(group.taps.values())) == (scan.base.name, 4, [0, 2, 1])
    assert [found.adapter for found in scan.models] == [
        "LoRA, rank 2 on attention.query, attention.value of layers 1 to 4",
        "LoRA, rank 2 on attention.query, attention.value of layers 3 to 4",
        "",
    ]
    assert (scan.apart.layers, scan.merged.layers) == (12, 4 + 4 + 4 - 1)
    assert not any(found.refused for found in scan.models)


def test_an_adapter_that_cannot_be_imported_says_why_and_the_rest_is_compared(tmp_path):
    adapters.adapter(tmp_path / "biases", bias="all")
    adapters.adapter(tmp_path / "stranger", base=checkpoints.base(seed=5))
    folder = checkpoints.trained("mood", frozen=1)
    scan = scan_folders(names(tmp_path / "biases", tmp_path / "stranger", folder), base=str(checkpoints.base()))
    biases, stranger, other = scan.models
    assert "'bias'" in biases.refused
    assert f"its base {checkpoints.base(seed=5)}" in stranger.refused
    assert (other.refused, other.with_base.layers) == ("", 1)
    assert list(scan.encoders) == [str(folder)] and scan.pairs == ()
    assert scan.apart.layers == scan.merged.layers == 4


def test_an_encoder_without_a_readable_head_is_compared_all_the_same():
    scan = scan_folders(names(checkpoints.base(), checkpoints.trained("mood", frozen=3)))
    assert scan.models[0].scanned.head is None
    assert "BertModel" in scan.models[0].refused
    assert scan.pairs[0].layers == 3


def test_savings_are_those_of_the_plan_that_import_makes():
    """Three models of four layers, 32 wide, over a base: 12 layers apart, 3 + 1 + 2 + 4 merged.

    32 tokens: a layer is 2 * 32 * (4 * 1024 + 2 * 32 * 64) + 4 * 32^2 * 32 = 655,360 FLOPs and
    4 * 1056 + 64 + 2 * 2048 + 64 + 32 + 64 = 8,544 numbers. A sequence head is 2 * (1024 + 3 * 32) = 2,240 FLOPs and
    1056 + 99 numbers.
    """
    folders = names(*(checkpoints.trained("mood", frozen=k, seed=k) for k in (3, 2, 0)))
    scan = scan_folders(folders, base=str(checkpoints.base()))
    layer, head = 655_360, 2_240
    assert (scan.apart.layers, scan.merged.layers) == (12, 3 + 1 + 2 + 4)
    assert scan.apart.flops == 12 * layer + 3 * head
    assert scan.merged.flops == 10 * layer + 3 * head
    embeddings = 32 * (110 + 64 + 2) + 64
    assert scan.apart.bytes == 4 * (3 * embeddings + 12 * 8_544 + 3 * 1_155)
    assert scan.merged.bytes == 4 * (embeddings + 10 * 8_544 + 3 * 1_155)


def test_other_families_stand_apart():
    folders = names(checkpoints.trained("mood"), checkpoints.trained("mood", family="Electra"))
    scan = scan_folders(folders)
    assert scan.pairs[0].layers is None
    assert "family bert and electra" in scan.pairs[0].differs
    assert len(scan.groups) == 2
    assert scan.apart == scan.merged


def test_a_folder_that_cannot_be_read_is_named(tmp_path):
    good = str(checkpoints.trained("mood"))
    with pytest.raises(TrunkNotFound, match=str(tmp_path)):
        scan_folders([good, str(tmp_path)])
    with pytest.raises(TrunkError, match="absent"):
        scan_folders([good, "absent"])
    (tmp_path / "config.json").write_text('{"model_type": "bert", "num_hidden_layers": 2}')
    with pytest.raises(TrunkError, match=f"{tmp_path}.*settings are missing"):
        scan_folders([good], base=str(tmp_path))


def test_a_folder_that_is_named_twice_is_refused():
    folder = str(checkpoints.trained("mood"))
    with pytest.raises(ConfigError, match="twice"):
        scan_folders([folder, folder + "/"])


def test_progress_names_every_folder():
    shown = []
    folders = names(checkpoints.trained("mood"), checkpoints.trained("names", frozen=3))
    scan_folders(folders, base=str(checkpoints.base()), show=shown.append)
    assert all(any(folder in line for line in shown) for folder in (*folders, str(checkpoints.base())))
    assert shown[-1] == ""
    assert np.sum([line.startswith("reading") for line in shown]) == 3
