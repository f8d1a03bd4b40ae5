"""Evaluation beyond scores: intervals, confusion, reliability, slices, changes of answers, explanations, drift."""
