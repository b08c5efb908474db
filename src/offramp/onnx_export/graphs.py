"""Converts the embedding and each stage of a model to an ONNX graph; `stages.py` joins those of the stages.

torch.export captures a stage in less than a second, but torch.onnx takes several to convert it. Stages with equal
operations are therefore converted once, and the graph is filled with the weights of each.
"""

import gc
import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from onnx import ModelProto, numpy_helper
from onnxscript import optimizer
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from offramp.errors import Incompatible
from offramp.models.exit_model import ExitModel
from offramp.models.heads import compare

ROWS, LENGTH = 3, 9  # of the example inputs; 0 and 1 would become constants


class Embedding(nn.Module):
    """Tokens -> hidden states before the first layer."""

    def __init__(self, model: ExitModel) -> None:
        super().__init__()
        self.backbone = model.backbone
        self.adapter = model.adapter

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        return self.adapter.embed(self.backbone, input_ids, attention_mask, token_type_ids)


class Stage(nn.Module):
    """The layers up to an exit, and its head."""

    def __init__(self, model: ExitModel, exit: int) -> None:
        super().__init__()
        self.backbone = model.backbone
        self.adapter = model.adapter
        self.heads = model.heads
        self.exit = exit
        self.layers = range([0, *model.config.exits][exit], model.config.exits[exit])

    def forward(self, hidden: Tensor, attention_mask: Tensor, token_weights: Tensor) -> tuple[Tensor, ...]:
        context = self.adapter.context(self.backbone, hidden, attention_mask)
        for layer in self.layers:
            hidden = self.adapter.layer(self.backbone, layer, hidden, context)
        vector = self.pool(self.adapter.norm(self.backbone, hidden), token_weights)
        logits, gate = self.heads.head_of(self.exit).classify(vector)
        before = (hidden,) if self.layers else ()
        return (*before, logits) if gate is None else (*before, logits, gate)

    def pool(self, hidden: Tensor, token_weights: Tensor) -> Tensor:
        """As `heads.pool`, but means are matrix products, which add one token after the other.

        ONNX Runtime's ReduceSum adds them in an order that depends on the number of rows and on padding, so that the
        same text would get slightly different logits beside other texts.
        """
        pooling = self.heads.poolings[self.exit]
        if pooling == "tokens":
            return hidden
        if pooling == "first":
            return hidden[:, 0]
        means = token_weights @ hidden  # (rows, means, width), see `stages.onnx.token_weights`
        return means[:, 0] if pooling == "mean" else compare(means[:, 1], means[:, 2])


def graphs(model: ExitModel) -> Iterator[ModelProto]:
    """The graph of the embedding, then of each stage. The model must be in float32 on the CPU."""
    ids = torch.full((ROWS, LENGTH), 2)
    mask, types = torch.ones_like(ids), torch.zeros_like(ids)
    tokens = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
    yield optimize(to_onnx(capture(Embedding(model), tokens), ["hidden"]))

    hidden = torch.randn(ROWS, LENGTH, model.config.encoder_config.hidden_size)
    token_weights = torch.ones(ROWS, 3 if model.config.info.reads_types else 2, LENGTH)
    inputs = {"hidden": hidden, "attention_mask": mask, "token_weights": token_weights}
    gate = ["gate"] if model.config.head_config.gate else []
    templates: dict[Any, tuple[list[str], ModelProto]] = {}
    for exit in range(len(model.config.exits)):
        stage = Stage(model, exit)
        outputs = [*(["hidden_after"] if stage.layers else []), "logits", *gate]
        program = capture(stage, inputs)
        weights, operations = separate(program)
        if operations not in templates:
            templates[operations] = [*weights], to_onnx(program, outputs)
        names, template = templates[operations]
        yield optimize(fill(template, dict(zip(names, weights.values(), strict=True))))


def capture(module: nn.Module, inputs: dict[str, Tensor]) -> ExportedProgram:
    """The operations of a module, for any number of rows of any length."""
    sizes = [
        {0: Dim.DYNAMIC, (2 if name == "token_weights" else 1): Dim.DYNAMIC}  # rows and tokens
        for name in inputs
    ]
    with torch.no_grad(), exporter_context():
        return torch.export.export(module.eval(), (*inputs.values(),), dynamic_shapes=sizes, strict=False)


def separate(program: ExportedProgram) -> tuple[dict[str, Tensor], Any]:
    """The weights and constants that a program reads, by name, and its operations, in which they are numbered.

    Programs with equal operations differ only in their weights.
    """
    signature = program.graph_signature
    names = {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }
    tensors = {**program.state_dict, **program.constants}
    used = [node for node in program.graph.find_nodes(op="placeholder") if node.users and node.name in names]
    weights = {names[node.name]: tensors[names[node.name]] for node in used}
    # without the parameters, which are all of the model's
    _, _, code = program.graph_module.code.partition("):")
    for index, node in enumerate(used):
        code = re.sub(rf"\b{node.name}\b", f"weight_{index}", code)
    return weights, (code, *((weight.shape, weight.dtype) for weight in weights.values()))


def to_onnx(program: ExportedProgram, outputs: list[str]) -> ModelProto:
    """A graph in which weights keep their names."""
    with exporter_context():
        converted = torch.onnx.export(
            program, dynamo=True, output_names=outputs, optimize=False, verbose=False
        )
        assert converted is not None
        graph: ModelProto = converted.model_proto
        return graph


def fill(template: ModelProto, weights: dict[str, Tensor]) -> ModelProto:
    """A copy of a graph with other weights."""
    graph = ModelProto()
    graph.CopyFrom(template)
    for tensor in graph.graph.initializer:
        if tensor.name in weights:
            values = weights[tensor.name].detach().numpy()
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    return graph


def optimize(graph: ModelProto) -> ModelProto:
    """A smaller graph, without unused inputs and without the exporter's notes: paths of source files, and shapes
    that int8 would make wrong."""
    with exporter_context():
        smaller: Any = optimizer.optimize(graph)
    used = {name for node in smaller.graph.node for name in node.input}
    inputs = [value for value in smaller.graph.input if value.name in used]
    smaller.graph.ClearField("input")
    smaller.graph.input.extend(inputs)
    smaller.graph.ClearField("value_info")
    for part in (smaller, smaller.graph, *smaller.graph.node, *smaller.graph.input, *smaller.graph.output):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")
    result: ModelProto = smaller
    return result


@contextmanager
def exporter_context() -> Iterator[None]:
    """Silences the exporter's warnings and turns its errors into `Incompatible`.

    The garbage collector is off: up to Python 3.11.7, code that is parsed during a collection, as by another
    thread, breaks the `ast.parse` that triggered it (python/cpython#106905).
    """
    logger = logging.getLogger("torch.onnx")
    level, collecting = logger.level, gc.isenabled()
    logger.setLevel(logging.ERROR)
    gc.disable()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except Exception as error:
        reason = str(error).strip().split("\n")[0]
        raise Incompatible(f"torch.onnx cannot export this model: {reason}") from error
    finally:
        logger.setLevel(level)
        if collecting:
            gc.enable()
