"""The wire formats that the server speaks, registered here."""

from polyhead.serve.formats.admin import AdminFormat
from polyhead.serve.formats.base import FORMATS, Operation, WireFormat, register_format
from polyhead.serve.formats.classify import ClassifyFormat
from polyhead.serve.formats.decisions import DecisionsFormat
from polyhead.serve.formats.embeddings import EmbeddingsFormat
from polyhead.serve.formats.health import HealthFormat
from polyhead.serve.formats.inference_api import InferenceApiFormat
from polyhead.serve.formats.inference_protocol import InferenceProtocol
from polyhead.serve.formats.openrouter import OpenRouterFormat
from polyhead.serve.formats.own import OwnFormat
from polyhead.serve.formats.page import PageFormat
from polyhead.serve.formats.systemone import SystemOneFormat

for _format in (
    OwnFormat(),
    DecisionsFormat(),
    SystemOneFormat(),
    OpenRouterFormat(),
    EmbeddingsFormat(),
    InferenceApiFormat(),
    ClassifyFormat(),
    InferenceProtocol(),
    AdminFormat(),
    PageFormat(),
    HealthFormat(),
):
    register_format(_format)

__all__ = ["FORMATS", "Operation", "WireFormat", "register_format"]
