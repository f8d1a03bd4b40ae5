"""The strategies: each gives a task its path and its trainable part."""
