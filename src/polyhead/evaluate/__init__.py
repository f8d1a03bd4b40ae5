"""What stands behind a task's score: intervals, confusion, reliability, slices, changes of answers, explanations."""
