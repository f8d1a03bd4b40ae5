"""The precisions in which tests run the trunk on the default backend: bfloat16 only where the processor has it."""

import pytest

from polyhead.engine.backends import default_backend
from polyhead.engine.probes import has_bfloat16
from polyhead.machine import processor

HAS_BFLOAT16 = has_bfloat16(default_backend())
needs_bfloat16 = pytest.mark.skipif(
    not HAS_BFLOAT16, reason=f"{default_backend()} has no bfloat16 on {processor().label}"
)
FLOATS = ["float32", pytest.param("bfloat16", marks=needs_bfloat16)]
needs_eight_bit_slots = pytest.mark.skipif(
    processor().weight_bits != 8, reason=f"poolers and heads stay in floats without VNNI: {processor().label}"
)
