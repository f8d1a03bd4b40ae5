"""A wire format: routes over one service. One file each, registered; more may be added from outside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from starlette.responses import Response
from starlette.routing import BaseRoute

from polyhead.config import Value
from polyhead.registry import Registry
from polyhead.serve.service import Service


class Wire(Value, forbid_unknown_fields=False):
    """Base of what clients of other services send: fields that are not known are left unread."""


class WireFormat(Protocol):
    """The routes of one format."""

    name: str

    def routes(self, service: Service) -> Sequence[BaseRoute]:
        """All routes, which ask this service."""


@runtime_checkable
class TellsErrors(Protocol):
    """A wire format whose clients read errors in a form of its own."""

    def told(self, error: Exception) -> Response:
        """An error as these clients read it, whoever raised it on the way to one of the format's routes."""


FORMATS: Registry[WireFormat] = Registry("wire format")
"""The wire formats that are registered, by name."""
register_format = FORMATS.register
