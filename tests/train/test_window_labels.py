"""Labels of texts longer than the trunk: learned from the mean of all windows' outputs, which is what answers."""

import random

import msgspec
import numpy as np
import pytest
import torch

from polyhead.bundle.create import write_bundle
from polyhead.bundle.manifest import TaskRecord
from polyhead.data.read import Examples, ReadReport
from polyhead.deep.branch.run import Branches
from polyhead.deep.examples import FeatureExamples, module_outputs
from polyhead.deep.features import tap_examples, wanted_taps
from polyhead.deep.loop.loss import LOSSES
from polyhead.deep.recipes.joint_loop import text_examples
from polyhead.deep.recipes.joint_model import JointLoss, JointModel
from polyhead.deep.recipes.weighting import Objective
from polyhead.deep.sharing.make import arrays_of_part
from polyhead.deep.sharing.part import PooledPart
from polyhead.engine.session import Session
from polyhead.plan import Path, Pool
from polyhead.project.recipes import Joint, Training
from polyhead.project.strategies import Branch, InLayer, OnTop, Pooled, Prompted
from polyhead.project.strategies.branch import branch_path
from polyhead.project.strategies.in_layer import Adapter
from polyhead.project.tables import Project, TaskEntry, TrunkChoice
from polyhead.tasks.kinds import kind_of
from polyhead.testing import tiny_part, tiny_path, tiny_tasks, tiny_trunk
from polyhead.text.tokenize import Tokenizer, windows_of
from polyhead.train.data.extract import Extractor
from polyhead.train.data.kept_examples import examples_of
from polyhead.train.data.prepare import wanted
from polyhead.train.data.prepared import Prepared, Split
from polyhead.train.data.windows import reads_windows
from polyhead.train.heads.inputs import WORDS, head_outputs, inputs_of
from polyhead.train.run import train_project
from support import tiny_project
from support.split_scores import split_scores
from support.tiers import first_of

SIZE, COLUMNS = 16, 256
DATA = tiny_trunk(max_tokens=SIZE)
TOKENISER = Tokenizer(DATA.tokenizer, DATA.settings)
TASKS = {
    task.name: msgspec.structs.replace(task, long_texts="windows")
    for task in tiny_tasks()
    if task.name in ("mood", "topics", "urgency", "same")
}
TRAINING = Training(seed=1, epochs=1, patience=1, batch=8, dropout=0.0, precision="float32")
POOL = Pool(layers="mean", of=2)
PLAIN = ("the", "my", "is", "late", "order", "bill", ".")


def drawn(task, count=20):
    """Texts of up to three windows, some of one."""
    chance, rng = random.Random(0), np.random.default_rng(0)
    inputs = []
    for _ in range(count):
        text = " ".join(chance.choices(PLAIN, k=chance.randint(3, 40)))
        inputs.append((text, "is it late?") if task.pair == "joined" else (text,))
    targets = {
        "single_label": lambda: np.int64(rng.integers(len(task.labels))),
        "multi_label": lambda: rng.integers(0, 2, len(task.labels)).astype(np.float32),
        "regression": lambda: np.float32(rng.random()),
    }
    taught = [targets[task.kind]() for _ in inputs]
    return Examples(inputs=inputs, targets=taught, words=None, rows=[*range(count)], report=ReadReport())


def prepared_of(task, strategy=None):
    examples = drawn(task)
    train, validation = (Split(name=name, examples=examples) for name in ("train", "validation"))
    strategy = strategy or Pooled(layers="last", hidden=8, codec="float32")
    return Prepared(
        task=task, strategy=strategy, training=TRAINING, team=None, train=train, validation=validation, test=None
    )


def answers_of(folder, task, path, arrays):
    """The outputs of a session whose bundle holds the part."""
    bundle = write_bundle(folder / "bundle", DATA)
    record = TaskRecord(task=task, path=path, trunk=DATA.digest)
    bundle.add_task(record, arrays, scores={}, probes=[], card="")
    return Session(bundle.root, backend="reference").outputs(task.name, drawn(task).inputs)


def joint_model(task, path):
    return JointModel(DATA, {task.name: path}, training=TRAINING, recipe=Joint(layer_dropout=0.0), bfloat16=False)


def live(folder, task):
    path = tiny_path(task, DATA, pool=POOL)
    module = joint_model(task, path).eval()
    texts = text_examples(drawn(task), task, TOKENISER)
    assert texts.count == 20 and texts.window_counts.max() > 2 and texts.window_counts.min() == 1
    found = module_outputs(module.bound(task.name), texts, batch=5)
    return path, arrays_of_part(module.model.parts[task.name]), found


def kept(folder, task):
    prepared, extractor = prepared_of(task), Extractor(DATA, folder=folder, precision="float32")
    path = tiny_path(task, DATA, pool=Pool(layers="mean", of=2, positions="attention", part=f"task:{task.name}"))
    extractor.fill(wanted(prepared, path, extractor))
    part = PooledPart(path, 16, generator=torch.Generator().manual_seed(3)).eval()
    found = module_outputs(part, FeatureExamples(examples_of(prepared, prepared.train, path, extractor)), batch=5)
    return path, arrays_of_part(part), found


def linear(folder, task):
    """With words, which are the whole text's."""
    prepared, extractor = prepared_of(task), Extractor(DATA, folder=folder, precision="float32")
    bare = tiny_path(task, DATA, pool=POOL)
    path = Path(nodes=(*bare.nodes[:-1], msgspec.structs.replace(bare.head, hidden=0, words=COLUMNS)))
    extractor.fill(wanted(prepared, path, extractor))
    arrays = tiny_part(path, DATA.architecture, path.head.part)
    examples = examples_of(prepared, prepared.train, path, extractor)
    part = PooledPart(path, 16, generator=torch.Generator().manual_seed(3)).eval()
    part.load_state_dict({name: torch.from_numpy(array) for name, array in arrays.items()})
    found = head_outputs(path, arrays, examples, DATA.architecture.width)
    for one, other in zip(found, module_outputs(part, FeatureExamples(examples), batch=5), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5)
    assert np.abs(arrays[WORDS]).max() > 0
    return path, arrays, found


def tapped(folder, task):
    strategy = Branch(layers=1, hidden=8)
    prepared, extractor = prepared_of(task, strategy), Extractor(DATA, folder=folder, precision="float32")
    path = branch_path(task, strategy, trunk=DATA.digest, shape=DATA.architecture, tap=1, layers=1)
    extractor.fill(wanted_taps(prepared, path, extractor))
    module, _ = Branches(prepared, strategy, extractor, precision="float32").loop(path)
    examples = tap_examples(prepared, prepared.train, path, extractor, precision="float32")
    return path, arrays_of_part(module.part), module_outputs(module.eval(), examples, batch=5)


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("way", [live, kept, linear, tapped])
def test_outputs_in_training_are_those_of_a_session(tmp_path, name, way):
    path, arrays, found = way(tmp_path, TASKS[name])
    for one, other in zip(found, answers_of(tmp_path, TASKS[name], path, arrays), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5)


@pytest.mark.parametrize("name", TASKS)
def test_gradients_are_those_of_a_loop_over_texts_and_their_windows(name):
    """The loss of each text's mean output, a window at a time; every text counts once."""
    task = TASKS[name]
    examples, path = drawn(task), tiny_path(task, DATA, pool=POOL)
    model = joint_model(task, path)
    weighting = msgspec.structs.replace(Joint().weighting, scaled=False)
    objective = Objective({task.name: (task, examples.targets)}, weighting, {task.name: 20})
    loss = JointLoss(model, objective, {task.name: task}, Joint(layer_dropout=0.0, weighting=weighting))
    batch = text_examples(examples, task, TOKENISER).batch(np.arange(20))
    parameters = [each for each in model.parameters() if each.requires_grad]
    value = loss(task.name, batch)
    found = torch.autograd.grad(value, parameters, allow_unused=True)
    outputs = []
    for given in examples.inputs:
        several = TOKENISER.encode([given], windows=windows_of(SIZE))
        rows = []
        for window in several:
            ids, segments = (torch.tensor(array[None]) for array in (window.ids, window.segments))
            texts = msgspec.structs.replace(
                batch.arguments[0], ids=ids, segments=segments, mask=torch.ones_like(ids, dtype=torch.bool)
            )
            rows.append(model(task.name, texts)[0])
        outputs.append(sum(rows) / len(rows))
    targets = torch.from_numpy(np.stack(examples.targets))
    naive = LOSSES[kind_of(task).loss](torch.stack(outputs), targets, None)
    torch.testing.assert_close(value, naive)
    for one, other in zip(found, torch.autograd.grad(naive, parameters, allow_unused=True), strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-3)


def test_a_linear_head_reads_one_row_a_text_the_mean_of_its_windows(tmp_path):
    task = TASKS["mood"]
    prepared, extractor = prepared_of(task), Extractor(DATA, folder=tmp_path, precision="float32")
    path = tiny_path(task, DATA, pool=Pool(positions="mean"))
    extractor.fill(wanted(prepared, path, extractor))
    inputs = inputs_of(path, examples_of(prepared, prepared.train, path, extractor), loss="cross_entropy", outputs=2)
    assert inputs.members.tolist() == [*range(20)]
    for row, given in enumerate(prepared.train.examples.inputs):
        states = []
        for window in TOKENISER.encode([given], windows=windows_of(SIZE)):
            model = joint_model(task, path).model.trunk.eval()
            ids, segments = (torch.tensor(array[None]) for array in (window.ids, window.segments))
            with torch.inference_mode():
                last = model(ids, torch.ones_like(ids, dtype=torch.bool), segments=segments).last
            states.append(last[0].mean(dim=0).numpy())
        np.testing.assert_allclose(inputs.values[row], np.mean(states, axis=0), atol=1e-5)


def test_windows_are_read_where_the_mean_of_their_outputs_answers():
    assert all(map(reads_windows, TASKS.values()))
    assert not any(reads_windows(task) for task in tiny_tasks())
    plain = prepared_of(msgspec.structs.replace(TASKS["mood"], long_texts="cut")).fingerprint()
    assert "windows" not in plain and prepared_of(TASKS["mood"]).fingerprint()["windows"] is True


# Learning

THINGS = {"good": "praise", "late": "complaint"}


def far(chance):
    """What decides stands beyond the tokens that are read at once."""
    words, thing = chance.choices(("the", "my", "is", "was", "and"), k=chance.randint(18, 30)), chance.choice([*THINGS])
    return {"text": " ".join([*words, *[thing] * 4]), "label": THINGS[thing]}


WAYS = {
    "pooled": ({"strategy": Pooled(of=1, codec="float32", words=False)}, 3e-2),
    "branch": ({"strategy": Branch(layers=1, hidden=16, dropout=0.0)}, 5e-3),
    "joint": ({"recipe": Joint(micro_batches=1, layer_dropout=0.0)}, 3e-3),
    "in_layer": ({"strategy": InLayer(adapters=(Adapter(size=6, heads=2),))}, 1e-2),
    "on_top": ({"strategy": OnTop()}, 1e-2),
    "prompted": ({"strategy": Prompted(rows=4, hidden=8)}, 1e-2),
}


def learned(folder, way, **changes):
    tiny_project.write_trunk(folder / "trunk", tiny_trunk())
    chance = random.Random(0)
    for split, count in (("train", 64), ("validation", 24)):
        tiny_project.write_jsonl(folder / f"{split}.jsonl", [far(chance) for _ in range(count)])
    more, rate = WAYS[way]
    entry = TaskEntry(
        name="far",
        kind="single_label",
        labels=("praise", "complaint"),
        train="train.jsonl",
        validation="validation.jsonl",
        **changes,
    )
    project = Project(
        tasks=(entry,),
        trunk=TrunkChoice(name=str(folder / "trunk"), max_tokens=SIZE),
        training=msgspec.structs.replace(TRAINING, epochs=12, patience=12, learning_rate=rate),
    )
    project = msgspec.structs.replace(project, **more)
    result = train_project(project, folder=folder)
    return project, (result.scores if way == "joint" else result.trained)["far"]


@pytest.mark.parametrize("way", first_of(WAYS))
def test_labels_that_a_later_window_decides_are_learned_and_scored_as_they_are_answered(tmp_path, way):
    project, scores = learned(tmp_path, way, long_texts="windows")
    assert scores["validation"]["accuracy"] >= 0.9
    (found,) = split_scores(Session(tmp_path / "bundle"), project, folder=tmp_path, split="validation")
    assert found.scores == pytest.approx(scores["validation"])
    (tmp_path / "cut").mkdir()
    assert learned(tmp_path / "cut", way)[1]["validation"]["accuracy"] <= 0.8
