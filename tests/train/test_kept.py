"""Isolated prompts over a frozen trunk learn from texts that are encoded once as from texts that are encoded anew."""

import msgspec
import numpy as np
import pytest
import torch

from polyhead.deep.examples import TextExamples
from polyhead.deep.loop import fit
from polyhead.deep.nn.trunk import Trunk
from polyhead.deep.recipes import joint_model as kept
from polyhead.deep.recipes.joint_loop import JointLoop
from polyhead.deep.recipes.joint_model import KeptTexts
from polyhead.deep.recipes.paths import joint_paths
from polyhead.project.pretrained import load_trunk
from polyhead.project.recipes import ONE_TASK, Smoothing
from polyhead.project.strategies import Prompted
from polyhead.testing import tiny_trunk
from polyhead.text.question import Question
from polyhead.text.tokenize import Tokenizer
from polyhead.train.data.prepare import prepare
from polyhead.train.events import Events
from support import tiny_project

APART = Prompted(isolated=True, hidden=6)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("home")
    tiny_project.project(folder)
    return folder


def course_of(home, *, strategy=APART, frozen=True, recipe=ONE_TASK, precision="float32", said=None, **changes):
    made = msgspec.structs.replace(
        tiny_project.project(home, "mood"),
        strategy=strategy,
        training=msgspec.structs.replace(tiny_project.TRAINING, **changes),
    )
    entries = tuple(msgspec.structs.replace(entry, strategy=None) for entry in made.tasks)
    prepared, data = (prepare(msgspec.structs.replace(made, tasks=entries), home), load_trunk(str(home / "trunk")))
    return JointLoop(
        prepared,
        joint_paths(prepared, data, recipe),
        data,
        recipe,
        training=prepared[0].training,
        precision=precision,
        events=None if said is None else Events(say=said.append),
        frozen=frozen,
    )


def layers_of(loop, monkeypatch):
    """Of the text: how often a layer of the trunk is run from now on."""
    ran, original = [], Trunk.go_on

    def go_on(trunk, states, *, stop, **named):
        ran.append(stop - states.depth)
        return original(trunk, states, stop=stop, **named)

    monkeypatch.setattr(Trunk, "go_on", go_on)
    return ran


def test_what_is_learned_is_what_is_learned_from_texts_encoded_anew(home, monkeypatch):
    changes = {"epochs": 3, "batch": 4, "learning_rate": 3e-3}
    loop = course_of(home, **changes)
    ran = layers_of(loop, monkeypatch)
    found = loop.learn()
    in_epochs, texts = len(ran), [loop.examples["mood"], loop._validation["mood"][1]]
    assert in_epochs == sum(-(-one.count // kept.BATCH) for one in texts)  # a pass over each, whatever the epochs
    monkeypatch.setattr(kept, "MOST", 0)
    said = []
    plain = course_of(home, said=said, **changes).learn()
    assert any("more than 0" in line for line in said) and len(ran) > 2 * in_epochs
    for name, array in plain.arrays["mood"].items():
        np.testing.assert_allclose(found.arrays["mood"][name], array, rtol=0, atol=1e-5, err_msg=name)
    assert [row["loss"] for row in found.fitted.history] == pytest.approx(
        [row["loss"] for row in plain.fitted.history], rel=1e-5
    )


def test_a_stopped_run_goes_on_to_the_same_bits(home, tmp_path, monkeypatch):
    monkeypatch.setattr(fit, "SAVE_SECONDS", 0.0)
    changes = {"epochs": 3, "batch": 4, "precision": "bfloat16"}
    whole = course_of(home, **changes).learn()
    stopped = course_of(home, **changes)
    stopped._checkpoint = tmp_path / "c.checkpoint"
    save = fit.TrainingLoop.save

    def killed(run):
        save(run)
        if run.done == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(fit.TrainingLoop, "save", killed)
    with pytest.raises(KeyboardInterrupt):
        stopped.learn()
    monkeypatch.setattr(fit.TrainingLoop, "save", save)
    resumed = course_of(home, **changes)
    resumed._checkpoint = tmp_path / "c.checkpoint"
    again = resumed.learn()
    for name, array in whole.arrays["mood"].items():
        assert array.tobytes() == again.arrays["mood"][name].tobytes(), name


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("options", [False, True], ids=["texts", "options"])
def test_a_batch_has_the_keys_of_its_own_rows(options, precision):
    """The reference is the trunk's pass over that batch; with options every option is a row."""
    data = tiny_trunk()
    trunk, tokenizer = Trunk.from_data(data), Tokenizer(data.tokenizer, data.settings)
    inputs = [("good lamp",), ("bad",), ("the kettle is broken and late",), ("happy phone box",)]
    if options:
        inputs = [
            Question(text=text, options=("good", "a bad lamp", "late")[: 2 + n % 2]) for n, (text,) in enumerate(inputs)
        ]
    examples = TextExamples(tokenizer, inputs, [np.int64(0)] * 4)

    def keys(texts):
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
            return trunk.keys(texts.ids, texts.mask, segments=texts.segments)

    examples.kept = KeptTexts(keys, examples)
    batch = examples.batch(np.array([3, 1, 2]))
    (texts,) = batch.arguments
    found, expected = texts.states, keys(texts)
    assert torch.equal(found.mask, texts.mask) and sorted(found.keys) == list(range(data.architecture.layers))
    assert len(texts.ids) == (8 if options else 3) and not found.hidden
    for index, one in expected.keys.items():
        for part in ("key", "value"):
            ours, theirs = (getattr(k, part).transpose(1, 2)[texts.mask] for k in (found.keys[index], one))
            assert ours.dtype == theirs.dtype
            torch.testing.assert_close(ours, theirs, atol=1e-5 if precision == "float32" else 0.05, rtol=0)


def test_texts_that_change_are_encoded_anew(home, monkeypatch):
    """Where the trunk learns, where noise is on the word vectors, where the text sees the prompts."""
    noisy = msgspec.structs.replace(ONE_TASK, smoothing=Smoothing())
    for change in ({"frozen": False}, {"recipe": noisy}, {"strategy": Prompted(hidden=6)}):
        loop = course_of(home, epochs=1, **change)
        loop.learn()
        assert loop.examples["mood"].kept is None


def test_keys_alone_stand_in_for_a_texts_states():
    data = tiny_trunk()
    trunk = Trunk.from_data(data)
    ids, mask = torch.randint(0, 14, (2, 5)), torch.ones(2, 5, dtype=torch.bool)
    prompts = trunk.embeddings.of_prompts(torch.randn(3, data.architecture.width))
    whole = trunk.beside(trunk(ids, mask), prompts, sizes=[2, 1])
    found = trunk.beside(trunk.keys(ids, mask), prompts, sizes=[2, 1])
    assert found.depth == whole.depth == data.architecture.layers
    torch.testing.assert_close(found.last, whole.last, atol=1e-6, rtol=0)
