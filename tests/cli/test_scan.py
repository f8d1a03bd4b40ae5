"""`polyhead inspect` of checkpoints: tables, the tree, JSON, and folders that cannot be read."""

import json
import shlex
import shutil

import pytest

pytest.importorskip("transformers")

from support import adapters, checkpoints
from support.commands import run


@pytest.fixture(scope="module")
def folders():
    return [
        checkpoints.trained("mood", frozen=3),
        checkpoints.trained("names", frozen=3),
        checkpoints.trained("topics", frozen=1),
    ]


def row_of(done, name):
    """The folder's line in the first table."""
    return next(line for line in done.out.splitlines() if line.split()[:1] == [name])


def line_of(done, *words):
    """The one line that holds all the words."""
    (line,) = [line for line in done.out.splitlines() if all(word in line for word in words)]
    return line


def test_prefixes_stand_in_the_table_and_in_the_tree(folders):
    done = run("inspect", *folders)
    assert done.code == 0, done.err
    assert "3 checkpoints" in done.out
    row = row_of(done, "Bert-mood-3-1")
    assert "embeddings, layers 1 to 3" in row and "Bert-names-3-1" in row and "single_label" in row
    assert "embeddings, layer 1" in row_of(done, "Bert-topics-1-1")
    tree = [line.strip("└├─│ ") for line in done.out.splitlines() if "tasks]" in line]
    assert tree[1:] == ["Layer 1  [3 tasks]", "Layers 2 to 3  [2 tasks]"]
    assert "Layer 4 of task:Bert-mood-3-1" in done.out


def test_savings_and_the_next_command_are_shown(folders):
    """12 layers apart; merged 3 of the trunk, one of each of the two, and three of the third."""
    done = run("inspect", *folders)
    assert line_of(done, "layers run").split() == ["layers", "run", "12", "8", "33.3", "%"]
    assert f"next: polyhead import BUNDLE {' '.join(map(str, folders))}" in done.out


def test_json_holds_what_is_printed(folders):
    told = json.loads(run("inspect", *folders, "--base", checkpoints.base(), "--tokens", 16, "--json", "-").out)
    assert set(told) == {"models", "base", "pairs", "groups", "tokens", "apart", "merged"}
    assert [model["with_base"]["layers"] for model in told["models"]] == [3, 3, 1]
    assert [model["kind"] for model in told["models"]] == ["single_label", "tagging", "multi_label"]
    assert told["tokens"] == 16
    assert told["apart"]["layers"] == 12
    assert {pair["layers"] for pair in told["pairs"]} == {3, 1}
    assert told["groups"][0]["trunk"] == str(checkpoints.base())
    digests = [model["digests"] for model in told["models"]]
    assert digests[0]["layers"][:3] == digests[1]["layers"][:3]
    assert digests[0]["layers"][3] != digests[1]["layers"][3]


def test_longer_texts_cost_more(folders):
    short, long = (
        json.loads(run("inspect", *folders, "--tokens", n, "--json", "-").out)["apart"]["flops"] for n in (8, 32)
    )
    assert long > 4 * short


def test_beside_a_base_every_folder_says_how_it_differs(folders, tmp_path):
    model = checkpoints.classifier("mood")
    weight = model.bert.encoder.layer[2].attention.self.query.weight.data
    weight += 0.1 * weight[:, :1] @ weight[:1]
    model.save_pretrained(tmp_path / "adapter")
    checkpoints.wordpiece().save_pretrained(tmp_path / "adapter")
    done = run("inspect", *folders, tmp_path / "adapter", "--base", checkpoints.base())
    assert done.code == 0, done.err
    low = line_of(done, "adapter", "rank 1 (layers.2.attention.query.weight)")
    assert low.split()[-1] == "yes"
    assert line_of(done, "Bert-topics-1-1", "or more").split()[-1] == "no"
    assert f"--base {checkpoints.base()}" in done.out


def test_a_base_without_a_head_may_stand_among_the_folders(folders):
    done = run("inspect", checkpoints.base(), folders[0])
    assert done.code == 0, done.err
    assert "Bert-base-0 cannot be imported" in done.out
    assert f"next: polyhead import BUNDLE {folders[0]} --base {checkpoints.base()}" in done.out


def test_the_next_command_can_be_typed_where_folders_have_spaces(folders, tmp_path):
    names = [tmp_path / name for name in ("my base", "it's mine", "plain")]
    for name, folder in zip(names, [checkpoints.base(), *folders[:2]], strict=True):
        shutil.copytree(folder, name)
    done = run("inspect", *names)
    words = shlex.split(line_of(done, "next: polyhead import"))
    assert words[4:] == [str(names[1]), str(names[2]), "--base", str(names[0])]


@pytest.mark.slow
def test_what_import_will_do_with_adapters_is_told_and_the_next_command_does_it(tmp_path):
    for seed, name in enumerate(("mood", "names")):
        adapters.adapter(tmp_path / name, name, layers=(2, 3), seed=seed)
    adapters.adapter(tmp_path / "biases", bias="all")
    folders = [tmp_path / name for name in ("mood", "names", "biases")]
    done = run("inspect", *folders, "--json", tmp_path / "told.json")
    assert done.code == 0, done.err
    said = "LoRA, rank 2 on attention.query, attention.value of layers 3 to 4"
    assert f"{folders[0]} ({said}): import runs the encoder's layers" in done.out
    assert line_of(done, "biases cannot be imported", "'bias'", "merge_and_unload")
    tree = [line.strip("└├─│ ") for line in done.out.splitlines()]
    assert "Layers 1 to 2  [3 tasks]" in tree  # the base is drawn too
    assert any(line.startswith("mood") and "Layers 3 to 4 with lora 2 of task:mood" in line for line in tree)
    told = json.loads((tmp_path / "told.json").read_text())
    assert [model["adapter"] for model in told["models"]] == [said, said, ""]
    words = shlex.split(line_of(done, "next: polyhead import"))
    assert words[4:] == [str(folders[0]), str(folders[1]), "--base", str(checkpoints.base())]
    imported = run("import", tmp_path / "bundle", *words[4:])
    assert imported.code == 0, imported.err
    assert f"mood: {said}, in the encoder's layers" in imported.out
    (row,) = run("predict", tmp_path / "bundle", stdin="anna wants a refund\n").rows
    assert set(row["answers"]) == {"mood", "names"}
    assert (row["receipt"]["passes"], row["receipt"]["layers"]) == (1, told["merged"]["layers"])
    assert run("inspect", tmp_path / "bundle", "--verify").code == 0


def test_adapters_alone_that_cannot_be_imported_are_told(tmp_path):
    adapters.adapter(tmp_path / "biases", bias="all")
    done = run("inspect", tmp_path / "biases")
    assert done.code == 0, done.err
    assert "biases cannot be imported" in done.out
    adapters.change(tmp_path / "biases", base_model_name_or_path="someone/some-encoder")
    run("inspect", tmp_path / "biases").refuses("some-encoder", "--base")


def test_checkpoints_that_share_nothing_say_so():
    strangers = [checkpoints.trained("mood"), checkpoints.trained("mood", family="Electra")]
    done = run("inspect", *strangers)
    assert done.code == 0
    assert "nothing to merge" in done.out
    assert line_of(done, "layers run").split()[-2:] == ["0.0", "%"]


def test_one_folder_is_enough(folders):
    done = run("inspect", folders[0])
    assert done.code == 0
    assert "1 checkpoint" in done.out


def test_folders_that_cannot_be_read_are_named(folders, tmp_path):
    run("inspect", folders[0], tmp_path / "absent").refuses("TrunkNotFound", "absent")
    (tmp_path / "empty").mkdir()
    run("inspect", folders[0], tmp_path / "empty").refuses("TrunkNotFound", "empty", "config.json")
    run("inspect", folders[0], folders[0]).refuses("twice")
    run("inspect", folders[0], "--base", tmp_path / "empty").refuses("config.json")
    run("inspect").refuses("Missing argument", code=2)
    run("inspect", folders[0], "--tokens", 0).refuses("tokens", code=2)
