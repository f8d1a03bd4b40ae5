"""Branches that end below a closing norm have one of their own, which starts as the encoder's; others have none."""

import msgspec
import numpy as np
import pytest
import torch

from polyhead.bundle.manifest import TaskRecord
from polyhead.deep.sharing.make import arrays_of_part, make_part
from polyhead.engine.backends import open_backend
from polyhead.engine.backends.base import LoadedTask
from polyhead.engine.export.write import export_bundle
from polyhead.errors import PlanError
from polyhead.plan import Head, Layers, Path, cost, merge
from polyhead.project.strategies import Branch
from polyhead.testing import tiny_batch, tiny_owned, tiny_tasks, tiny_trunk
from polyhead.testing.strategies import tiny_bundle

TRUNK = tiny_trunk(layers=4, family="modernbert")
TASK = tiny_tasks()[0]
BACKENDS = ("reference", "torch", "openvino", "onnxruntime")


def branch(tap, layers, data=TRUNK, *, name=TASK.name):
    strategy = Branch(tap=tap, layers=layers, positions="first", hidden=8)
    return strategy.path(msgspec.structs.replace(TASK, name=name), trunk=data.digest, shape=data.architecture)


def own(path):
    (node,) = [node for node in path.layers if node.weights != "trunk"]
    return node


@pytest.mark.parametrize(
    ("tap", "layers", "norms"),
    [(2, 2, ["layers.3.norm.weight"]), (0, 2, ["layers.1.norm.weight"]), (1, 2, ["layers.2.norm.weight"])],
    ids=["to the top", "from below", "between"],
)
def test_a_branch_ends_with_a_norm_wherever_it_ends(tap, layers, norms):
    path = branch(tap, layers)
    names = cost.part_arrays(path, TRUNK.architecture, own(path).weights)
    assert [name for name in names if name.endswith(".norm.weight") and name.count(".") == 3] == norms
    assert (own(path).closed is True) == (tap + layers < 4)  # at the top it is the encoder's form


def test_a_branch_of_an_encoder_with_norms_behind_has_none():
    data = tiny_trunk(layers=4)
    assert own(branch(0, 2, data)).closed is not True


def test_its_norm_starts_as_the_encoders_and_a_students_as_its_teachers():
    rng = np.random.default_rng(1)
    teacher = make_part(branch(1, 3), TRUNK.architecture, generator=torch.Generator().manual_seed(0))
    teacher.start_from(TRUNK.arrays)
    np.testing.assert_array_equal(arrays_of_part(teacher)["layers.3.norm.weight"], TRUNK.arrays["layers.3.norm.weight"])
    with torch.no_grad():
        teacher.layers["3"].norm.weight.copy_(torch.from_numpy(rng.standard_normal(16)))
    learned = arrays_of_part(teacher)
    student = make_part(branch(1, 1), TRUNK.architecture, generator=torch.Generator().manual_seed(0))
    student.start_from(learned, head=True)
    np.testing.assert_array_equal(arrays_of_part(student)["layers.1.norm.weight"], learned["layers.3.norm.weight"])
    np.testing.assert_array_equal(
        arrays_of_part(student)["layers.1.attention.query.weight"], learned["layers.1.attention.query.weight"]
    )


@pytest.mark.parametrize("name", BACKENDS)
def test_a_closed_branch_reads_the_normalised_state_of_the_same_layers(name):
    """Beside one that ends at the top; the states without its norm are the reference's, the rest is torch's."""
    paths = {"closed": branch(1, 2, name="closed"), "top": branch(2, 2, name="top")}
    loaded, batch = tiny_owned(paths, TRUNK.architecture), tiny_batch(TRUNK, (9, 4, 7))
    found = open_backend(name, TRUNK, loaded, precision="float32").run(merge(paths), batch)["closed"]
    embed, shared, node, pool, head = paths["closed"].nodes
    width, own_arrays = TRUNK.architecture.width, loaded["closed"].arrays
    whole = Head(kind=head.kind, width=width, part=head.part)  # gives the state as it is
    bare = Path(nodes=(embed, shared, msgspec.structs.replace(node, closed=msgspec.UNSET), pool, whole))
    arrays = {key: array for key, array in own_arrays.items() if key.startswith("layers.") and ".2.norm" not in key}
    arrays |= {"head.output.weight": np.eye(width, dtype=np.float32), "head.output.bias": np.zeros(width, np.float32)}
    reference = open_backend("reference", TRUNK, {"bare": LoadedTask(path=bare, arrays=arrays)})
    states = torch.from_numpy(np.float32(reference.run(merge({"bare": bare}), batch)["bare"]))
    own_tensors = {key: torch.from_numpy(array) for key, array in own_arrays.items()}
    normed = torch.nn.functional.layer_norm(states, (width,), own_tensors["layers.2.norm.weight"], None, 1e-5)
    linear = torch.nn.functional.linear
    hidden = torch.tanh(linear(normed, own_tensors["head.hidden.weight"], own_tensors["head.hidden.bias"]))
    wanted = linear(hidden, own_tensors["head.output.weight"], own_tensors["head.output.bias"])
    np.testing.assert_allclose(found, wanted.numpy(), atol=1e-4)
    assert np.abs(states.numpy() - normed.numpy()).max() > 0.1


def test_it_is_exported_and_its_record_says_so(tmp_path):
    path = branch(1, 2)
    bundle = tiny_bundle(tmp_path / "b", TRUNK, {TASK.name: path})
    files = export_bundle(bundle.root, tmp_path / "out", backend="reference").tasks[TASK.name]
    assert files.largest_difference < 1e-4
    record = bundle.tasks[TASK.name]
    assert isinstance(record, TaskRecord) and record.path == path


def test_layers_of_the_trunk_cannot_be_closed():
    with pytest.raises(PlanError, match="own layers alone"):
        Layers(start=0, stop=2, closed=True)
