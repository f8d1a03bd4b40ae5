"""Training: what to learn, features, splits, choosing, records, committing; `deep` learns by gradients."""
