"""One file for the weights of all graphs; weights that graphs share, as ALBERT's layers do, are stored once."""

import hashlib
from collections.abc import Mapping
from io import BufferedWriter
from pathlib import Path

from onnx import GraphProto, ModelProto, TensorProto, numpy_helper
from onnx.external_data_helper import set_external_data

from offramp.folder.manifest import WEIGHTS

SMALLEST = 1024  # bytes; smaller tensors stay in the graph
ALIGNMENT = 4096  # so that a runtime can map the file into memory


def write_graphs(folder: Path, graphs: Mapping[str, ModelProto]) -> None:
    """Writes graphs by the name of their file, and the weights of all."""
    with (folder / WEIGHTS).open("wb") as file:
        weights = WeightsFile(file)
        for name, model in graphs.items():
            weights.move_from(model.graph)
            (folder / name).write_bytes(model.SerializeToString())


class WeightsFile:
    def __init__(self, file: BufferedWriter) -> None:
        self.file = file
        self.name = Path(file.name).name
        self.offsets: dict[bytes, int] = {}  # by digest of the content

    def move_from(self, graph: GraphProto) -> None:
        """Store the weights of a graph, branches included."""
        for tensor in graph.initializer:
            content = numpy_helper.to_array(tensor).tobytes()
            if len(content) >= SMALLEST:
                make_external(tensor, content, self.name, self.store(content))
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    self.move_from(attribute.g)

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
