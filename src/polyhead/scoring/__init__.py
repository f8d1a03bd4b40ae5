"""Answers for every row of a file, in bounded memory, written piece by piece: a job that was stopped goes on."""

from polyhead.scoring.job import Summary, Wish, score

__all__ = ["Summary", "Wish", "score"]
