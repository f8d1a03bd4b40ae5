"""Answers for every row of a file, in bounded memory, written piece by piece: a job that was stopped goes on."""

from polyhead.store.jobs.score import ScoreRequest, Summary, score

__all__ = ["Summary", "ScoreRequest", "score"]
