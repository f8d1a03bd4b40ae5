"""Features of the frozen trunk: each input once, through the codec, for every pool, and nothing lost in a kill."""

import itertools
import os

import msgspec
import numpy as np
import pytest

from polyhead import plan as planning
from polyhead.engine.backends.base import TokenBatch
from polyhead.engine.backends.reference import ReferenceBackend
from polyhead.errors import TrainError
from polyhead.plan import Codec, Embed, Head, Layers, Path, Pool
from polyhead.plan.coding import decode, encode
from polyhead.store import taps as fill
from polyhead.testing import CODECS, tiny_owned, tiny_trunk
from polyhead.text.words import first_subtokens, words_of
from polyhead.train.data import extract as extraction
from polyhead.train.data.extract import Extractor
from polyhead.train.data.source import FeatureRequest
from support.pooled_features import of_reference

TEXTS = [(t,) for t in ("where is my order?", "good", "the lamp is broken and late today", "thank you ben", "12")]
LONG = ("please refund the broken lamp " * 20,)


@pytest.fixture(scope="module")
def trunk():
    return tiny_trunk()


@pytest.fixture
def extractor(trunk, tmp_path):
    return Extractor(trunk, folder=tmp_path / "features", precision="float32")


def prefix(trunk, pool):
    return Path(nodes=(Embed(trunk=trunk.digest), Layers(start=0, stop=2), pool))


def kept(extractor, wanted):
    features = extractor.store(wanted.path).features(wanted.keys())
    return [features.take([i]).values[0] for i in range(len(features))]


def reference_states(trunk, extractor, text):
    """Every layer's states of one text alone, by the numpy backend: (layers + 1, tokens, width)."""
    encoded = extractor.tokenizer.encode([text])[0]
    batch = TokenBatch(
        ids=encoded.ids[None].astype(np.int64),
        mask=np.ones((1, len(encoded.ids)), bool),
        segments=encoded.segments[None].astype(np.int64),
        words=np.arange(len(encoded.ids))[None],  # every token is a word
    )
    head, words = Head(kind="single_label", width=2, part="task:t"), Pool(positions="tokens")
    depths = range(trunk.architecture.layers + 1)
    paths = {str(depth): Path(nodes=(*tap(trunk, depth, words).nodes, head)) for depth in depths}
    backend = ReferenceBackend(trunk, tiny_owned(paths, trunk.architecture))
    states = of_reference(backend, planning.merge(paths), batch)
    return np.stack([states[name][0] for name in paths]), encoded


POOLS = {
    "first of the last": (Pool(), lambda s: s[-1:, :1]),
    "mean of the last": (Pool(positions="mean"), lambda s: s[-1:].mean(axis=1, keepdims=True)),
    "mean of two": (Pool(layers="mean", of=2, positions="mean"), lambda s: s[1:].mean(axis=(0, 1), keepdims=True)),
    "two before their mean": (
        Pool(layers="mean", of=2, codec=Codec(name="float32", before_mean=True)),
        lambda s: s[1:, :1],
    ),
    "all positions": (
        Pool(layers="mean", of=2, positions="attention", heads=2, part="task:x"),
        lambda s: s[1:].mean(axis=0, keepdims=True),
    ),
    "all layers": (Pool(layers="learned", part="task:x"), lambda s: s[1:, :1]),
}


@pytest.mark.parametrize("name", POOLS)
def test_what_is_kept_is_the_pool_of_the_reference_states(trunk, extractor, name):
    pool, expected = POOLS[name]
    wanted = FeatureRequest(path=prefix(trunk, pool), inputs=TEXTS)
    extractor.fill([wanted])
    for text, found in zip(TEXTS, kept(extractor, wanted), strict=True):
        states, _ = reference_states(trunk, extractor, text)
        np.testing.assert_allclose(found, expected(states).swapaxes(0, 1), atol=1e-5)


EVERY_POSITION = Pool(positions="all")


def tap(trunk, depth, pool=EVERY_POSITION):
    layers = (Layers(start=0, stop=depth),) if depth else ()
    return Path(nodes=(Embed(trunk=trunk.digest), *layers, pool))


def test_one_pass_keeps_the_reference_states_of_every_tap_the_embeddings_output_too(trunk, extractor):
    wanted = [FeatureRequest(path=tap(trunk, depth), inputs=TEXTS) for depth in (1, 0, 2)]
    assert extractor.fill(wanted).passes == len(TEXTS)
    for request, depth in zip(wanted, (1, 0, 2), strict=True):
        for text, found in zip(TEXTS, kept(extractor, request), strict=True):
            states, _ = reference_states(trunk, extractor, text)
            np.testing.assert_allclose(found, states[depth][:, None], atol=1e-5)


def test_a_tap_and_a_whole_path_of_one_run_are_what_each_is_alone(trunk, extractor, tmp_path):
    """What is kept at a tap does not depend on how deep others read."""
    words = [words_of(text[0]) for text in TEXTS]
    requests = [
        FeatureRequest(path=tap(trunk, 1), inputs=TEXTS),
        FeatureRequest(path=prefix(trunk, Pool(layers="mean", of=2)), inputs=TEXTS),
        FeatureRequest(path=tap(trunk, 1, Pool(layers="learned", part="task:x")), inputs=TEXTS),
        FeatureRequest(path=tap(trunk, 1, Pool(positions="tokens")), inputs=TEXTS, words=words),
    ]
    extractor.fill(requests)
    for place, request in enumerate(requests):
        alone = Extractor(trunk, folder=tmp_path / str(place), precision="float32")
        alone.fill([request])
        for one, other in zip(kept(extractor, request), kept(alone, request), strict=True):
            assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize("deepest", [0, 1, 2])
def test_no_layer_above_the_deepest_tap_is_run(trunk, extractor, deepest):
    ran = []
    for index, layer in enumerate(extractor.backend._trunk.layers):
        layer.register_forward_pre_hook(lambda module, values, index=index: ran.append(index))
    extractor.fill([FeatureRequest(path=tap(trunk, depth), inputs=TEXTS) for depth in range(deepest + 1)])
    assert sorted(set(ran)) == list(range(deepest))


def test_words_are_kept_at_their_first_subtokens(trunk, extractor):
    words = [words_of(text[0]) for text in TEXTS]
    wanted = FeatureRequest(path=prefix(trunk, Pool(positions="tokens")), inputs=TEXTS, words=words)
    extractor.fill([wanted])
    for text, places, found in zip(TEXTS, words, kept(extractor, wanted), strict=True):
        states, encoded = reference_states(trunk, extractor, text)
        tokens = first_subtokens(encoded, places)
        assert len(found) == len(places) and (tokens >= 0).all()
        np.testing.assert_allclose(found[:, 0], states[-1][tokens], atol=1e-5)


def test_words_beyond_the_limit_are_rows_of_zeros(trunk, extractor):
    words = [words_of(LONG[0])]
    wanted = FeatureRequest(path=prefix(trunk, Pool(positions="tokens")), inputs=[LONG], words=words)
    done = extractor.fill([wanted])
    found = kept(extractor, wanted)[0][:, 0]
    assert done.cut == 1 and len(found) == 100
    assert (found[46:] == 0).all() and (np.abs(found[:46]).sum(axis=1) > 0).all()


@pytest.mark.parametrize("codec", ["float16", "uint8", "sign", "pca1", "token1"])
def test_features_pass_their_codec_once(trunk, tmp_path, extractor, codec):
    coded = CODECS[codec]
    plain = FeatureRequest(path=prefix(trunk, Pool(positions="mean")), inputs=TEXTS)
    wanted = FeatureRequest(path=prefix(trunk, Pool(positions="mean", codec=coded)), inputs=TEXTS)
    assert extractor.fill([plain, wanted]).passes == len(TEXTS)
    for raw, found in zip(kept(extractor, plain), kept(extractor, wanted), strict=True):
        assert found.tobytes() == decode(encode(raw, coded, np.array([-1])), coded, 16).tobytes()


def test_one_pass_fills_every_store_and_equal_texts_are_read_once(trunk, extractor):
    requests = [FeatureRequest(path=prefix(trunk, pool), inputs=[*TEXTS, *TEXTS]) for pool, _ in POOLS.values()]
    words = [words_of(text[0]) for text in TEXTS]
    requests.append(FeatureRequest(path=prefix(trunk, Pool(positions="tokens")), inputs=TEXTS, words=words))
    done = extractor.fill(requests)
    assert done.passes == len(TEXTS) and done.reused == 0
    again = extractor.fill(requests)
    assert done.known == 0 and again.known == len(set(TEXTS))
    assert f"encoded 0 inputs once, {len(set(TEXTS))} encoded before, " in extractor.summary(again)
    assert again.passes == 0 and again.reused == len(POOLS) * 2 * len(TEXTS) + len(TEXTS)


def test_a_text_and_the_same_text_in_a_pair_are_different_inputs(trunk, extractor):
    wanted = FeatureRequest(path=prefix(trunk, Pool()), inputs=[("good",), ("good", "good"), ("good",)])
    assert extractor.fill([wanted]).passes == 2
    one, pair, again = kept(extractor, wanted)
    assert one.tobytes() == again.tobytes() != pair.tobytes()


def test_other_words_of_one_text_are_other_values(trunk, extractor):
    whole, half = np.array([[0, 4], [5, 9]], np.int32), np.array([[0, 9]], np.int32)
    path = prefix(trunk, Pool(positions="tokens"))
    wanted = FeatureRequest(path=path, inputs=[("good lamp",), ("good lamp",)], words=[whole, half])
    assert extractor.fill([wanted]).passes == 1
    assert [len(v) for v in kept(extractor, wanted)] == [2, 1]


def test_stores_of_another_trunk_or_precision_are_apart(trunk, tmp_path):
    folders = set()
    for data, precision in ((trunk, "float32"), (trunk, "bfloat16"), (tiny_trunk(seed=1), "float32")):
        one = Extractor(data, folder=tmp_path, precision=precision)
        wanted = FeatureRequest(path=prefix(data, Pool(positions="mean")), inputs=TEXTS)
        assert one.fill([wanted]).passes == len(TEXTS)
        folders.add(one.folder / planning.digest(wanted.path.stored()))
    assert len(folders) == 3 and all(folder.is_dir() for folder in folders)


def test_a_kill_loses_the_unwritten_segment_alone(trunk, extractor, tmp_path, monkeypatch):
    monkeypatch.setattr(extraction, "TOKEN_BUDGET", 8)
    monkeypatch.setattr(extraction, "FLUSH_BYTES", 2 * 16 * 4)  # two vectors to a segment
    wanted = FeatureRequest(path=prefix(trunk, Pool(positions="mean")), inputs=TEXTS)
    features, calls = Extractor.features, []

    def failing(self, paths, batch):
        calls.append(batch)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return features(self, paths, batch)

    with monkeypatch.context() as patched:
        patched.setattr(Extractor, "features", failing)
        with pytest.raises(KeyboardInterrupt):
            extractor.fill([wanted])
    lacking = extractor.store(wanted.path).missing(wanted.keys())
    assert len(lacking) == 3  # three were encoded, two of them in a written segment
    again = Extractor(trunk, folder=tmp_path / "features", precision="float32")
    assert again.fill([wanted]).passes == 3
    other = Extractor(trunk, folder=tmp_path / "other", precision="float32")
    other.fill([wanted])
    for one, two in zip(kept(again, wanted), kept(other, wanted), strict=True):
        np.testing.assert_array_equal(one, two)


def test_what_is_encoded_is_kept_after_half_a_minute_however_little_it_is(trunk, extractor, monkeypatch):
    """Minutes of encoding were lost, since values were written by their size alone."""
    monkeypatch.setattr(extraction, "TOKEN_BUDGET", 8)  # a text in each batch
    wanted = FeatureRequest(path=prefix(trunk, Pool(positions="mean")), inputs=TEXTS)
    features, seconds = Extractor.features, itertools.count(step=16)  # of a clock that is read once a batch

    class Clock:
        @staticmethod
        def monotonic():
            return next(seconds)

    calls = []

    def failing(self, paths, batch):
        calls.append(batch)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return features(self, paths, batch)

    monkeypatch.setattr(extraction, "time", Clock)
    monkeypatch.setattr(Extractor, "features", failing)
    with pytest.raises(KeyboardInterrupt):
        extractor.fill([wanted])
    assert len(extractor.store(wanted.path).missing(wanted.keys())) == 3  # of three that were encoded two are kept


def test_a_resumed_extraction_goes_on_in_the_same_batches(trunk, tmp_path, monkeypatch):
    """A state's last bits depend on its batch: what was lacking at the start decides the batches, not what is left."""
    texts = [(" ".join(["order"] * (1 + i % 7)) + f" {i}",) for i in range(40)]
    wanted = FeatureRequest(path=prefix(trunk, Pool(positions="mean", codec=Codec(name="float32"))), inputs=texts)
    monkeypatch.setattr(extraction, "TOKEN_BUDGET", 40)
    monkeypatch.setattr(extraction, "FLUSH_BYTES", 5 * 16 * 4)
    seen = {}
    features = Extractor.features
    for name, stop in (("whole", None), ("killed", 4), ("killed", None)):
        seen.setdefault(name, [])
        extractor = Extractor(trunk, folder=tmp_path / name, precision="float32")

        def told(self, paths, batch, name=name, calls=stop):
            if calls is not None and len(seen[name]) == calls:
                raise KeyboardInterrupt
            seen[name].append(batch.ids.tobytes())
            return features(self, paths, batch)

        with monkeypatch.context() as patched:
            patched.setattr(Extractor, "features", told)
            if stop is None:
                extractor.fill([wanted])
            else:
                with pytest.raises(KeyboardInterrupt):
                    extractor.fill([wanted])
    assert set(seen["killed"]) == set(seen["whole"])
    whole = Extractor(trunk, folder=tmp_path / "whole", precision="float32")
    killed = Extractor(trunk, folder=tmp_path / "killed", precision="float32")
    for one, two in zip(kept(whole, wanted), kept(killed, wanted), strict=True):
        np.testing.assert_array_equal(one, two)
    assert not list((tmp_path / "killed").rglob("*.keys"))


def test_uint8_constants_come_from_the_given_texts_and_bound_the_error(trunk, extractor):
    path = prefix(trunk, Pool(layers="mean", of=2, positions="mean", codec=Codec(name="uint8")))
    for per, count in (("tensor", 1), ("dimension", 16)):
        codec = extractor.calibrated(path, TEXTS, per=per)
        assert len(codec.scale) == len(codec.zero) == count
    assert extractor.calibrated(path, TEXTS, per="tensor") == extractor.calibrated(path, TEXTS, per="tensor")
    plain = prefix(trunk, Pool(positions="mean", codec=Codec(name="float16")))
    assert extractor.calibrated(plain, TEXTS, per="tensor") == Codec(name="float16")


def test_progress_is_told_up_to_the_end(trunk, extractor, monkeypatch):
    monkeypatch.setattr(extraction, "TOKEN_BUDGET", 8)
    told = []
    wanted = FeatureRequest(path=prefix(trunk, Pool()), inputs=TEXTS)
    done = extractor.fill([wanted], update=lambda *so_far: told.append(so_far))
    assert told[-1] == (5, 5, 1.0) and told == sorted(told)
    lengths = [len(e.ids) for e in extractor.tokenizer.encode(TEXTS)]
    assert told[0][2] == pytest.approx(max(lengths) / sum(lengths))  # the longest come first
    assert done.tokens == sum(len(e.ids) for e in extractor.tokenizer.encode(TEXTS))


def test_texts_in_several_pieces_are_those_in_one(trunk, tmp_path, monkeypatch):
    path = prefix(trunk, Pool(positions="mean"))
    texts = [(f"order {i} is late",) for i in range(20)]
    wanted = FeatureRequest(path=path, inputs=texts)
    whole = Extractor(trunk, folder=tmp_path / "a", precision="float32")
    whole.fill([wanted])
    monkeypatch.setattr(extraction, "PIECE", 3)
    pieces = Extractor(trunk, folder=tmp_path / "b", precision="float32")
    assert pieces.fill([wanted]).passes == 20
    for one, two in zip(kept(whole, wanted), kept(pieces, wanted), strict=True):
        np.testing.assert_allclose(one, two, atol=1e-6)


def test_nothing_wanted_is_nothing_done(extractor, trunk):
    done = extractor.fill([FeatureRequest(path=prefix(trunk, Pool()), inputs=[])])
    assert msgspec.structs.astuple(done)[:4] == (0, 0, 0, 0)


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="the system does not list a process's open files")
def test_requests_that_share_a_store_write_one_fragment_and_hold_no_files_open(trunk, extractor):
    """21 tasks once held 19,000 files open: each request opened the store anew, and wrote fragments of its own."""
    path = prefix(trunk, Pool(positions="mean"))
    requests = [FeatureRequest(path=path, inputs=[*TEXTS, (f"lamp {number}",)]) for number in range(6)]
    before = len(os.listdir("/proc/self/fd"))
    extractor.fill(requests)
    store = extractor.store(path)
    assert extractor.store(path) is store and len(store) == len(TEXTS) + 6
    assert len(os.listdir(extractor.folder / planning.digest(path.stored()) / "fragments")) == 1
    for request in requests:
        assert not extractor.store(request.path).missing(request.keys())
    assert len(os.listdir("/proc/self/fd")) == before


def test_of_long_texts_a_codec_is_fixed_from_every_so_many_th(trunk, extractor, monkeypatch):
    """Evenly over all of them, so that a later task's texts count as much; one vector a text is no reason to."""
    monkeypatch.setattr(fill, "MOST_VECTORS", 40)
    texts = [(" ".join(["good"] * (3 + i % 5)),) for i in range(30)]
    taken = []
    for path in (prefix(trunk, Pool(positions="all")), prefix(trunk, Pool(positions="mean"))):
        pieces = list(fill.sample_values(extractor.features, path, texts, extractor.tokenizer, budget=64))
        taken.append((sum(len(piece.starts) - 1 for piece in pieces), sum(len(piece.values) for piece in pieces)))
    (several, vectors), means = taken
    assert 30 // several == 6 and 20 <= vectors <= 40 and means == (30, 30)


def test_features_of_two_backends_are_kept_apart(trunk, tmp_path, monkeypatch):
    """They differ in their last bits: a run with another backend took what the first one had kept."""
    for name in ("reference", "torch"):
        monkeypatch.setattr(extraction, "encoding_backend", lambda precision=None, name=name: name)
        own = Extractor.within(trunk, tmp_path, precision="float32")
        assert own.folder == tmp_path / "features" / f"float32-{name}"
    (tmp_path / "features").mkdir()
    (tmp_path / "features" / "float32-torch").symlink_to(tmp_path)
    with pytest.raises(TrainError, match="without links"):
        Extractor.within(trunk, tmp_path, precision="float32")
