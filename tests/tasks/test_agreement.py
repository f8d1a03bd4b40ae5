"""How far answers computed in two ways agree, and what of it a bundle keeps."""

from importlib.metadata import PackageNotFoundError

import msgspec
import numpy as np
import pytest

from bundle.test_write import contents
from engine.test_isolation import BY_NAME, add, make
from polyhead.bundle.read import Bundle
from polyhead.bundle.row_profile import RowProfile
from polyhead.certify import ProbeRunner
from polyhead.certify.annotations import Annotations, keep_annotations
from polyhead.engine.probes import (
    FILE,
    Numerics,
    keep_agreements,
    numerics_of,
    on_probes,
    read_agreements,
    readable_probes,
)
from polyhead.engine.session import Session
from polyhead.errors import CorruptFile
from polyhead.tasks.agreement import Agreement, agreement_of, says_the_same, without_scores
from polyhead.tasks.calibration import Calibration
from support.cases import cases

HOW = Numerics(backend="openvino", precision="bfloat16", version="1")


def spans(*places):
    return {"spans": [{"start": s, "end": e, "label": label, "text": "", "score": 0.5} for s, e, label in places]}


def words(*labels):
    return {"words": [{"start": i, "end": i + 1, "label": label} for i, label in enumerate(labels)]}


def choice(index, scores, ranked):
    return {"index": index, "option": "x", "scores": scores, "ranked": ranked}


def place(start, end):
    return {"text": "a", "start": start, "end": end, "score": 0.5}


GOOD, BAD = {"label": "good", "scores": {"good": 0.9, "bad": 0.1}}, {"label": "bad", "scores": {}}
SURELY_GOOD = {"label": "good", "scores": {"good": 1.0, "bad": 0.0}}
ANNA, LAMP = (0, 4, "person"), (5, 9, "product")


@cases(
    ("task", "first", "second", "share"),
    [
        ("mood", [GOOD] * 4, [SURELY_GOOD] * 4, 1.0),
        ("mood", [GOOD] * 4, [GOOD, GOOD, GOOD, BAD], 0.75),
        ("topics", [{"labels": ["order"]}, {"labels": []}], [{"labels": ["order", "bill"]}, {"labels": []}], 0.5),
        ("topics", [{"labels": ["order", "bill"]}], [{"labels": ["bill", "order"]}], 1.0),
        ("names", [spans(ANNA, LAMP)], [spans(ANNA)], 2 / 3),
        ("names", [spans()], [spans()], 1.0),
        ("names", [words("a", "b", "c", "d")], [words("a", "b", "c", "c")], 0.75),
        ("reply", [choice(1, [0.4, 0.6], [1, 0, 2])], [choice(1, [0.3, 0.7], [1, 2, 0])], 1.0),
        ("where", [place(0, 1)], [place(4, 5)], 0.0),
    ],
    ids=["scores", "label", "labels", "order-of-labels", "span-f1", "no-span", "words", "choice", "answer"],
)
def test_share_of_equal_answers(task, first, second, share):
    agreement = agreement_of(BY_NAME[task], list(zip(first, second, strict=True)))
    assert agreement.share == pytest.approx(share) and agreement.difference is None and agreement.rows == len(first)


def test_difference_of_numbers_is_a_part_of_the_range():
    agreement = agreement_of(BY_NAME["alike"], [({"value": 1.0}, {"value": 1.5}), ({"value": 3.0}, {"value": 3.0})])
    assert (agreement.difference, agreement.share) == (pytest.approx(0.25), pytest.approx(1 - 0.25 / 5))
    assert agreement_of(BY_NAME["alike"], []) is None


def test_backends_agree_on_probes_and_another_bundle_does_not(tmp_path):
    root, other = make(tmp_path / "a", "mood", "names", "alike"), make(tmp_path / "b", "mood", seed=5)
    trained = ProbeRunner(Bundle.open(root))
    reference = Session(root, backend="reference")
    for name in ("mood", "names", "alike"):
        agreement = on_probes(trained, reference, name)
        assert agreement.share == pytest.approx(1.0, abs=1e-3) and agreement.rows == len(
            readable_probes(trained.bundle, name)
        )
    assert on_probes(trained, Session(other, backend="reference"), "mood").share < 1


def test_agreements_are_kept_beside_what_digests_cover(tmp_path):
    root = make(tmp_path / "a", "mood", "names")
    before, bundle = contents(root), Bundle.open(root)
    assert read_agreements(bundle) == []
    keep_agreements(bundle, HOW, {"mood": Agreement(rows=5, share=0.8)})
    after = contents(root)
    assert {name for name in after if after[name] != before.get(name)} == {FILE}
    Bundle.open(root).verify()
    (agreement,) = read_agreements(bundle)
    assert agreement.numerics == HOW and agreement.agreements == {"mood": Agreement(rows=5, share=0.8)}


def test_measuring_again_replaces_what_the_same_backend_and_precision_had(tmp_path):
    bundle = Bundle.open(make(tmp_path / "a", "mood"))
    newer = Numerics(backend="openvino", precision="bfloat16", version="2")
    exact = Numerics(backend="openvino", precision="float32", version="1")
    for how, share in ((HOW, 0.5), (exact, 1.0), (newer, 0.9)):
        keep_agreements(bundle, how, {"mood": Agreement(rows=5, share=share)})
    agreement = {one.numerics: one.agreements["mood"].share for one in read_agreements(bundle)}
    assert agreement == {exact: 1.0, newer: 0.9}


def test_agreement_of_a_replaced_version_is_not_shown(tmp_path):
    root = make(tmp_path / "a", "mood", "names")
    bundle = Bundle.open(root)
    keep_agreements(bundle, HOW, {name: Agreement(rows=5, share=1.0) for name in bundle.tasks})
    add(root, BY_NAME["mood"], seed=9, replace=True)
    (agreement,) = read_agreements(Bundle.open(root))
    assert set(agreement.tasks) == {"names"}


def test_agreement_stays_when_a_calibration_is_set_beside_the_answers(tmp_path):
    root = make(tmp_path / "a", "mood", "names")
    keep_agreements(Bundle.open(root), HOW, {"mood": Agreement(rows=5, share=0.8)})
    keep_annotations(root, {"mood": Annotations(calibration=Calibration(scale=(0.5,)))}, read=Bundle.open(root))
    (agreement,) = read_agreements(Bundle.open(root))
    assert agreement.agreements == {"mood": Agreement(rows=5, share=0.8)}


def test_agreement_is_not_shown_of_answers_that_say_none_of_these_by_another_profile(tmp_path):
    """What the task learned is the same all the while."""
    root = make(tmp_path / "a", "names")
    add(root, msgspec.structs.replace(BY_NAME["mood"], none_below=0.02))
    vectors = np.eye(16, dtype=np.float32)
    learned = Bundle.open(root).learned_digest("mood")
    keep_agreements(Bundle.open(root), HOW, {"mood": Agreement(rows=5, share=0.8)})
    for lengths, beside in ((5, Annotations(calibration=Calibration(scale=(0.5,)))), (9, Annotations())):
        seen = RowProfile(vectors=vectors, lengths=np.full(16, lengths, np.float32), scores=vectors[:, :3])
        keep_annotations(root, {"mood": Annotations(seen=seen)}, read=Bundle.open(root))
        assert read_agreements(Bundle.open(root)) == []
        keep_agreements(Bundle.open(root), HOW, {"mood": Agreement(rows=5, share=0.8)})
        keep_annotations(root, {"mood": beside}, read=Bundle.open(root))
        assert len(read_agreements(Bundle.open(root))) == 1
    assert Bundle.open(root).learned_digest("mood") == learned


def test_agreement_that_names_a_version_by_its_record_is_read(tmp_path):
    """As files of before do."""
    bundle = Bundle.open(make(tmp_path / "a", "mood"))
    keep_agreements(bundle, HOW, {"mood": Agreement(rows=5, share=0.8)})
    file = bundle.root / FILE
    file.write_text(file.read_text().replace(bundle.answers_digest("mood"), bundle.lines["mood"].record))
    assert f'"record": "{bundle.lines["mood"].record}"' in file.read_text() and len(read_agreements(bundle)) == 1


def test_damaged_agreements_are_refused_and_measured_anew(tmp_path):
    bundle = Bundle.open(make(tmp_path / "a", "mood"))
    (bundle.root / FILE).write_text('{"agreements": 3}')
    with pytest.raises(CorruptFile, match="delete it"):
        read_agreements(bundle)
    keep_agreements(bundle, HOW, {"mood": Agreement(rows=5, share=1.0)})
    assert len(read_agreements(bundle)) == 1


def test_label_says_backend_precision_and_version(tmp_path):
    session = Session(make(tmp_path / "a", "mood"), backend="reference")
    assert numerics_of(session) == Numerics(backend="reference", precision="float32", version=np.__version__)


@pytest.mark.parametrize("name", ["openvino", "onnxruntime", "torch"])
def test_label_says_the_version_of_the_module_whichever_package_brings_it(tmp_path, monkeypatch, name):
    """It was that of the package of this name, and another one that gives the module was an error."""
    module = pytest.importorskip(name)
    session = Session(make(tmp_path / "a", "mood"), backend=name, precision="float32")

    def nowhere(package):
        raise PackageNotFoundError(package)

    monkeypatch.setattr("importlib.metadata.distribution", nowhere)
    agreement = numerics_of(session)
    assert (agreement.backend, agreement.precision, agreement.calibration) == (name, "float32", "")
    assert agreement.version[:1].isdigit() and str(module.__version__).startswith(agreement.version)


def test_answers_that_lie_a_little_nearer_to_known_texts_agree():
    """`familiar` of a task with `none_below` is a share, of which any difference made two answers different."""
    task = msgspec.structs.replace(BY_NAME["mood"], none_below=0.02)
    near, far = ({"label": "good", "familiar": share, "none_of_these": share < 0.02} for share in (0.031, 0.028))
    assert agreement_of(task, [(near, far)]).share == 1
    assert not says_the_same(near, {**near, "familiar": 0.01, "none_of_these": True})
    assert without_scores(near) == {"label": "good", "none_of_these": False}
