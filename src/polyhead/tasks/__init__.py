"""Tasks, their kinds, and their rows."""

from polyhead.tasks import kinds as kinds  # which registers the kinds that come with the package
