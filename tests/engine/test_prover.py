"""Several changes that one process proves: the certificates are those of processes that prove one each."""

import shutil

import numpy as np
import pytest

from engine.test_isolation import BY_NAME, add, copying, flip, make, mood
from polyhead.bundle.read import Bundle
from polyhead.bundle.remove import unlist
from polyhead.certify import Prover, certified, verify
from polyhead.certify.changes import Requester, roll_back
from polyhead.engine.backends.graph import GraphBackend
from polyhead.errors import IsolationError


@pytest.fixture
def layers(monkeypatch):
    """How many layers run, of all backends."""
    counted, original = [], GraphBackend._stages

    def stages(self, *arguments, **named):
        before = self.layers_run
        yield from original(self, *arguments, **named)
        counted.append(self.layers_run - before)

    monkeypatch.setattr(GraphBackend, "_stages", stages)
    return counted


def changes(root, other):
    """Some changes, one after another."""
    return [
        lambda prover: certified(root, "add", copying(other, "topics", root=root), changing=["topics"], prover=prover),
        lambda prover: certified(
            root, "update", copying(other, "mood", root=root, replace=True), changing=["mood"], prover=prover
        ),
        lambda prover: roll_back(root, ["mood"], by=Requester(prover=prover)).certificate,
        lambda prover: certified(root, "remove", lambda: unlist(root, ["topics"]), changing=["topics"], prover=prover),
        lambda prover: certified(root, "add", copying(other, "topics", root=root), changing=["topics"], prover=prover),
    ]


def told(certificate):
    """What a certificate says, but for the time and the files before it."""
    return (
        certificate.operation,
        certificate.changed,
        certificate.before,
        certificate.after,
        certificate.answers_changed,
        certificate.answers_asked,
    )


def test_one_prover_for_all_says_what_one_for_each_says(root, other, tmp_path):
    copy, prover = tmp_path / "copy", Prover()
    shutil.copytree(root, copy)
    kept = [told(change(prover)) for change in changes(root, other)]
    assert kept == [told(change(None)) for change in changes(copy, other)]
    assert kept[1][4]["mood"] and kept[1][5]["mood"] == 5, "an update says which answers changed"
    assert verify(root) == verify(copy) == []


def test_from_the_second_change_on_no_layer_runs_for_a_probe_that_was_asked(root, other, layers):
    prover, counts = Prover(), []
    for change in changes(root, other):
        layers.clear()
        change(prover)
        counts.append(sum(layers))
    assert counts[0] > 0 and counts[2:] == [0, 0, 0], counts
    assert 0 <= counts[1] < counts[0], "the new version brings probes of its own"


def test_what_nobody_asks_any_more_is_forgotten(root):
    prover, sizes = Prover(), []

    def change(operation, act):
        certified(root, operation, act, changing=["own"], prover=prover)
        (session,) = prover._last._sessions.values()
        sizes.append(session.backend.state_cache.size)

    for text in ("a text of its own", "a word of its own"):
        change("add", lambda text=text: add(root, mood("own"), probes=[{"text": [text]}]))
        change("remove", lambda: unlist(root, ["own"]))
    assert sizes[0] == sizes[2] > sizes[1] == sizes[3] > 0


@pytest.mark.parametrize("step", [0, 2])
def test_a_change_that_touches_others_is_refused_as_before(root, other, step):
    prover = Prover()
    for change in changes(root, other)[:step]:
        change(prover)

    def act():
        copying(other, "mood", root=root, replace=True)()
        add(root, BY_NAME["names"], seed=77, replace=True)

    with pytest.raises(IsolationError, match="names"):
        certified(root, "update", act, changing=["mood"], prover=prover)
    part = next((root / "tasks" / "alike").rglob("part.safetensors"))
    with pytest.raises(IsolationError, match="put back"):
        certified(root, "update", lambda: flip(part), changing=["mood"], prover=prover)
    flip(part)
    assert verify(root) == []
    certified(root, "update", copying(other, "mood", root=root, replace=True), changing=["mood"], prover=prover)


def test_an_answer_that_is_another_is_found_though_no_layer_runs(root, other, layers, monkeypatch):
    """An engine in which a head changes the last bit of another task's outputs, once it is loaded."""
    prover, original = Prover(), GraphBackend.run
    *before, add_topics = changes(root, other)
    for change in before:
        change(prover)

    def run(self, plan, batch):
        outputs = original(self, plan, batch)
        if "topics" in self._loaded.arranged.tasks and "names" in outputs:
            outputs["names"] = np.nextafter(outputs["names"], np.float32(9))
        return outputs

    monkeypatch.setattr(GraphBackend, "run", run)
    layers.clear()
    with pytest.raises(IsolationError, match="names answers its probes otherwise") as caught:
        add_topics(prover)
    assert caught.value.tasks == ("names",) and "topics" not in Bundle.open(root).lines
    assert layers[0] == 0, "what was asked first came from what was kept"


def test_another_bundle_takes_nothing_over(root, other, tmp_path):
    prover = Prover()
    for change in changes(root, other)[:2]:
        change(prover)
    far = make(tmp_path / "far", "mood", "names")
    certificate = certified(far, "add", lambda: add(far, BY_NAME["topics"]), changing=["topics"], prover=prover)
    assert certificate.unchanged and set(certificate.after) == {"mood", "names", "topics"}
    assert verify(far) == [] and Bundle.open(root).lines.keys() == {"mood", "names", "alike", "topics"}
