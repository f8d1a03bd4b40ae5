"""Heads that are solved, not trained in steps: convex losses over kept features, without torch."""
