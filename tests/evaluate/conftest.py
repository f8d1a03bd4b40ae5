"""The tiny bundle that the commands trained."""

from cli.conftest import home, work

__all__ = ["home", "work"]
