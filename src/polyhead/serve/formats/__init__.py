"""The wire formats that the server speaks, registered here."""

from polyhead.serve.formats.base import FORMATS, Operation, WireFormat, register_format
from polyhead.serve.formats.health import HealthFormat
from polyhead.serve.formats.own import OwnFormat

for _format in (OwnFormat(), HealthFormat()):
    register_format(_format)

__all__ = ["FORMATS", "Operation", "WireFormat", "register_format"]
