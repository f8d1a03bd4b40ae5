"""Checkpoints of other libraries: read, compared, converted to tasks, and proven to give the same answers."""
