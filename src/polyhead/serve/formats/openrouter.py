"""OpenRouter's decisions, `POST /api/alpha/decisions`: bodies and answers of System One, errors in its own form."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.responses import Response

from polyhead.serve.formats.base import Operation, WireFormat, post
from polyhead.serve.formats.systemone import InvalidRequest, SystemOneRequest, answer_state
from polyhead.serve.http import body_of, headers_of, json_content, status_of

PATH = "/api/alpha/decisions"


class OpenRouterFormat(WireFormat):
    """The route of OpenRouter's decisions."""

    name = "openrouter"

    def operations(self) -> Sequence[Operation]:
        """The entry of the route."""
        return [post(PATH, answer_state, "The same as `/v1/systemone`.", request=SystemOneRequest)]

    def error_response(self, error: Exception) -> Response:
        """An error as clients of this format read it: 400 for a request that cannot be answered."""
        status, message = status_of(error), body_of(error).message
        status = 400 if status == 422 else status
        if isinstance(error, InvalidRequest):
            message = "; ".join(f"{'.'.join(map(str, place))}: {fault}" for place, fault, _ in error.faults)
        fields = {"code": status, "message": message}
        return json_content({"error": fields}, status, headers_of(error))
