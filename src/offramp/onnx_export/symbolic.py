"""Arrays that record numpy operations as ONNX nodes, so that a rule's `step` is also its graph.

A `Symbol` stands for an array that is known only when the graph runs. numpy passes every function that is called with
one to `__array_ufunc__` and `__array_function__`, which look it up in the tables below. A rule therefore needs
no second implementation; one that uses other functions than these cannot be compiled, and the error names the
function.

The first axis of a symbol is rows, whose number is unknown (None in `shape`); all other sizes are known.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
import onnx_ir as ir

from offramp.errors import Incompatible

Shape = tuple[int | None, ...]


@dataclass
class Block:
    """The nodes of a graph, or of a branch inside one."""

    nodes: list[ir.Node] = field(default_factory=list)
    initializers: list[ir.Value] = field(default_factory=list)
    outputs: list[ir.Value] = field(default_factory=list)
    constants: dict[Any, ir.Value] = field(default_factory=dict)

    def graph(self, name: str, inputs: Sequence[ir.Value] = ()) -> ir.Graph:
        return ir.Graph(inputs, self.outputs, nodes=self.nodes, initializers=self.initializers, name=name)


class Recorder:
    """The graph that is being built, and the branches inside it; new nodes belong to the innermost."""

    def __init__(self) -> None:
        self.blocks = [Block()]
        self.names = itertools.count()

    def op(
        self, name: str, inputs: Sequence[ir.Value], attributes: Mapping[str, Any], outputs: int = 1
    ) -> Any:
        node = ir.node(name, inputs, attributes, num_outputs=outputs, name=f"{name}_{next(self.names)}")
        self.blocks[-1].nodes.append(node)
        for output in node.outputs:  # unique in all branches, which see the names around them
            output.name = f"{name.lower()}_{next(self.names)}"
        return node.outputs[0] if outputs == 1 else node.outputs

    @contextmanager
    def branch(self) -> Iterator[Block]:
        """New nodes belong to this branch."""
        self.blocks.append(Block())
        yield self.blocks[-1]
        self.blocks.pop()

    def choose(self, condition: ir.Value, then: Block, otherwise: Block) -> Sequence[ir.Value]:
        """The outputs of one of two branches."""
        branches = {"then_branch": then.graph("then"), "else_branch": otherwise.graph("else")}
        outputs: Sequence[ir.Value] = self.op("If", [condition], branches, outputs=len(then.outputs))
        return outputs


class Symbol(np.lib.mixins.NDArrayOperatorsMixin):
    """The result of an ONNX node, or an input of the graph."""

    def __init__(self, recorder: Recorder, value: ir.Value, dtype: Any, shape: Shape) -> None:
        self.recorder, self.value, self.dtype, self.shape = recorder, value, np.dtype(dtype), shape
        # by an axis of size 1, the same array without it, and with it
        self.without: dict[int, Symbol] = {}
        self.within: dict[int, Symbol] = {}

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __len__(self) -> int:
        raise Incompatible("the number of rows is not known before the graph runs.")

    def __bool__(self) -> bool:
        raise Incompatible("values are not known before the graph runs; use np.where instead of if.")

    def __iter__(self) -> Any:  # without it, a loop over a symbol would never end
        raise Incompatible("the number of rows is not known before the graph runs.")

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_") or not hasattr(np.ndarray, name):
            raise AttributeError(name)
        raise not_compiled(f"ndarray.{name}")

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise Incompatible("a symbolic array has no values; use numpy functions that accept other arrays.")

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        options.pop("out", None)  # an operation in place gives a new symbol
        if method == "accumulate":
            return accumulate(ufunc, *inputs, **options)
        if method != "__call__" or ufunc.__name__ not in UFUNCS or options:
            raise not_compiled(f"np.{ufunc.__name__}" + ("" if method == "__call__" else f".{method}"))
        return UFUNCS[ufunc.__name__](self.recorder, *inputs)

    def __array_function__(self, function: Any, types: Any, args: Any, options: Mapping[str, Any]) -> Any:
        if function.__name__ not in FUNCTIONS:
            raise not_compiled(f"np.{function.__name__}")
        return FUNCTIONS[function.__name__](self.recorder, *args, **options)

    def __getitem__(self, key: Any) -> "Symbol":
        if isinstance(key, Symbol):
            return compress(self, key)
        return index(self, key if isinstance(key, tuple) else (key,))

    def astype(self, dtype: Any) -> "Symbol":
        kind = np.dtype(dtype)
        if kind == self.dtype:
            return self
        return new(self.recorder, "Cast", [self], kind, self.shape, to=ir.DataType.from_numpy(kind))

    def max(self, axis: int = -1, keepdims: bool = False) -> "Symbol":
        return reduce("ReduceMax", self, axis, keepdims)

    def min(self, axis: int = -1, keepdims: bool = False) -> "Symbol":
        return reduce("ReduceMin", self, axis, keepdims)

    def sum(self, axis: int = -1, keepdims: bool = False) -> "Symbol":
        counted = self.astype(np.int64) if self.dtype == np.bool_ else self
        return reduce("ReduceSum", counted, axis, keepdims)

    def mean(self, axis: int = -1, keepdims: bool = False) -> "Symbol":
        mean: Symbol = self.sum(axis, keepdims) / known_size(self.shape[axis])
        return mean

    def all(self, axis: int = -1) -> "Symbol":
        return reduce("ReduceMin", self, axis, False)

    def any(self, axis: int = -1) -> "Symbol":
        return reduce("ReduceMax", self, axis, False)

    def argmax(self, axis: int = -1) -> "Symbol":
        axis = axis % self.ndim
        shape = self.shape[:axis] + self.shape[axis + 1 :]
        wide = self.astype(np.int32) if self.dtype in (np.bool_, np.int64) else self
        return new(self.recorder, "ArgMax", [wide], np.int64, shape, axis=axis, keepdims=0)


def not_compiled(function: str) -> Incompatible:
    return Incompatible(
        f"{function} has no counterpart in ONNX that offramp knows; a rule that compiles avoids it."
    )


def new(
    recorder: Recorder, op: str, inputs: Sequence[Any], dtype: Any, shape: Shape, **attributes: Any
) -> Symbol:
    """The output of a node."""
    values = [x.value if isinstance(x, Symbol) else constant(recorder, x) for x in inputs]
    return Symbol(recorder, recorder.op(op, values, attributes), dtype, shape)


def constant(recorder: Recorder, value: Any) -> ir.Value:
    """Once in a branch, so that ONNX Runtime sees which nodes compute the same."""
    array, constants = np.asarray(value), recorder.blocks[-1].constants
    key = array.dtype, array.shape, array.tobytes()
    if key not in constants:
        tensor = ir.tensor(np.ascontiguousarray(array).reshape(array.shape))
        constants[key] = recorder.op("Constant", [], {"value": tensor})
    return constants[key]


def broadcast(*shapes: Shape) -> Shape:
    """The shape of an elementwise operation; unknown sizes win over 1."""
    longest = max(map(len, shapes))
    padded = [(1,) * (longest - len(shape)) + tuple(shape) for shape in shapes]
    return tuple(next((size for size in sizes if size != 1), 1) for sizes in zip(*padded, strict=True))


def elementwise(op: str, kind: Any = None, floating: bool = False) -> Callable[..., Symbol]:
    """An operation on operands of one dtype, as numpy promotes them; `kind` is the dtype of the result.

    With `floating`, whole numbers become float64.
    """

    def call(recorder: Recorder, *operands: Any) -> Symbol:
        dtype = common_dtype(*operands)
        if floating and not np.issubdtype(dtype, np.floating):
            dtype = np.dtype(np.float64)
        typed = [cast(x, dtype) for x in operands]
        return new(recorder, op, typed, kind or dtype, broadcast(*(x.shape for x in typed)))

    return call


def common_dtype(*operands: Any) -> Any:
    return np.result_type(*(x.dtype if hasattr(x, "dtype") else x for x in operands))


def cast(x: Any, dtype: Any) -> Any:
    return x.astype(dtype) if isinstance(x, Symbol) else np.asarray(x, dtype)


def is_finite(recorder: Recorder, x: Symbol) -> Symbol:
    if not np.issubdtype(x.dtype, np.floating):
        return new(recorder, "Equal", [x, x], np.bool_, x.shape)
    for axis, narrow in x.without.items():
        return expand(is_finite(recorder, narrow), [axis])
    size = new(recorder, "Abs", [x], x.dtype, x.shape)
    return new(recorder, "Less", [size, np.array(np.inf, x.dtype)], np.bool_, x.shape)  # NaN is not less


def multiply(recorder: Recorder, a: Any, b: Any) -> Symbol:
    for x, factor in ((a, b), (b, a)):
        if isinstance(x, Symbol) and not isinstance(factor, Symbol) and np.ndim(factor) == 0 and factor == 1:
            return x.astype(np.result_type(x.dtype, factor))
    return elementwise("Mul")(recorder, a, b)


def vecdot(recorder: Recorder, a: Symbol, b: Symbol) -> Symbol:
    return elementwise("Mul")(recorder, a, b).sum(-1)


def not_equal(recorder: Recorder, a: Any, b: Any) -> Symbol:
    return elementwise("Not", np.bool_)(recorder, elementwise("Equal", np.bool_)(recorder, a, b))


UFUNCS: dict[str, Callable[..., Symbol]] = {
    "add": elementwise("Add"),
    "subtract": elementwise("Sub"),
    "multiply": multiply,
    "divide": elementwise("Div", floating=True),
    "negative": elementwise("Neg"),
    "absolute": elementwise("Abs"),
    "exp": elementwise("Exp", floating=True),
    "log": elementwise("Log", floating=True),
    "tanh": elementwise("Tanh", floating=True),
    "minimum": elementwise("Min"),
    "maximum": elementwise("Max"),
    "greater": elementwise("Greater", np.bool_),
    "greater_equal": elementwise("GreaterOrEqual", np.bool_),
    "less": elementwise("Less", np.bool_),
    "less_equal": elementwise("LessOrEqual", np.bool_),
    "equal": elementwise("Equal", np.bool_),
    "not_equal": not_equal,
    "bitwise_and": elementwise("And", np.bool_),
    "bitwise_or": elementwise("Or", np.bool_),
    "logical_and": elementwise("And", np.bool_),
    "logical_or": elementwise("Or", np.bool_),
    "invert": elementwise("Not", np.bool_),
    "logical_not": elementwise("Not", np.bool_),
    "isfinite": is_finite,
    "vecdot": vecdot,
}


def reduce(op: str, x: Symbol, axis: int, keepdims: bool) -> Symbol:
    axis = axis % x.ndim
    if x.shape[axis] == 1:
        return x if keepdims else index(x, (slice(None),) * axis + (0,))
    for other, narrow in x.without.items():
        if other < axis:  # an axis of size 1 is added last, so that others see the same nodes
            return expand(reduce(op, narrow, axis - 1, keepdims), [other])
    kept = (1,) if keepdims else ()
    shape = (*x.shape[:axis], *kept, *x.shape[axis + 1 :])
    return new(x.recorder, op, [x, np.array([axis])], x.dtype, shape, keepdims=int(keepdims))


def accumulate(ufunc: np.ufunc, x: Symbol, axis: int = -1) -> Symbol:
    """The running result along an axis of known size, one node for each place."""
    running = [x[..., :1]]
    for place in range(1, known_size(x.shape[axis])):
        running.append(ufunc(running[-1], x[..., place : place + 1]))
    return concatenate(x.recorder, running, axis=-1)


def known_size(size: int | None) -> int:
    if size is None:
        raise Incompatible("the number of rows is not known before the graph runs.")
    return size


def index(x: Symbol, key: tuple[Any, ...]) -> Symbol:
    """Basic indexing: integers, slices, None and Ellipsis."""
    axes = sum(item is not None and item is not Ellipsis for item in key)
    if not any(item is Ellipsis for item in key):
        key = (*key, Ellipsis)
    full: list[Any] = []
    for item in key:
        full.extend([slice(None)] * (x.ndim - axes) if item is Ellipsis else [item])
    result, axis = x, 0
    for item in [item for item in full if item is not None]:
        if isinstance(item, int | np.integer):
            result = take_one(result, axis, int(item))
        else:
            result, axis = take_slice(result, axis, item), axis + 1
    left = [item for item in full if not isinstance(item, int | np.integer)]
    return expand(result, [place for place, item in enumerate(left) if item is None])


def take_one(x: Symbol, axis: int, place: int) -> Symbol:
    if axis in x.without:
        return x.without[axis]
    size = x.shape[axis]
    at = place if size is None or place >= 0 else size + place
    shape = x.shape[:axis] + x.shape[axis + 1 :]
    taken = new(x.recorder, "Gather", [x, np.array(at)], x.dtype, shape, axis=axis)
    if size == 1:
        taken.within[axis] = x
    return taken


def expand(x: Symbol, axes: Sequence[int]) -> Symbol:
    """With new axes of size 1."""
    if not axes:
        return x
    if len(axes) == 1 and axes[0] in x.within:
        return x.within[axes[0]]
    sizes = [*x.shape]
    for axis in axes:
        sizes.insert(axis, 1)
    expanded = new(x.recorder, "Unsqueeze", [x, np.array(axes)], x.dtype, (*sizes,))
    if len(axes) == 1:
        expanded.without[axes[0]] = x
    return expanded


def take_slice(x: Symbol, axis: int, key: slice) -> Symbol:
    if key == slice(None):
        return x
    start, stop, step = key.indices(known_size(x.shape[axis]))
    places = np.arange(start, stop, step)
    shape = (*x.shape[:axis], len(places), *x.shape[axis + 1 :])
    return new(x.recorder, "Gather", [x, places], x.dtype, shape, axis=axis)


def compress(x: Symbol, rows: Symbol) -> Symbol:
    """The rows where a mask is true."""
    return new(x.recorder, "Compress", [x, rows], x.dtype, (None, *x.shape[1:]), axis=0)


def where(recorder: Recorder, condition: Any, a: Any, b: Any) -> Symbol:
    dtype = common_dtype(a, b)
    inputs = [cast(condition, bool), cast(a, dtype), cast(b, dtype)]
    return new(recorder, "Where", inputs, dtype, broadcast(*(x.shape for x in inputs)))


def concatenate(recorder: Recorder, arrays: Sequence[Any], axis: int = 0) -> Symbol:
    """Concatenate arrays, some of which may be constants with one row, which stand for all rows."""
    dtype = common_dtype(*arrays)
    arrays = [x for x in arrays if x.shape[axis] != 0]
    rows = next(x for x in arrays if isinstance(x, Symbol))
    typed = [like(rows, x, dtype) for x in arrays]
    axis = axis % typed[0].ndim
    total = sum(known_size(x.shape[axis]) for x in typed)
    shape = (*typed[0].shape[:axis], total, *typed[0].shape[axis + 1 :])
    return new(recorder, "Concat", typed, dtype, shape, axis=axis)


def like(rows: Symbol, x: Any, dtype: Any) -> Symbol:
    """`x` with as many rows as a symbol."""
    if isinstance(x, Symbol):
        return x.astype(dtype)
    nothing = rows[(slice(None), *[0] * (rows.ndim - 1))].astype(dtype) * np.zeros((), dtype)
    for _ in range(np.ndim(x) - 1):
        nothing = nothing[..., None]
    return where(rows.recorder, np.True_, np.asarray(x, dtype), nothing)


def stack(recorder: Recorder, arrays: Sequence[Any], axis: int = 0) -> Symbol:
    rank = max(x.ndim for x in arrays)
    place = axis % (rank + 1)
    if place in (0, rank) or None in arrays[0].shape[1:]:
        return concatenate(recorder, [x[(slice(None),) * place + (None,)] for x in arrays], axis=place)
    flat = concatenate(recorder, arrays, axis=place)
    sizes = (
        *flat.shape[:place],
        len(arrays),
        known_size(flat.shape[place]) // len(arrays),
        *flat.shape[place + 1 :],
    )
    wanted = np.array([0, *sizes[1:]])  # 0 keeps the number of rows
    return new(recorder, "Reshape", [flat, wanted], flat.dtype, sizes)


def full_like(recorder: Recorder, x: Symbol, value: Any, dtype: Any = None) -> Symbol:
    kind = np.dtype(dtype or x.dtype)
    shape = new(recorder, "Shape", [x], np.int64, (x.ndim,))
    content = ir.tensor(np.array([value], kind))
    return new(recorder, "ConstantOfShape", [shape], kind, x.shape, value=content)


def zeros_like(recorder: Recorder, x: Symbol) -> Symbol:
    return full_like(recorder, x, 0)


def take_along_axis(recorder: Recorder, x: Symbol, indices: Symbol, axis: int) -> Symbol:
    axis = axis % x.ndim
    sizes = (*x.shape[:axis], indices.shape[axis], *x.shape[axis + 1 :])
    if sizes != indices.shape:
        wanted = np.array([1, *sizes[1:]])
        indices = new(recorder, "Expand", [indices, wanted], indices.dtype, sizes)
    return new(recorder, "GatherElements", [x, indices], x.dtype, sizes, axis=axis)


def partition(recorder: Recorder, x: Symbol, kth: int, axis: int = -1) -> Symbol:
    """Sorted: the largest `-kth` last, as the callers of `np.partition` need them."""
    size = known_size(x.shape[-1])
    if axis != -1:
        raise not_compiled("np.partition along another axis than the last")
    top = recorder.op("TopK", [x.value, constant(recorder, np.array([size]))], {"axis": -1, "largest": 0}, 2)
    return Symbol(recorder, top[0], x.dtype, x.shape)


FUNCTIONS: dict[str, Callable[..., Symbol]] = {
    "where": where,
    "concatenate": concatenate,
    "stack": stack,
    "full_like": full_like,
    "zeros_like": zeros_like,
    "take_along_axis": take_along_axis,
    "partition": partition,
}
