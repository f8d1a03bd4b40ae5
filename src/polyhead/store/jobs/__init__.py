"""Answers for every row of a file or store, in bounded memory, written piece by piece: an interrupted job resumes."""

from polyhead.store.jobs.score import ScoreRequest, Summary, score

__all__ = ["Summary", "ScoreRequest", "score"]
