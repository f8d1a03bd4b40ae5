import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from polyhead.codecs import CODECS
from polyhead.errors import StoreError
from polyhead.plan import Codec
from polyhead.plan.coding import calibrate, decode, encode, through
from polyhead.plan.cost import vector_bytes
from polyhead.testing.tiny import CODECS as SOME
from support.cases import cases

# Of a vocabulary of 12, two tokens of which are never seen, and of no token.
TOKENS = np.random.default_rng(1).integers(-1, 10, 4096)
WORDS = np.random.default_rng(2).standard_normal((12, 5)).astype(np.float32)

FINITE = st.floats(-1e4, 1e4, width=32)
MATRICES = arrays(np.float32, array_shapes(min_dims=2, max_dims=4, max_side=9), elements=FINITE)


@settings(deadline=None)
@given(MATRICES, st.sampled_from(["tensor", "dimension"]))
def test_uint8_error_is_at_most_half_a_scale_inside_the_calibrated_range(values, per):
    codec = calibrate(values, name="uint8", per=per)
    scale = np.array(codec.scale)
    # 1/256 of a scale more: float32 rounding of the quotient (see LARGEST_ZERO)
    assert (np.abs(through(values, codec).astype(np.float64) - values) <= scale * (0.5 + 2**-6)).all()


@settings(deadline=None)
@given(MATRICES)
def test_uint8_stores_the_levels_of_the_published_formula(values):
    codec = calibrate(values, name="uint8")
    scale, zero = np.float64(codec.scale[0]), codec.zero[0]
    expected = np.clip(np.round(values.astype(np.float64) / scale) + zero, 0, 255)
    assert np.abs(encode(values, codec).astype(int) - expected).max() <= 1  # ties fall either way
    decoded = (encode(values, codec).astype(np.float64) - zero) * scale
    np.testing.assert_allclose(through(values, codec), decoded, rtol=1e-6)


@settings(deadline=None)
@given(MATRICES)
def test_sign_keeps_the_sign_alone(values):
    codec = Codec(name="sign")
    assert set(np.unique(through(values, codec))) <= {-1.0, 1.0}
    np.testing.assert_array_equal(through(values, codec), np.where(values >= 0, 1, -1))
    assert encode(values, codec).shape[-1] == -(-values.shape[-1] // 8)


def test_sign_of_zero_is_plus_one_and_the_first_dimension_is_the_highest_bit():
    values = np.array([[0.0, -0.0, -1, 2, -3, -4, -5, -6, 7]], np.float32)
    np.testing.assert_array_equal(encode(values, Codec(name="sign")), [[0b11010000, 0b10000000]])


@settings(deadline=None)
@given(MATRICES)
def test_float_codecs_equal_a_cast(values):
    np.testing.assert_array_equal(through(values, Codec(name="float32")), values)
    half = values.astype(np.float16).astype(np.float32)
    np.testing.assert_array_equal(through(values, Codec(name="float16")), half)


def test_every_finite_half_is_decoded_exactly():
    """All 63,488 of them, subnormal ones and both zeros included, bit for bit."""
    halves = np.arange(2**16, dtype=np.uint16).view(np.float16)
    halves = halves[np.isfinite(halves)]
    assert len(halves) == 63488
    found = decode(halves[None].view(np.uint8), Codec(name="float16"), len(halves))[0]
    np.testing.assert_array_equal(found.view(np.uint32), halves.astype(np.float32).view(np.uint32))


@settings(deadline=None)
@given(MATRICES, st.sampled_from(sorted(CODECS)))
def test_decoding_and_encoding_again_changes_nothing(values, name):
    tokens = np.resize(TOKENS, values.shape[:-1])
    codec = calibrate(values, name=name, tokens=tokens, words=WORDS)
    once = through(values, codec, tokens)
    np.testing.assert_array_equal(through(once, codec, tokens), once)


@pytest.mark.parametrize(
    ("name", "per_token"),
    [
        ("float32", 4096),
        ("float16", 2048),
        ("uint8", 1024),
        ("sign", 128),
        ("pca1", 128),
        ("pca2", 256),
        ("pca4", 512),
        ("token1", 128),
    ],
)
def test_row_bytes_are_the_true_bytes_of_width_1024(name, per_token):
    """The table of Du et al. 2020: a fixed-size vector takes 2048, 1024 and 128 bytes."""
    values = np.sin(np.arange(1024, dtype=np.float32))[None]
    codec = calibrate(values, name=name, tokens=TOKENS[:1], words=WORDS)
    assert vector_bytes(codec, 1024) == per_token == encode(values, codec, TOKENS[:1]).nbytes


def test_values_out_of_range_are_clipped_to_its_ends():
    codec = Codec(name="uint8", scale=(0.5,), zero=(10.0,))
    np.testing.assert_array_equal(through(np.array([-1e9, 1e9, np.inf], np.float32), codec), [-5, 122.5, 122.5])
    assert np.isfinite(through(np.array([1e6, -np.inf], np.float32), Codec(name="float16"))).all()


def test_constant_dimensions_and_ranges_far_from_zero_survive_calibration():
    values = np.stack([np.zeros(7), np.full(7, 1000.0), np.linspace(1000, 1000.001, 7)], axis=1).astype(np.float32)
    codec = calibrate(values, name="uint8", per="dimension")
    error = np.abs(through(values, codec) - values).max(axis=0)
    assert error[0] == 0 and (error <= 1000 / 2**16).all()


def test_calibration_per_dimension_has_one_constant_a_dimension_over_all_tokens_and_layers():
    values = np.random.default_rng(0).standard_normal((5, 3, 4)).astype(np.float32) * [1, 10, 100, 1000]
    codec = calibrate(values.astype(np.float32), name="uint8", per="dimension", before_mean=True)
    spans = values.reshape(-1, 4).max(axis=0) - values.reshape(-1, 4).min(axis=0)
    np.testing.assert_allclose(codec.scale, spans / 255, rtol=1e-5)
    assert codec.before_mean


@pytest.mark.parametrize("name", [*CODECS])
def test_not_a_number_is_refused(name):
    codec = calibrate(np.eye(2, dtype=np.float32), name=name, tokens=TOKENS[:2], words=WORDS)
    with pytest.raises(StoreError, match="not numbers"):
        encode(np.array([1.0, np.nan], np.float32), codec)


def test_missing_constants_and_foreign_bytes_are_refused():
    with pytest.raises(StoreError, match="calibrate"):
        encode(np.zeros(4, np.float32), Codec(name="uint8"))
    with pytest.raises(StoreError, match="width 4"):
        decode(np.zeros(4, np.uint8), Codec(name="float16"), 4)
    with pytest.raises(StoreError, match="without values"):
        calibrate(np.zeros((0, 4), np.float32), name="uint8")
    with pytest.raises(StoreError, match="finite"):
        calibrate(np.array([[np.inf]], np.float32), name="uint8")


@cases("name", [*CODECS])
@cases("width", [16, 21])
@cases("per", ["tensor", "dimension"])
def test_numbers_of_every_codec_through_its_affine_map_are_what_it_decodes(name, width, per):
    values = np.random.default_rng(width).normal(0.3, 2, (40, width)).astype(np.float32)
    values *= np.linspace(3, 0.1, width, dtype=np.float32)  # components of several bits, and of none
    tokens = TOKENS[: len(values)]
    codec = calibrate(values, name=name, per=per, tokens=tokens, words=WORDS)
    raw, several = encode(values, codec, tokens), codec.format.numbers_width(width, codec)
    numbers = np.empty((len(values), several), np.float32)
    codec.format.numbers(raw, codec, numbers)
    affine, decoded = codec.format.affine(codec), decode(raw, codec, width)
    np.testing.assert_allclose(affine.decoded(numbers), decoded, rtol=1e-5, atol=1e-5)
    reader = np.random.default_rng(0).standard_normal((3, width))
    read = numbers @ affine.folded(reader).T + affine.shift * np.ones(width) @ reader.T
    np.testing.assert_allclose(read, decoded @ reader.T, rtol=1e-4, atol=1e-4)
    if np.isfinite(affine.highest).all():
        added = np.zeros((1, several)) if affine.added is None else affine.added
        own = numbers[:, None] - added  # of one of the rows it is what the highest bounds
        assert ((own >= 0) & (own <= affine.highest)).all(axis=2).any(axis=1).all()


@cases("codec", SOME)
@cases("shape", [(0, 16), (0, 2, 16), (3, 0, 16)])
def test_no_vectors_are_no_bytes_and_no_values(codec, shape):
    """Several codecs could not shape an empty array: a document without a token could not be decoded by itself."""
    raw = encode(np.empty(shape, np.float32), SOME[codec], np.zeros(shape[:-1], np.int64))
    assert raw.shape == (*shape[:-1], vector_bytes(SOME[codec], 16)) and raw.dtype == np.uint8
    assert decode(raw, SOME[codec], 16).shape == shape
