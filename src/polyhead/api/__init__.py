"""Polyhead in a few lines of Python: a `Model` over a bundle, and estimators with scikit-learn's habits."""
