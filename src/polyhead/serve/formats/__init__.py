"""The wire formats that the server speaks, registered here."""

from polyhead.serve.formats.admin import AdminFormat
from polyhead.serve.formats.base import FORMATS, WireFormat, register_format
from polyhead.serve.formats.own import OwnFormat

for _format in (OwnFormat(), AdminFormat()):
    register_format(_format)

__all__ = ["FORMATS", "WireFormat", "register_format"]
