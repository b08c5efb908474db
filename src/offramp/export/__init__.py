"""A model as ONNX graphs, one for each stage: the same exits without torch, in fp32 or int8 (docs/runtimes.md)."""

from offramp.export.exporter import export

__all__ = ["export"]
