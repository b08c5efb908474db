"""The stages of a model as one graph: joined as branches, split again, joined with fewer exits, and stored.

All graphs of a folder keep their weights in one file; weights that graphs share, as ALBERT's layers do, are stored
once.
"""

import hashlib
import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from io import BufferedWriter
from pathlib import Path

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper
from onnx.external_data_helper import set_external_data

from offramp.files import atomic_folder, digest, read_json
from offramp.folder.manifest import EMBEDDING, STAGES, TOKENIZER, WEIGHTS, Manifest
from offramp.model_info import CONFIG
from offramp.row_hashes import FILE

INPUTS = ("hidden", "attention_mask", "token_weights")
OUTPUTS = ("hidden_after", "logits", "gate")
SMALLEST = 1024  # bytes; smaller tensors stay in the graph
ALIGNMENT = 4096  # so that a runtime can map the file into memory


def join(stages: Sequence[ModelProto]) -> tuple[ModelProto, tuple[int, ...]]:
    """One graph of all stages, and the branch of each; equal stages, weights included, share a branch."""
    digests = [hashlib.sha256(stage.SerializeToString(deterministic=True)).digest() for stage in stages]
    different = dict(zip(digests, stages, strict=True))
    order = [*different]
    return Joined([*different.values()]).graph(), tuple(order.index(digest) for digest in digests)


class Joined:
    """The branches as leaves of a binary tree of `If` nodes."""

    def __init__(self, stages: Sequence[ModelProto]) -> None:
        self.stages = stages
        first, last = stages[0].graph, stages[-1].graph
        self.inputs = declared(INPUTS, (value for stage in stages for value in stage.graph.input))
        self.outputs = declared(OUTPUTS, (*first.output, *last.output))  # the first may have no layers

    def graph(self) -> ModelProto:
        branch = helper.make_tensor_value_info("branch", TensorProto.INT64, [])
        graph = self.tree(0, len(self.stages), "")
        graph.input.extend([*self.inputs, *([branch] if len(self.stages) > 1 else [])])
        opsets = {opset.domain: opset for stage in self.stages for opset in stage.opset_import}
        version = self.stages[0].ir_version
        return helper.make_model(graph, opset_imports=[*opsets.values()], ir_version=version)

    def tree(self, first: int, end: int, prefix: str) -> GraphProto:
        """Runs one of the branches from `first` to before `end`. All names start with the prefix."""
        if end - first == 1:
            return self.leaf(first, prefix)
        middle = (first + end) // 2
        limit = numpy_helper.from_array(np.array(middle), f"{prefix}middle")
        halves = {
            "then_branch": self.tree(first, middle, f"{first}_to_{middle}."),
            "else_branch": self.tree(middle, end, f"{middle}_to_{end}."),
        }
        outputs = declared(OUTPUTS, self.outputs, prefix)
        nodes = [
            helper.make_node("Less", ["branch", limit.name], [f"{prefix}is_below"]),
            helper.make_node("If", [f"{prefix}is_below"], [output.name for output in outputs], **halves),
        ]
        return helper.make_graph(nodes, f"{prefix}graph", [], outputs, [limit])

    def leaf(self, index: int, prefix: str) -> GraphProto:
        """One stage. Its constants stay with it: ONNX Runtime does less with constants from outside of a branch."""
        stage = self.stages[index].graph
        names = {value.name: value.name for value in self.inputs} | {"": ""}
        graph = GraphProto(name=f"{prefix}graph", output=declared(OUTPUTS, self.outputs, prefix))
        graph.node.extend(stage.node)
        graph.initializer.extend(stage.initializer)
        for node in graph.node:
            node.input[:] = [names.get(name, prefix + name) for name in node.input]
            node.output[:] = [prefix + name for name in node.output]
            node.name = node.output[0]
        for tensor in graph.initializer:
            tensor.name = prefix + tensor.name
        if "hidden_after" not in [output.name for output in stage.output]:
            graph.node.append(helper.make_node("Identity", ["hidden"], [f"{prefix}hidden_after"]))
        return graph


def declared(
    names: Iterable[str], values: Iterable[ValueInfoProto], prefix: str = ""
) -> list[ValueInfoProto]:
    """The declarations with these names, in their order. Sizes that vary lose their names, which differ by stage."""
    by_name = {value.name: value.type.tensor_type for value in values}
    return [
        helper.make_tensor_value_info(
            prefix + name,
            by_name[name].elem_type,
            [size.dim_value or None for size in by_name[name].shape.dim],
        )
        for name in names
        if name in by_name
    ]


def branches_of(graph: GraphProto) -> Iterator[GraphProto]:
    """The stages in a joined graph, in order, as graphs that declare their inputs."""
    choice = next(
        (node for node in graph.node if node.op_type == "If" and node.input[0].endswith("is_below")), None
    )
    if choice is None:
        leaf = GraphProto()
        leaf.CopyFrom(graph)
        del leaf.input[:]
        leaf.input.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in INPUTS)
        yield leaf
    else:
        halves = {attribute.name: attribute.g for attribute in choice.attribute}
        yield from branches_of(halves["then_branch"])
        yield from branches_of(halves["else_branch"])


def leave_out_exits(folder: Path, path: Path, kept: Sequence[int]) -> None:
    """Writes an exported model with only these of its exits, the last among them. Logits keep their bits."""
    manifest, joined = Manifest.load(folder), onnx.load(folder / STAGES)
    branches = [*branches_of(joined.graph)]
    stages: list[ModelProto] = []
    first = 0
    for exit in kept:
        parts = [branches[branch] for branch in manifest.branches[first : exit + 1]]
        stage = ModelProto(ir_version=joined.ir_version, opset_import=joined.opset_import, graph=chain(parts))
        stage.graph.input.extend(value for value in joined.graph.input if value.name in INPUTS)
        stages.append(stage)
        first = exit + 1
    fewer, numbers = join(stages)
    config = read_json(folder / CONFIG)
    layers = [config["exits"][exit] for exit in kept]
    with atomic_folder(path) as draft:
        write_graphs(draft, {EMBEDDING: onnx.load(folder / EMBEDDING), STAGES: fewer})
        content = json.dumps(config | {"exits": layers, "policy": None, "policy_target": None}, indent=2)
        (draft / CONFIG).write_text(content, encoding="utf-8")
        for name in (TOKENIZER, FILE):
            if (folder / name).is_file():
                shutil.copyfile(folder / name, draft / name)
        fingerprint = digest([manifest.fingerprint.encode(), json.dumps(layers).encode()])
        replace(manifest, branches=numbers, fingerprint=fingerprint, digests={}).save(draft)


def chain(stages: Sequence[GraphProto]) -> GraphProto:
    """Consecutive stages as one, with the outputs of the last."""
    whole, hidden = GraphProto(name="stage"), "hidden"
    for number, stage in enumerate(stages):
        outputs = {value.name.rpartition(".")[2]: value for value in stage.output}
        last = number == len(stages) - 1
        wanted = [*outputs] if last else ["hidden_after"]
        names = {name: name for name in ("", *INPUTS)} | {"hidden": hidden}
        names |= {outputs[name].name: name for name in wanted if last}
        nodes = needed(stage, {outputs[name].name for name in wanted})
        used = {name for node in nodes for name in node.input}
        for node in nodes:
            copy = whole.node.add()
            copy.CopyFrom(node)
            copy.name = f"{number}.{node.name}"
            copy.input[:] = [names.get(name, f"{number}.{name}") for name in node.input]
            copy.output[:] = [names.get(name, f"{number}.{name}") for name in node.output]
        for tensor in stage.initializer:
            if tensor.name in used:
                whole.initializer.add().CopyFrom(tensor)
                whole.initializer[-1].name = f"{number}.{tensor.name}"
        hidden = f"{number}.{outputs['hidden_after'].name}"
        if last:
            for name in wanted:
                whole.output.add().CopyFrom(outputs[name])
                whole.output[-1].name = name
    return whole


def needed(graph: GraphProto, wanted: set[str]) -> list[NodeProto]:
    """The nodes that these values are computed by, in order."""
    nodes: list[NodeProto] = []
    for node in reversed(graph.node):
        if wanted & {*node.output}:
            nodes.append(node)
            wanted = wanted | {*node.input}
    return nodes[::-1]


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
