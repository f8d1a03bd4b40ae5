"""Checkpoints of other libraries: read, compared, turned into tasks, and proven to answer alike."""
