"""Runs plans: a session answers all tasks of a bundle with one pass of its trunk a text."""
