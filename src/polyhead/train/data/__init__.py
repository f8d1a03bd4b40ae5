"""From a project file to examples: rows checked, leaks dropped, features kept."""
