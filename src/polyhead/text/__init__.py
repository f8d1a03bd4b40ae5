"""Text processing: tokenization, batching, packing, and the tokens that represent words."""
