"""A wire format: routes over one service. One file each, registered; more may be added from outside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from starlette.routing import BaseRoute

from polyhead.registry import Registry
from polyhead.serve.service import Service


class WireFormat(Protocol):
    """The routes of one format."""

    name: str

    def routes(self, service: Service) -> Sequence[BaseRoute]:
        """All routes, which ask this service."""


FORMATS: Registry[WireFormat] = Registry("wire format")
"""The wire formats that are registered, by name."""
register_format = FORMATS.register
