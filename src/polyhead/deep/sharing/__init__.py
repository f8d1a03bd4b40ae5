"""The trainable modules of the strategies: each task's part, and the families that tasks share."""
