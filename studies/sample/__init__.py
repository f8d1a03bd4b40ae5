"""The packaged sample: how its tasks score in five folds, what it holds, and which rows are too much alike."""
