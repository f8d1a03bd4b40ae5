"""Training: features once, then the only loop, then a bundle."""

from polyhead.errors import MissingExtra

try:
    import torch  # noqa: F401
except ImportError:
    raise MissingExtra("torch", "train", "training") from None
