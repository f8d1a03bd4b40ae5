"""Tasks, their kinds and metrics, and the rows of their data."""

from polyhead.tasks import kinds as kinds  # registers the built-in kinds
