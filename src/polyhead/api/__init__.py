"""The Python API: a `Model` over a bundle, and estimators with scikit-learn's interface."""
