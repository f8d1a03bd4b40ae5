"""Kept encoder outputs: codecs down to one bit a dimension, and memory-mapped segments keyed by digests."""
