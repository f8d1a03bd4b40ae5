"""Stores of whole corpora: documents' features in fragments, with columns of results."""
