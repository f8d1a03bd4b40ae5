"""Questions that no task answers: how good answers by similarity are, and how coherent."""
