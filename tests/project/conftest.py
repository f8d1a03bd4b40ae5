"""The tiny bundle that the commands trained, and folders to work in."""

from cli.conftest import home, work

__all__ = ["home", "work"]
