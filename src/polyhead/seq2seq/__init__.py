"""Summarizers: encoder-decoders that a task owns whole, from files to answers."""
