"""The whole model in one graph: embedding, stages, and the exit rule between them.

    input_ids, attention_mask (, token_type_ids) -> logits (rows, labels), layer (rows,)

After each stage the policy decides which rows exit, and an `If` runs the rest of the model on the others only: they
are compressed to the front, and what deeper levels return is scattered back. So every row exits at its own layer, and
a batch takes as long as the rows that stay. The arithmetic of the rule is its own `step`, run on symbols.

`threshold` and `max_layer` are inputs with defaults, those of the policy.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from offramp.onnx_export.symbolic import Recorder, Symbol, new
from offramp.policy import Policy
from offramp.policy.decide import advance, check_rule, reached
from offramp.problems import Problem

Rows = dict[str, Symbol]
"""What a stage reads, with one row for each example that has not exited."""


class Output(NamedTuple):
    """Of the stage before an exit."""

    logits: Symbol
    gate: Symbol | None
    rows: Rows
    """What the next stage reads."""


Stage = Callable[[int, Rows], Output]
"""(exit, rows) -> the output of the stage."""


class Nest:
    """Levels of `If`, one for each exit."""

    def __init__(
        self, policy: Policy, layers: Sequence[int], problem: Problem, stage: Stage, recorder: Recorder
    ) -> None:
        self.policy, self.layers, self.problem, self.stage = policy, layers, problem, stage
        self.recorder = recorder
        self.threshold = self.default("threshold", np.asarray(policy.threshold, np.float64))
        self.max_layer = self.default("max_layer", np.asarray(policy.last_layer(layers), np.int64))

    def default(self, name: str, value: Any) -> Symbol:
        """An input of the graph that has a value where none is given."""
        shape = ir.Shape(value.shape)
        kind = ir.TensorType(ir.DataType.from_numpy(value.dtype))
        given = ir.Value(name=name, shape=shape, type=kind, const_value=ir.tensor(value, name=name))
        return Symbol(self.recorder, given, value.dtype, value.shape)

    def level(self, exit: int, rows: Rows, state: Any) -> tuple[Symbol, Symbol]:
        """The logits and the layer of these rows, which have not exited before this exit."""
        layer = self.layers[exit]
        output = self.stage(exit, rows)
        if state is None:
            choices = self.problem.choices(output.logits)
            shape = (1, 1) if self.policy.rule.reads in ("gate", "layer") else (1, choices.shape[1])
            check_rule(self.policy.rule, output.logits.shape[-1], self.problem, output.gate is not None)
            state = self.policy.rule.start(shape)  # one row stands for all
        seen = advance(self.policy.rule, state, exit, output.logits, output.gate, layer, self.problem)
        logits = seen.logits.astype(np.float32)
        layers = np.full_like(logits[:, 0], layer, dtype=np.int64)
        if exit == len(self.layers) - 1:
            return logits, layers
        threshold = self.threshold[exit] if self.threshold.ndim else self.threshold
        exits = reached(self.policy.rule, seen.readiness, threshold).all(-1)
        if layer < (self.policy.min_layer or 0):
            exits = exits & False
        stay = ~(exits | (self.max_layer <= layer))
        return self.continue_with(stay, exit + 1, output.rows, seen.state, logits, layers)

    def model(self, outputs: tuple[Symbol, Symbol], inputs: Sequence[ir.Value], opset: int) -> ir.Model:
        """The graph with these inputs, which returns logits and layers."""
        block = self.recorder.blocks[0]
        for name, output in zip(("logits", "layer"), outputs, strict=True):
            output.value.name = name
            output.value.type = ir.TensorType(ir.DataType.from_numpy(output.dtype))
            output.value.shape = ir.Shape(output.shape)
        block.outputs = [each.value for each in outputs]
        block.initializers += [self.threshold.value, self.max_layer.value]
        graph = block.graph("offramp", [*inputs, self.threshold.value, self.max_layer.value])
        graph.opset_imports.update({"": opset})
        return ir.Model(graph, ir_version=10)

    def continue_with(
        self, stay: Symbol, exit: int, rows: Rows, state: Any, logits: Symbol, layers: Symbol
    ) -> tuple[Symbol, Symbol]:
        """Runs the levels from an exit on if some rows stay, on these rows only."""
        with self.recorder.branch() as then:
            kept = {name: value[stay] for name, value in rows.items()}
            deeper = self.level(exit, trimmed(kept), state_of(state, stay))
            found = new(self.recorder, "NonZero", [stay], np.int64, (1, None))
            places = new(self.recorder, "Transpose", [found], np.int64, (None, 1), perm=[1, 0])
            results = [
                new(self.recorder, "ScatterND", [here, places, below], here.dtype, here.shape)
                for here, below in zip((logits, layers), deeper, strict=True)
            ]
            then.outputs = [each.value for each in results]
        with self.recorder.branch() as otherwise:
            copies = [
                new(self.recorder, "Identity", [here], here.dtype, here.shape) for here in (logits, layers)
            ]
            otherwise.outputs = [each.value for each in copies]
        some = stay.any(0)
        chosen = self.recorder.choose(some.value, then, otherwise)
        return tuple(
            Symbol(self.recorder, value, here.dtype, here.shape)
            for value, here in zip(chosen, (logits, layers), strict=True)
        )


def state_of(state: Any, stay: Symbol) -> Any:
    """The state of the rows that stay; what is the same for all rows is not an array of the graph."""
    symbols = {name: value for name, value in vars(state).items() if isinstance(value, Symbol)}
    return replace(state, **{name: value[stay] for name, value in symbols.items()}) if symbols else state


def trimmed(rows: Rows) -> Rows:
    return rows
