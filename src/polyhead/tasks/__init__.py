"""Tasks, their kinds, and their rows."""
