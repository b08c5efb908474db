"""Leaves out exits of an exported model: their layers become part of the next stage, without their heads."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import onnx
from onnx import GraphProto, ModelProto, NodeProto

from offramp.files import atomic_folder, digest, read_json
from offramp.folder import Manifest
from offramp.folder.manifest import EMBEDDING, STAGES, TOKENIZER
from offramp.model_info import CONFIG
from offramp.onnx_export.graphs import INPUTS, join
from offramp.onnx_export.one_file import branches_of
from offramp.onnx_export.weights import write_graphs
from offramp.row_hashes import FILE


def leave_out_exits(folder: Path, path: Path, kept: Sequence[int]) -> None:
    """Writes an exported model with only these of its exits, the last among them. Logits keep their bits."""
    manifest, joined = Manifest.load(folder), onnx.load(folder / STAGES)
    leaves = [*branches_of(joined.graph)]
    stages: list[ModelProto] = []
    first = 0
    for exit in kept:
        parts = [leaves[branch] for branch in manifest.branches[first : exit + 1]]
        stage = ModelProto(ir_version=joined.ir_version, opset_import=joined.opset_import, graph=chain(parts))
        stage.graph.input.extend(each for each in joined.graph.input if each.name in INPUTS)
        stages.append(stage)
        first = exit + 1
    fewer, branches = join(stages)
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
        replace(manifest, branches=branches, fingerprint=fingerprint, digests={}).save(draft)


def chain(stages: Sequence[GraphProto]) -> GraphProto:
    """Consecutive stages as one, with the outputs of the last."""
    whole, hidden = GraphProto(name="stage"), "hidden"
    for number, stage in enumerate(stages):
        outputs = {each.name.rpartition(".")[2]: each for each in stage.output}
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
    found: list[NodeProto] = []
    for node in reversed(graph.node):
        if wanted & {*node.output}:
            found.append(node)
            wanted = wanted | {*node.input}
    return found[::-1]
