"""Advice on the way of sharing the trunk: all ways compared on the user's data, and a choice within a budget."""
