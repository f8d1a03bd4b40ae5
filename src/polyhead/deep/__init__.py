"""The torch half: modules, the model, training by gradients, and the torch backend."""

from polyhead.errors import MissingExtra

try:
    import torch  # noqa: F401
except ImportError:
    raise MissingExtra("torch", "train", "this") from None
