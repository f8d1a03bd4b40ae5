"""Which backend encodes texts in tests that train."""

ENCODING = ("train.data.encoder", "train.data.extract", "train.record.comparison")  # modules that choose it


def encode_by_torch(patch):
    """Texts are encoded by torch, which compiles nothing."""
    for module in ENCODING:
        patch.setattr(f"polyhead.{module}.encoding_backend", lambda precision=None: "torch")
