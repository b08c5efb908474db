"""One file for the weights of all graphs; weights that graphs share, as ALBERT's layers do, are stored once."""

import hashlib
from pathlib import Path
from types import TracebackType
from typing import Self

from onnx import ModelProto, TensorProto, numpy_helper
from onnx.external_data_helper import set_external_data

SMALLEST = 1024  # bytes; smaller tensors stay in the graph
ALIGNMENT = 4096  # so that a runtime can map the file into memory


class WeightsFile:
    """The weights file, open for writing."""

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self.file = path.open("wb")
        self.offsets: dict[bytes, int] = {}  # by digest of the content

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.file.close()

    def move_from(self, graph: ModelProto) -> ModelProto:
        """Move the graph's weights to this file."""
        for tensor in graph.graph.initializer:
            content = numpy_helper.to_array(tensor).tobytes()
            if len(content) >= SMALLEST:
                make_external(tensor, content, self.name, self.store(content))
        return graph

    def store(self, content: bytes) -> int:
        digest = hashlib.sha256(content).digest()
        if digest not in self.offsets:
            self.file.write(bytes(-self.file.tell() % ALIGNMENT))
            self.offsets[digest] = self.file.tell()
            self.file.write(content)
        return self.offsets[digest]


def make_external(tensor: TensorProto, content: bytes, file: str, offset: int) -> None:
    """Replace the content of a tensor by its place in a file."""
    kind, name, dims = tensor.data_type, tensor.name, [*tensor.dims]
    tensor.Clear()
    tensor.data_type, tensor.name, tensor.raw_data = kind, name, content
    tensor.dims.extend(dims)
    set_external_data(tensor, file, offset, len(content))
    tensor.ClearField("raw_data")
