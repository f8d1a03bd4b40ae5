"""The recipes' training: joint, donors, leave_out and fine_tune, and what they share."""
