"""The packaged sample: how its tasks score in five folds beside simple baselines, what it holds, and near-duplicates."""
