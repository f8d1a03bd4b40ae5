"""Tables in and out: readers, columns, guessing, splits, annotation formats."""
