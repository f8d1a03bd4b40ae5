"""The codecs for kept features, one file each; `register_codec` adds others."""

from polyhead.codecs.base import CODECS, NO_TOKEN, Constants, FeatureCodec, TokenCodec, register_codec
from polyhead.codecs.float16 import Float16
from polyhead.codecs.float32 import Float32
from polyhead.codecs.pca import Components
from polyhead.codecs.sign import Sign
from polyhead.codecs.token import Token1
from polyhead.codecs.uint8 import UInt8

__all__ = [
    "CODECS",
    "EXACT",
    "HALF",
    "IN_A_BYTE",
    "NO_TOKEN",
    "ONE_BIT",
    "Constants",
    "FeatureCodec",
    "TokenCodec",
    "register_codec",
]

for _codec in (Float32(), Float16(), UInt8(), Sign(), Components(1), Components(2), Components(4), Token1()):
    register_codec(_codec)

EXACT = Float32.name  # features as the trunk returns them
HALF = Float16.name  # the default for kept features
IN_A_BYTE = UInt8.name  # the default for states of very many tokens
ONE_BIT = Token1.name  # the default for a store of a corpus
