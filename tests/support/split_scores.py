"""Scores of a bundle's tasks on whole splits, without what stands behind them."""

from polyhead.evaluate.scores import evaluations


def split_scores(session, project, **options):
    """The scores alone of `evaluations`."""
    return [evaluation.score for evaluation in evaluations(session, project, **options)]
