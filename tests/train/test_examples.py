"""Labelled examples over kept features, and over texts: the same batches for the same members."""

import numpy as np
import pytest
import torch

from polyhead.deep.examples import FeatureExamples, TextExamples, module_outputs
from polyhead.deep.loop.fit import TaskLoop
from polyhead.deep.loop.loss import LOSSES, UNLABELLED
from polyhead.deep.recipes.joint_model import JointModel
from polyhead.deep.sharing.part import PooledPart
from polyhead.plan import Codec, Pool
from polyhead.project.recipes import Joint, Training
from polyhead.store.corpus.ids import document_id
from polyhead.store.features import FeatureStore
from polyhead.testing import tiny_path, tiny_tasks, tiny_trunk
from polyhead.text.tokenize import Tokenizer
from polyhead.text.words import words_of
from polyhead.train.data.batches import stacked
from polyhead.train.data.extract import Extractor
from polyhead.train.data.kept_examples import KeptExamples
from polyhead.train.data.source import FeatureRequest

TASKS = {task.name: task for task in tiny_tasks()}
LENGTHS = (3, 1, 5, 2)


@pytest.fixture
def features(tmp_path):
    rng = np.random.default_rng(0)
    store = FeatureStore.open(tmp_path, digest="a" * 64, layers=2, width=4, codec=Codec(name="float32"))
    keys = [document_id((str(i),)) for i in range(len(LENGTHS))]
    store.append(keys, [rng.normal(size=(n, 2, 4)).astype(np.float32) for n in LENGTHS])
    return store.features(keys)


def test_a_batch_holds_features_masks_and_targets_of_its_members(features):
    targets = [np.asarray(i, np.int64) for i in (1, 0, 2, 1)]
    examples = FeatureExamples(KeptExamples(features, targets))
    batch = examples.batch(np.array([2, 0]))
    ((values, mask),) = [batch.arguments]
    assert values.shape == (2, 5, 2, 4) and mask.sum(dim=1).tolist() == [5, 3]
    assert batch.targets.tolist() == [2, 1] and (values[1, 3:] == 0).all()
    assert values[1, :3].numpy().tobytes() == features.take([0]).values[0].tobytes()


def test_pairs_read_separately_carry_both_texts(features):
    targets = [np.asarray(0.5, np.float32)] * 4
    batch = FeatureExamples(KeptExamples(features, targets, second=features)).batch(np.array([1, 3]))
    first, mask, (second, other) = batch.arguments
    assert torch.equal(first, second) and torch.equal(mask, other)


def test_words_of_unequal_texts_are_padded_with_what_is_not_labelled():
    found = stacked([np.array([1, 2]), np.array([], np.int64), np.array([0])])
    assert found.tolist() == [[1, 2], [UNLABELLED] * 2, [0, UNLABELLED]]
    assert stacked([np.array([], np.int64)]).tolist() == [[UNLABELLED]]
    assert stacked([np.float32([1, 0]), np.float32([0, 1])]).tolist() == [[1, 0], [0, 1]]


def test_outputs_come_in_the_order_of_the_examples_without_padding(features):
    class Echo(torch.nn.Module):
        def forward(self, values, mask):
            return values[:, :, 0]

    words = [np.zeros(n, np.int64) for n in LENGTHS]
    for batch in (1, 2, 256):
        found = module_outputs(Echo(), FeatureExamples(KeptExamples(features, words)), batch=batch)
        assert [len(o) for o in found] == list(LENGTHS)
        for i, output in enumerate(found):
            assert output.tobytes() == features.take([i]).values[0][:, 0].tobytes()


TEXTS = [(t,) for t in ("where is my order?", "good", "the lamp is broken and late", "thank you ben")]


def frozen_and_live(name, pool, tmp_path):
    """Outputs of one part over kept features, and over a trunk run live with the same weights."""
    data, task = tiny_trunk(), TASKS[name]
    path = tiny_path(task, data, pool=pool)
    words = [words_of(text[0]) for text in TEXTS] if name == "names" else None
    targets = [np.zeros(len(words[i]) if words else (), np.int64) for i in range(len(TEXTS))]
    extractor = Extractor(data, folder=tmp_path, precision="float32")
    wanted = FeatureRequest(path=path, inputs=TEXTS, words=words)
    extractor.fill([wanted])
    kept = FeatureExamples(KeptExamples(extractor.store(path).features(wanted.keys()), targets))
    recipe, training = Joint(layer_dropout=0.0), Training(dropout=0.0)
    live = JointModel(data, {name: path}, training=training, recipe=recipe, bfloat16=False).eval()
    part = PooledPart(path, 16).eval()
    part.load_state_dict(live.model.parts[name].state_dict())
    texts = TextExamples(Tokenizer(data.tokenizer, data.settings), TEXTS, targets, words)
    return module_outputs(part, kept), module_outputs(live.bound(name), texts), live, texts


@pytest.mark.parametrize(
    ("name", "pool"),
    [
        ("mood", Pool(layers="mean", of=2, positions="attention", heads=2, part="task:x")),
        ("mood", Pool(layers="learned", positions="mean", part="task:x")),
        ("names", Pool()),
    ],
    ids=["attention", "learned mix", "words"],
)
def test_a_fine_tuned_trunk_starts_where_the_frozen_one_stands(name, pool, tmp_path):
    kept, live, _, _ = frozen_and_live(name, pool, tmp_path)
    for one, other in zip(kept, live, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_fine_tuning_changes_its_own_trunk_and_not_the_given_arrays(tmp_path):
    _, _, live, texts = frozen_and_live("mood", Pool(positions="mean"), tmp_path)
    data = tiny_trunk()
    before = {n: v.clone() for n, v in live.model.trunk.state_dict().items()}
    training = Training(epochs=2, patience=2, batch=2, learning_rate=1e-3)
    loss, run = LOSSES["cross_entropy"], live.bound("mood")
    fitted = TaskLoop(live, texts, loss=loss, score=lambda: 0.0, training=training, run=run).train()
    assert fitted.examples_seen == 8
    after = live.model.trunk.state_dict()
    assert any(not torch.equal(before[n], after[n]) for n in before)
    assert tiny_trunk().digest == data.digest
