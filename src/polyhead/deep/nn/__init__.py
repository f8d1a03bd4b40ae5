"""The trunk, poolers and heads as torch modules, and the readers of pre-trained weights."""
