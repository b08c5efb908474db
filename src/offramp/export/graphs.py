"""A model -> its embedding and each of its stages as an ONNX graph, by torch.onnx on small modules of our own.

Tracing takes seconds, so stages that do the same with other weights are traced once and filled with the weights
of each.
"""

import gc
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from onnx import ModelProto, numpy_helper
from onnxscript import optimizer
from torch import Tensor, nn
from torch.export import Dim

from offramp.errors import Incompatible
from offramp.export.doings import Doings, doings
from offramp.model import ExitModel

ROWS, LENGTH = 3, 9  # of the example that is traced; 0 and 1 would be taken for constants


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

    def forward(self, hidden: Tensor, attention_mask: Tensor) -> tuple[Tensor, ...]:
        context = self.adapter.context(self.backbone, hidden, attention_mask)
        for layer in self.layers:
            hidden = self.adapter.layer(self.backbone, layer, hidden, context)
        logits, gate = self.heads(self.exit, self.adapter.norm(self.backbone, hidden), attention_mask)
        return (hidden, logits) if gate is None else (hidden, logits, gate)


def graphs(model: ExitModel) -> Iterator[ModelProto]:
    """The graph of the embedding, then that of each stage. The model computes in float32 on the CPU."""
    ids = torch.full((ROWS, LENGTH), 2)
    mask, types = torch.ones_like(ids), torch.zeros_like(ids)
    tokens = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
    yield optimised(traced(Embedding(model), tokens, ["hidden"]))

    hidden = torch.randn(ROWS, LENGTH, model.config.encoder_config.hidden_size)
    inputs = {"hidden": hidden, "attention_mask": mask}
    outputs = ["hidden_after", "logits", *(["gate"] if model.config.head_config.gate else [])]
    templates: dict[tuple[Any, ...], tuple[Doings, ModelProto]] = {}
    for exit in range(len(model.config.exits)):
        stage = Stage(model, exit).eval()
        done = doings(stage, (*inputs.values(),))
        if done.steps not in templates:
            templates[done.steps] = done, traced(stage, inputs, outputs)
        yield optimised(filled(*templates[done.steps], done))


def traced(module: nn.Module, inputs: dict[str, Tensor], outputs: list[str]) -> ModelProto:
    """A graph for any number of rows of any length, in which weights have their names."""
    any_size = {0: Dim.DYNAMIC, 1: Dim.DYNAMIC}
    try:
        with torch.no_grad(), quiet(), uncollected():
            program = torch.onnx.export(
                module.eval(),
                (*inputs.values(),),
                dynamo=True,
                input_names=[*inputs],
                output_names=outputs,
                dynamic_shapes=[any_size] * len(inputs),
                optimize=False,
                verbose=False,
            )
            assert program is not None
            graph: ModelProto = program.model_proto
            return graph
    except Exception as error:
        reason = str(error).strip().split("\n")[0]
        raise Incompatible(
            f"torch.onnx cannot export this model's {type(module).__name__}: {reason}"
        ) from error


def filled(template: Doings, graph: ModelProto, stage: Doings) -> ModelProto:
    """The graph of a template with the weights of a stage that does the same."""
    own = ModelProto()
    own.CopyFrom(graph)
    weights = dict(zip(template.names, stage.weights, strict=True))
    for tensor in own.graph.initializer:
        if tensor.name in weights:
            tensor.CopyFrom(numpy_helper.from_array(weights[tensor.name].detach().numpy(), tensor.name))
    return own


def optimised(graph: ModelProto) -> ModelProto:
    """Smaller, without inputs that nothing reads, and without the exporter's notes: places in source files, and
    shapes that are stale once a graph is quantised."""
    with quiet():
        smaller: Any = optimizer.optimize(graph)
    used = {name for node in smaller.graph.node for name in node.input}
    inputs = [each for each in smaller.graph.input if each.name in used]
    smaller.graph.ClearField("input")
    smaller.graph.input.extend(inputs)
    smaller.graph.ClearField("value_info")
    for part in (smaller, smaller.graph, *smaller.graph.node, *smaller.graph.input, *smaller.graph.output):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")
    tidied: ModelProto = smaller
    return tidied


@contextmanager
def quiet() -> Iterator[None]:
    """Without the exporter's remarks on packages that are not there and on its own innards."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


@contextmanager
def uncollected() -> Iterator[None]:
    """Without the garbage collector, which while the exporter parses source may let another thread parse too: up to
    3.11.7 Python then loses count of its depth and fails."""
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()
