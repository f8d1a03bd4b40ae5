"""Imports OpenVINO without its telemetry, which else reports every import over the network and keeps a file at home."""

import sys

TELEMETRY = "openvino_telemetry"

if "openvino" not in sys.modules:
    _before = sys.modules.get(TELEMETRY)
    sys.modules[TELEMETRY] = None  # type: ignore[assignment]  # then OpenVINO takes a stub of its own
    try:
        import openvino  # noqa: F401
    finally:
        del sys.modules[TELEMETRY]
        if _before is not None:
            sys.modules[TELEMETRY] = _before
