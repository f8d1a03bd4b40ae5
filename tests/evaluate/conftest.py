"""The tiny bundle that the commands trained."""

from cli.conftest import home

__all__ = ["home"]
