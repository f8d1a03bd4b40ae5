"""How sure a task's answers are, and whether it still sees texts like those that it learned from."""
