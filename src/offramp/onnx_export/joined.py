"""Joins the graphs of all stages into one graph with a branch for each.

The input `branch` says which one runs. Separate graphs would each have their own threads and buffers, so a single
text would wake other threads and touch other memory at every stage.
"""

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np
from onnx import GraphProto, ModelProto, TensorProto, ValueInfoProto, helper, numpy_helper

INPUTS = ("hidden", "attention_mask", "token_weights")
OUTPUTS = ("hidden_after", "logits", "gate")


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
        self.inputs = declared(INPUTS, (each for stage in stages for each in stage.graph.input))
        self.outputs = declared(OUTPUTS, (*first.output, *last.output))  # the first may have no layers

    def graph(self) -> ModelProto:
        branch = helper.make_tensor_value_info("branch", TensorProto.INT64, [])
        graph = self.tree(0, len(self.stages), "")
        graph.input.extend([*self.inputs, *([branch] if len(self.stages) > 1 else [])])
        opsets = {each.domain: each for stage in self.stages for each in stage.opset_import}
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
            helper.make_node("If", [f"{prefix}is_below"], [each.name for each in outputs], **halves),
        ]
        return helper.make_graph(nodes, f"{prefix}graph", [], outputs, [limit])

    def leaf(self, index: int, prefix: str) -> GraphProto:
        """One stage. Its constants stay with it: ONNX Runtime does less with constants from outside of a branch."""
        stage = self.stages[index].graph
        names = {each.name: each.name for each in self.inputs} | {"": ""}
        graph = GraphProto(name=f"{prefix}graph", output=declared(OUTPUTS, self.outputs, prefix))
        graph.node.extend(stage.node)
        graph.initializer.extend(stage.initializer)
        for node in graph.node:
            node.input[:] = [names.get(name, prefix + name) for name in node.input]
            node.output[:] = [prefix + name for name in node.output]
            node.name = node.output[0]
        for tensor in graph.initializer:
            tensor.name = prefix + tensor.name
        if "hidden_after" not in [each.name for each in stage.output]:
            graph.node.append(helper.make_node("Identity", ["hidden"], [f"{prefix}hidden_after"]))
        return graph


def declared(names: Iterable[str], known: Iterable[ValueInfoProto], prefix: str = "") -> list[ValueInfoProto]:
    """The declarations with these names, in their order. Sizes that vary lose their names, which differ by stage."""
    by_name = {each.name: each.type.tensor_type for each in known}
    return [
        helper.make_tensor_value_info(
            prefix + name,
            by_name[name].elem_type,
            [size.dim_value or None for size in by_name[name].shape.dim],
        )
        for name in names
        if name in by_name
    ]
