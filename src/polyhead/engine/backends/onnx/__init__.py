"""The ONNX Runtime backend's half: graphs by ONNX's operators, compiled for the processor."""

from polyhead.engine.backends.onnx.runtime import OnnxRuntime

__all__ = ["OnnxRuntime"]
