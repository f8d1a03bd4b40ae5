"""What needs gradients, and torch: modules, the model, its training, the torch backend."""

from polyhead.errors import MissingExtra

try:
    import torch  # noqa: F401
except ImportError:
    raise MissingExtra("torch", "train", "training") from None
