"""Converts a float32 graph to int8: weights with a scale for each channel, activations with fixed scales.

The scales of activations are found on sample texts. Scales computed from each batch (dynamic quantization) would make
a prediction depend on the other texts in the batch, and on padding.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import NamedTuple

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from offramp.problems import Array
from offramp.runtimes.onnx import Graph, session_options

CLIPPED = (1e-3, 1e-4, 1e-5, 0)
"""Shares of an activation's values to clip at each end. Clipping leaves more levels for most tokens, but a few, such
as separators, have activations many times larger than all others, which some matrices need."""
BALANCES = (0.5, 0.6, 0.7, 0.8)
"""How much of the difference between channels moves from the activation to the matrix, whose columns have scales of
their own (SmoothQuant, arXiv:2211.10438)."""
LARGEST_ERROR = 0.01
"""A matrix whose output has a larger error stays in float."""
WEIGHT_LEVELS = 63  # 7 bits: on CPUs without VNNI, sums of two 8-bit products overflow
TABLE_LEVELS = 127
KEPT_TOKENS = 512  # of the sample texts, to measure errors
MICROSOFT = "com.microsoft"

Arrays = Mapping[str, Array]


class Scale(NamedTuple):
    """How an activation becomes uint8. Of the clips and balances, those with the smallest error are used."""

    factors: Array  # (width,) that its channels are multiplied by first; the rows of the matrix are divided by them
    step: np.float32
    zero: np.uint8

    def rounded(self, values: Array) -> Array:
        """What remains of the values times the factors."""
        zero = np.float32(self.zero)
        rounded: Array = (
            np.clip(np.rint(values * self.factors / self.step) + zero, 0, 255) - zero
        ) * self.step
        return rounded


def observe(graph: ModelProto, inputs: Sequence[Arrays]) -> tuple[dict[str, Array], list[Arrays]]:
    """Runs a graph on unpadded texts: the activations that `quantize` needs, as (tokens, width), and the outputs."""
    names = dict.fromkeys(node.input[0] for node in matrices(graph))
    probed = ModelProto()
    probed.CopyFrom(graph)
    known = {each.name for each in (*graph.graph.input, *graph.graph.output)}
    probed.graph.output.extend(
        helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names if name not in known
    )
    run = Graph(probed.SerializeToString(), session_options(None))
    wanted = {each.name for each in graph.graph.output}
    seen: dict[str, list[Array]] = defaultdict(list)
    outputs: list[Arrays] = []
    for arrays in inputs:
        found = run(arrays)
        every = {**arrays, **found}
        for name in names:
            seen[name].append(every[name].reshape(-1, every[name].shape[-1]))
        outputs.append({name: found[name] for name in wanted})
    return {name: np.concatenate(parts) for name, parts in seen.items()}, outputs


def quantize(graph: ModelProto, activations: Arrays) -> ModelProto:
    """A copy with matrices and the table of token vectors in int8; matrices that lose too much stay in float."""
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.graph.initializer}
    readers: dict[str, list[NodeProto]] = defaultdict(list)
    for node in matrices(graph):
        readers[node.input[0]].append(node)
    replaced: dict[str, list[NodeProto]] = {}  # by the output of the node
    for name, nodes in readers.items():
        replaced |= quantize_readers(name, nodes, activations[name], constants)
    for product, add in biases(graph, constants).items():
        if product in replaced:
            replaced[add.output[0]] = []
            add_bias(replaced[product][-1], add, constants)
    for node in graph.graph.node:
        if node.op_type == "Gather" and node.input[1] == "input_ids":
            replaced[node.output[0]] = quantize_table(node, constants)
    nodes = [new for node in graph.graph.node for new in replaced.get(node.output[0], [node])]
    used = {name for node in nodes for name in node.input}
    result = ModelProto()
    result.CopyFrom(graph)
    for field in ("node", "initializer"):
        result.graph.ClearField(field)
    result.graph.node.extend(nodes)
    result.graph.initializer.extend(
        numpy_helper.from_array(constants[name], name) for name in constants if name in used
    )
    result.opset_import.append(helper.make_opsetid(MICROSOFT, 1))
    return result


def matrices(graph: ModelProto) -> list[NodeProto]:
    """Products of an activation and a constant matrix, without that of a classifier of tokens, which is narrow."""
    constants = {tensor.name: len(tensor.dims) for tensor in graph.graph.initializer}
    classify = {name for node in graph.graph.node if "logits" in node.output for name in node.input}
    return [
        node
        for node in graph.graph.node
        if node.op_type == "MatMul"
        and node.input[0] not in constants
        and constants.get(node.input[1]) == 2
        and node.output[0] not in classify
    ]


def quantize_readers(
    name: str, nodes: list[NodeProto], values: Array, constants: dict[str, Array]
) -> dict[str, list[NodeProto]]:
    """What replaces each product that reads an activation, by its output; adds the constants that this needs."""
    values = values[:: max(1, len(values) // KEPT_TOKENS)]
    weights = [constants[node.input[1]] for node in nodes]
    scale = find_scale(values, np.concatenate(weights, axis=1))
    replaced: dict[str, list[NodeProto]] = {}
    for node, weight in zip(nodes, weights, strict=True):
        levels, steps = round_columns(weight / scale.factors[:, None])
        if output_error(scale.rounded(values) @ (levels * steps), values @ weight) > LARGEST_ERROR:
            continue
        matrix, balanced, quantized = node.input[1], f"{name}.balanced", f"{name}.int8"
        constants |= {
            f"{name}.factors": scale.factors,
            f"{name}.step": np.asarray(scale.step),
            f"{name}.zero": np.asarray(scale.zero),
            f"{matrix}.int8": levels,
            f"{matrix}.steps": steps,
        }
        inputs = [quantized, f"{matrix}.int8", f"{name}.step", f"{matrix}.steps", f"{name}.zero"]
        product = helper.make_node("MatMulIntegerToFloat", inputs, node.output, domain=MICROSOFT)
        first = [
            helper.make_node("Mul", [name, f"{name}.factors"], [balanced]),
            helper.make_node("QuantizeLinear", [balanced, f"{name}.step", f"{name}.zero"], [quantized]),
        ]
        replaced[node.output[0]] = [product] if replaced else [*first, product]
    return replaced


def biases(graph: ModelProto, constants: Arrays) -> dict[str, NodeProto]:
    """The additions of a constant vector, by what they add it to, if nothing else reads that."""
    uses = Counter(name for node in graph.graph.node for name in node.input)
    uses.update(each.name for each in graph.graph.output)
    found = {}
    for node in graph.graph.node:
        if node.op_type == "Add":
            for value, bias in permutations(node.input):
                if uses[value] == 1 and bias in constants and constants[bias].ndim == 1:
                    found[value] = node
    return found


def add_bias(product: NodeProto, add: NodeProto, constants: Arrays) -> None:
    """Lets a product of int8 matrices add a bias itself, which saves a pass over its output."""
    (bias,) = (name for name in add.input if name in constants)
    product.input.extend(["", bias])  # the empty one is the zero point of the matrix
    product.output[0] = add.output[0]


def find_scale(values: Array, weight: Array) -> Scale:
    """The scale with the smallest error of the product with a matrix."""
    expected = values @ weight
    found: list[tuple[float, Scale]] = []
    for factors in (balance(values, weight, share) for share in BALANCES):
        levels, steps = round_columns(weight / factors[:, None])
        ends = np.quantile(values * factors, [*CLIPPED, *(1 - share for share in CLIPPED)]).reshape(2, -1)
        for low, high in ends.T.tolist():
            scale = scale_between(factors, min(low, 0), max(high, 0))
            found.append((output_error(scale.rounded(values) @ (levels * steps), expected), scale))
    return min(found, key=lambda each: each[0])[1]


def balance(values: Array, weight: Array, share: float) -> Array:
    """Factors that bring the channels of an activation closer to each other, with a geometric mean of 1."""
    smallest = np.finfo(np.float32).tiny
    ranges = share * np.log(np.abs(values).max(0) + smallest)
    ranges -= (1 - share) * np.log(np.abs(weight).max(1) + smallest)
    factors: Array = np.exp(np.clip(ranges.mean() - ranges, -10, 10)).astype(np.float32)
    return factors


def scale_between(factors: Array, low: float, high: float) -> Scale:
    step = (high - low) / 255 or 1
    return Scale(factors, np.float32(step), np.uint8(round(-low / step)))


def output_error(found: Array, expected: Array) -> float:
    """The mean squared error of a product as a share of its variance."""
    return float(np.square(found - expected).mean() / max(expected.var(), np.finfo(np.float32).tiny))


def round_columns(weight: Array) -> tuple[Array, Array]:
    """The levels of a matrix, and the step of each column."""
    steps = np.abs(weight).max(0) / WEIGHT_LEVELS
    steps[steps == 0] = 1
    return np.rint(weight / steps).astype(np.int8), steps


def quantize_table(node: NodeProto, constants: dict[str, Array]) -> list[NodeProto]:
    """Rows of a table in int8 with a step for each row."""
    (table, ids), (rows,) = node.input, node.output
    steps = np.abs(constants[table]).max(1, keepdims=True) / TABLE_LEVELS
    steps[steps == 0] = 1
    constants |= {f"{table}.int8": np.rint(constants[table] / steps).astype(np.int8), f"{table}.steps": steps}
    return [
        helper.make_node("Gather", [f"{table}.int8", ids], [f"{rows}.int8"]),
        helper.make_node("Gather", [f"{table}.steps", ids], [f"{rows}.steps"]),
        helper.make_node("Cast", [f"{rows}.int8"], [f"{rows}.levels"], to=TensorProto.FLOAT),
        helper.make_node("Mul", [f"{rows}.levels", f"{rows}.steps"], [rows]),
    ]
