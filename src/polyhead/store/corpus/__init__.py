"""Stores of whole corpora: documents' features in fragments, and columns of results beside them."""
