"""Exports a model to ONNX, so that it runs without torch, in fp32 or int8 (docs/runtimes.md)."""

from offramp.onnx_export.exporter import export

__all__ = ["export"]
