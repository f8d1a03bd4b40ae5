"""The OpenVINO runtime: graphs by its operators, compiled for the processor."""

import polyhead.engine.backends.openvino.quiet  # noqa: F401  # before any other module imports openvino
from polyhead.engine.backends.openvino.runtime import OpenVINORuntime

__all__ = ["OpenVINORuntime"]
