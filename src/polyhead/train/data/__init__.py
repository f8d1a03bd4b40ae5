"""From a project file to examples: checked rows, removed leaks, kept features."""
