"""Training: selection of tasks, features, splits, choice of heads, records, commits; `deep` trains by gradients."""
