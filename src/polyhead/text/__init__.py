"""Texts to token ids, ids to batches, words to tokens."""
