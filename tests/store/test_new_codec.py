"""A codec is one file: registered from outside, it is chosen in a project, trained on, kept, bundled and served."""

import numpy as np
import pytest

from polyhead import read_project, train_project
from polyhead.bundle.read import Bundle
from polyhead.codecs import CODECS, FeatureCodec, register_codec
from polyhead.deep.checks import stable_states, states_of
from polyhead.engine.backends import BACKENDS, default_backend, open_backend
from polyhead.engine.session import Session
from polyhead.errors import ConfigError
from polyhead.plan import Codec, Pool, cost, merge
from polyhead.plan.coding import calibrate, decode, encode, through
from polyhead.testing import tiny_batch, tiny_loaded, tiny_trunk
from support.tiny_project import write_data, write_trunk

with CODECS.temporary():
    from one_file.codec import BFloat16

NAME = BFloat16.name
TEXTS = [("the lamp is broken",), ("anna is happy",), ("please refund my bill today",)]
PROJECT = """
[trunk]
name = "trunk"

[strategy]
kind = "pooled"
positions = "mean"
codec = "{}"

[training]
epochs = 2
precision = "float32"

[[tasks]]
name = "mood"
kind = "single_label"
labels = ["bad", "good"]
label = "mood"
train = "data/messages-train.jsonl"
validation = "data/messages-validation.jsonl"
"""
pytest.importorskip("torch")


@pytest.fixture(scope="module", autouse=True)
def registered():
    """The codec is known as long as these tests run."""
    with CODECS.temporary():
        register_codec(BFloat16())
        yield


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    """A task trained on features that the new codec keeps, by a project file that names it."""
    folder = tmp_path_factory.mktemp("codec")
    write_trunk(folder / "trunk")
    write_data(folder / "data")
    (folder / "polyhead.toml").write_text(PROJECT.format(NAME))
    train_project(read_project(folder / "polyhead.toml"), folder=folder)
    return folder / "bundle"


def test_values_come_back_with_eight_binary_digits():
    values = np.random.default_rng(0).standard_normal((5, 16)).astype(np.float32)
    codec = Codec(name=NAME)
    assert encode(values, codec).nbytes == 5 * cost.vector_bytes(codec, 16) == 5 * 32
    once = through(values, codec)
    np.testing.assert_allclose(once, values, rtol=2.0**-8)
    assert decode(encode(once, codec), codec, 16).tobytes() == once.tobytes()


def test_a_codec_without_constants_is_its_own_calibration():
    assert calibrate(np.ones((3, 4), np.float32), name=NAME) == Codec(name=NAME)


def test_a_project_file_names_it(tmp_path):
    file = tmp_path / "polyhead.toml"
    file.write_text(PROJECT.format(NAME))
    assert read_project(file).strategy.codec == NAME
    file.write_text(PROJECT.format("upper-hal"))
    with pytest.raises(ConfigError, match="strategy: there is no codec 'upper-hal'.*did you mean 'upper-half'"):
        read_project(file)


def test_the_bundle_says_how_its_features_are_coded(bundle):
    assert Bundle.open(bundle).tasks["mood"].path.pool.codec == Codec(name=NAME)


@pytest.mark.parametrize("backend", ["reference", "torch"])
def test_answers_are_the_same_bits_whatever_stands_beside_them(bundle, backend):
    session = Session(bundle, backend=backend, precision="float32", deterministic=True)
    alone = [session.outputs("mood", [text])[0].tobytes() for text in TEXTS]
    assert [one.tobytes() for one in session.outputs("mood", TEXTS)] == alone
    assert Session(bundle, backend=backend, precision="float32", deterministic=True).predict(TEXTS) == session.predict(
        TEXTS
    )


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["torch", "onnxruntime", "openvino"])
def test_every_backend_computes_it(backend):
    pytest.importorskip(backend)
    trunk = tiny_trunk()
    tasks = tiny_loaded(trunk, codec=Codec(name=NAME))
    plan, batch = merge({name: task.path for name, task in tasks.items()}), tiny_batch(trunk, (9, 4, 7, 3))
    wanted = open_backend("reference", trunk, tasks).run(plan, batch)
    opened = open_backend(backend, trunk, tasks, deterministic=True)
    compared = 0
    for name, found in opened.run(plan, batch).items():
        rows = stable_states(states_of(trunk, batch), tasks[name].path, batch)
        if tasks[name].path.pool.positions != "tokens":
            compared += rows.sum()
            np.testing.assert_allclose(found[rows], wanted[name][rows], atol=opened.tolerance, err_msg=name)
    assert compared


def test_a_codec_without_a_graph_says_where_it_can_be_served():
    with pytest.raises(Exception, match="has no form in compiled graphs"):
        FeatureCodec.graph(BFloat16(), None, None, Codec(name=NAME))


def test_a_codec_without_a_graph_is_answered_by_what_compiles_none(caplog):
    """It trained, and then every answer failed, since the default backend compiles graphs."""

    class Plain(BFloat16):
        name = "plain"
        graph = FeatureCodec.graph

    trunk = tiny_trunk()
    with CODECS.temporary():
        register_codec(Plain())
        tasks = tiny_loaded(trunk, codec=Codec(name="plain"))
        plan, batch = merge({name: task.path for name, task in tasks.items()}), tiny_batch(trunk, (9, 4, 7, 3))
        answers = open_backend(None, trunk, tasks).run(plan, batch)
        wanted = open_backend("reference", trunk, tasks).run(plan, batch)
    assert set(answers) == set(wanted) == set(tasks)
    if BACKENDS[default_backend()].compiles:
        assert "codec 'plain' has no method `graph`" in caplog.text


def test_a_name_stands_for_one_codec():
    class Other(BFloat16):
        pass

    register_codec(BFloat16())  # the same one again
    with pytest.raises(ConfigError, match="there is a codec 'upper-half' already"):
        register_codec(Other())
    with pytest.raises(ConfigError, match="there is no codec 'lower'"):
        Pool(codec=Codec(name="lower"))
