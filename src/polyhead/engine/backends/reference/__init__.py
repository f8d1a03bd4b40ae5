"""The yardstick: every step in plain numpy, float32, as the papers write it. Slow on purpose, and needs no torch."""

from polyhead.engine.backends.reference.backend import ReferenceBackend

__all__ = ["ReferenceBackend"]
