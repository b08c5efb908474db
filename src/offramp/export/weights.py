"""One file of weights for all graphs: what several of them hold, as ALBERT's layers, is stored once."""

import hashlib
from pathlib import Path
from types import TracebackType
from typing import Self

from onnx import ModelProto, TensorProto, numpy_helper
from onnx.external_data_helper import set_external_data

SMALLEST = 1024  # bytes; anything below stays in its graph
ALIGNMENT = 4096  # so that a runtime can map the file into memory


class Weights:
    """The file, open for adding."""

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self.file = path.open("wb")
        self.places: dict[bytes, int] = {}  # digest of what is stored -> where it begins

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.file.close()

    def take(self, graph: ModelProto) -> ModelProto:
        """Moves the graph's weights here."""
        for tensor in graph.graph.initializer:
            content = numpy_helper.to_array(tensor).tobytes()
            if len(content) >= SMALLEST:
                point(tensor, content, self.name, self.place(content))
        return graph

    def place(self, content: bytes) -> int:
        digest = hashlib.sha256(content).digest()
        if digest not in self.places:
            self.file.write(bytes(-self.file.tell() % ALIGNMENT))
            self.places[digest] = self.file.tell()
            self.file.write(content)
        return self.places[digest]


def point(tensor: TensorProto, content: bytes, file: str, offset: int) -> None:
    """Makes a tensor say where its content is instead of holding it."""
    kind, name, dims = tensor.data_type, tensor.name, [*tensor.dims]
    tensor.Clear()
    tensor.data_type, tensor.name, tensor.raw_data = kind, name, content
    tensor.dims.extend(dims)
    set_external_data(tensor, file, offset, len(content))
    tensor.ClearField("raw_data")
