"""Products in int8, on graphs of one matrix."""

import numpy as np
from numpy.random import Generator
from onnx import ModelProto, TensorProto, helper, numpy_helper

from offramp.onnx_export.int8 import quantize
from offramp.problems import Array
from offramp.runtimes.onnx import Graph, session_options

TOKENS, WIDTH, OUTPUTS = 400, 64, 32


def product(weight: Array) -> ModelProto:
    """A graph that multiplies `hidden` by a matrix."""
    inputs = [helper.make_tensor_value_info("hidden", TensorProto.FLOAT, [None, WIDTH])]
    outputs = [helper.make_tensor_value_info("out", TensorProto.FLOAT, [None, OUTPUTS])]
    node = helper.make_node("MatMul", ["hidden", "weight"], ["out"])
    graph = helper.make_graph([node], "product", inputs, outputs, [numpy_helper.from_array(weight, "weight")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def draw_product(random: Generator, outlier: float) -> tuple[Array, Array]:
    """An activation with one channel that is larger than the others, and a matrix that reads all of them alike."""
    hidden = random.normal(size=(TOKENS, WIDTH)).astype(np.float32)
    weight = random.normal(size=(WIDTH, OUTPUTS)).astype(np.float32)
    hidden[:, 0] *= outlier
    weight[0] /= outlier
    return hidden, weight


def test_a_channel_far_larger_than_the_others_costs_no_accuracy() -> None:
    hidden, weight = draw_product(np.random.default_rng(0), outlier=300)
    graph = quantize(product(weight), {"hidden": hidden})
    assert "MatMulIntegerToFloat" in [node.op_type for node in graph.graph.node]
    found = Graph(graph.SerializeToString(), session_options(1))({"hidden": hidden})["out"]
    assert np.abs(found - hidden @ weight).max() < 0.05 * np.abs(hidden @ weight).max()


def test_a_matrix_that_loses_too_much_stays_in_float() -> None:
    random = np.random.default_rng(0)
    hidden, weight = draw_product(random, outlier=1)
    weight[:, 0] = 0
    weight[:2, 0] = 1e6, -1e6  # a column of large numbers that cancel
    hidden[:, 1] = hidden[:, 0] + 1e-3 * random.normal(size=TOKENS)
    graph = quantize(product(weight), {"hidden": hidden})
    assert [node.op_type for node in graph.graph.node] == ["MatMul"]


def test_a_bias_is_added_by_the_product_itself() -> None:
    random = np.random.default_rng(0)
    hidden, weight = draw_product(random, outlier=1)
    bias = random.normal(size=OUTPUTS).astype(np.float32)
    graph = product(weight)
    graph.graph.node[0].output[0] = "products"
    graph.graph.node.append(helper.make_node("Add", ["bias", "products"], ["out"]))
    graph.graph.initializer.append(numpy_helper.from_array(bias, "bias"))
    small = quantize(graph, {"hidden": hidden})
    assert "Add" not in [node.op_type for node in small.graph.node]
    found = Graph(small.SerializeToString(), session_options(1))({"hidden": hidden})["out"]
    assert np.abs(found - (hidden @ weight + bias)).max() < 0.05 * np.abs(hidden @ weight).max()
