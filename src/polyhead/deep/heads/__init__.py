"""Heads over kept features: candidates, fitting, and the choice between them."""
