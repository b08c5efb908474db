"""The exit rules inside an ONNX graph decide as they do in numpy, on any logits."""

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offramp.engine import which_count
from offramp.errors import Incompatible
from offramp.guarantees.operating_point import OperatingPoint
from offramp.lists import Lists
from offramp.onnx_export.one_file import Nest, Output, PaddedTokens
from offramp.onnx_export.symbolic import Recorder, Symbol
from offramp.policy import Policy
from offramp.problems import MULTI_LABEL, REGRESSION, SINGLE_LABEL, TOKENS, Problem
from offramp.rules import RULES
from offramp.rules.agreement import Agreement
from offramp.runtimes import attention_mask

ARCHITECTURE = Path(__file__).parents[2] / "docs/architecture.md"
EXITS = 4
LAYERS = (0, 2, 3, 6)


def fitted(columns: int) -> Agreement:
    rng = np.random.default_rng(3)
    return Agreement(0.3, tuple(map(tuple, rng.normal(0, 0.5, (EXITS, columns)).round(3).tolist())))


CLASSES = [
    *map(
        Policy.parse,
        [
            "entropy:0.4",
            "entropy:0.5,normalized=true",
            "entropy:0.3,top=2",
            "confidence:0.8",
            "margin:0.5",
            "min_probability:0.1",
            "ensemble:0.7",
            "patience:1",
            "patience:2",
            "patience:0",
            "patience_confidence:2,confidence=0.5",
            "window:2,shape=side,entropy=0.1,margin=0.1",
            "window:2,shape=monotone,entropy=0.1,margin=0",
            "window:2,shape=range,entropy=0.1,margin=0,range=0.2",
            "gate:0.6",
            "layer:3",
            "never",
            "never,max_layer=3",
            "confidence:0.7,min_layer=2",
            "confidence:0.6/0.9/0.7/0.5",
        ],
    ),
    Policy(fitted(7), 0.6),
]
POINTS: list[tuple[str, Problem, Sequence[str]]] = [
    ("b>=0.7", SINGLE_LABEL, "ab"),
    ("b>=0.2", SINGLE_LABEL, "abc"),
    ("c", SINGLE_LABEL, "abc"),
    ("a>=0.3,c>=0.8", MULTI_LABEL, "abc"),
    ("score>=1.5", REGRESSION, ("",)),
]
OTHERS = [(SINGLE_LABEL, 2), (MULTI_LABEL, 1), (MULTI_LABEL, 3)]
NUMBERS = [
    *map(Policy.parse, ["patience:1,tolerance=0.5", "gate:0.6", "layer:2", "never"]),
    Policy(fitted(5), 0.6),
]
ONE_OF_EACH = [*{type(policy.rule): policy for policy in CLASSES}.values()]
CASES = [
    *((policy, SINGLE_LABEL, 3) for policy in CLASSES),
    *((policy, problem, outputs) for policy in ONE_OF_EACH for problem, outputs in OTHERS),
    *((policy, REGRESSION, 1) for policy in NUMBERS),
    *(
        (policy, OperatingPoint.parse(text).decisions(problem, names), len(names))
        for policy in CLASSES[:2] + CLASSES[7:8] + CLASSES[-1:]
        for text, problem, names in POINTS
    ),
]
TAGS = [
    *(policy for policy in CLASSES if policy.rule != fitted(7)),
    Policy(replace(fitted(11), outside=0), 0.6),
    Policy(fitted(11), 0.6),
]


def compiled(policy: Policy, problem: Problem, outputs: int) -> onnxruntime.InferenceSession:
    """A graph whose stages only look up logits (rows, exits, outputs) and gates (rows, exits)."""
    recorder = Recorder()
    several = (None,) if problem.of_tokens else ()
    shapes = {"logits_of_exits": (None, *several, EXITS, outputs), "gates_of_exits": (None, *several, EXITS)}
    inputs = {
        name: ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(ir.DataType.FLOAT))
        for name, shape in shapes.items()
    }
    rows = {name: Symbol(recorder, value, np.float32, shapes[name]) for name, value in inputs.items()}

    def stage(exit: int, rows: dict[str, Symbol]) -> Output:
        return Output(rows["logits_of_exits"][..., exit, :], rows["gates_of_exits"][..., exit], rows)

    tokens = ends = None
    if problem.of_tokens:
        parts = {"sizes": (None,), "mask": (None, None), "kinds": (None, None)}
        inputs |= {
            name: ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(ir.DataType.INT64))
            for name, shape in parts.items()
        }
        ends, mask, kinds = (Symbol(recorder, inputs[name], np.int64, parts[name]) for name in parts)
        tokens = PaddedTokens(mask > 0, kinds)
    nest = Nest(policy, LAYERS, problem, stage, recorder, ends, tokens)
    model = nest.model(nest.level(0, rows), [*inputs.values()], {"": 20})
    return onnxruntime.InferenceSession(
        ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"]
    )


@cache
def session(number: int) -> onnxruntime.InferenceSession:
    return compiled(*CASES[number])


every_case = pytest.mark.parametrize(
    "number", range(len(CASES)), ids=[f"{policy}-{problem}-{outputs}" for policy, problem, outputs in CASES]
)
VALUES = st.one_of(
    st.floats(-6, 6, width=32),
    st.sampled_from([0.0, 1.0, -1.0, 40.0, -40.0, np.nan, np.inf, -np.inf]),
)


@st.composite
def any_logits(draw: Any, rows: int, outputs: int) -> np.ndarray:
    """(rows, exits, outputs), of which one row has any values."""
    random = np.random.default_rng(draw(st.integers(0, 99)))
    logits = random.normal(0, 4, (rows, EXITS, outputs)).astype(np.float32)
    values = st.lists(VALUES, min_size=EXITS * outputs, max_size=EXITS * outputs)
    logits[random.integers(rows)] = np.reshape(draw(values), (EXITS, outputs))
    return logits


@every_case
@settings(max_examples=15)
@given(data=st.data())
def test_a_rule_decides_in_the_graph_as_in_numpy(number: int, data: st.DataObject) -> None:
    policy, problem, outputs = CASES[number]
    rows = data.draw(st.integers(1, 6))
    logits = data.draw(any_logits(rows, outputs))
    gates = np.random.default_rng(rows).random((rows, EXITS)).astype(np.float32)
    expected = policy.decide(logits, gates, LAYERS, problem)
    found, layers = session(number).run(None, {"logits_of_exits": logits, "gates_of_exits": gates})
    np.testing.assert_array_equal(layers, np.array(LAYERS)[expected.exits])
    np.testing.assert_allclose(found, expected.logits, rtol=1e-6, atol=1e-6)


@cache
def tagging_session(policy: Policy) -> onnxruntime.InferenceSession:
    return compiled(policy, TOKENS, outputs=3)


@pytest.mark.parametrize("policy", TAGS, ids=str)
@settings(max_examples=15)
@given(data=st.data())
def test_a_rule_decides_about_the_tokens_of_texts_in_the_graph_as_in_numpy(
    policy: Policy, data: st.DataObject
) -> None:
    sizes = np.array(data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=5)))
    draw = np.random.default_rng(data.draw(st.integers(0, 99)))
    number = int(sizes.sum())
    logits = data.draw(any_logits(number, outputs=3))
    gates = draw.random((number, EXITS)).astype(np.float32)
    kinds = draw.integers(0, 3, number)
    lists = Lists.consecutive(sizes, counts=which_count(kinds, sizes))
    expected = policy.decide(logits, gates, LAYERS, TOKENS, lists)
    inputs = {"logits_of_exits": logits, "gates_of_exits": gates, "kinds": kinds}
    at, shape = (lists.numbers, lists.columns), (len(sizes), int(sizes.max()))
    for name, flat in inputs.items():  # padding is anything
        inputs[name] = draw.integers(0, 3, (*shape, *flat.shape[1:])).astype(flat.dtype)
        inputs[name][at] = flat
    inputs |= {"sizes": sizes, "mask": attention_mask(sizes)}
    found, layers = tagging_session(policy).run(None, inputs)
    np.testing.assert_array_equal(layers, np.array(LAYERS)[expected.exits])
    np.testing.assert_allclose(found[at], expected.logits, rtol=1e-6, atol=1e-6)


def test_threshold_and_max_layer_can_be_overridden() -> None:
    policy = Policy.parse("confidence:0.9")
    run = compiled(policy, SINGLE_LABEL, 2).run
    logits = np.random.default_rng(0).normal(0, 2, (50, EXITS, 2)).astype(np.float32)
    inputs = {"logits_of_exits": logits, "gates_of_exits": np.zeros((50, EXITS), np.float32)}
    loose = run(["layer"], inputs | {"threshold": np.array(0.6)})[0]
    assert (loose == np.array(LAYERS)[Policy.parse("confidence:0.6").exits(logits, layers=LAYERS)]).all()
    deep = run(["layer"], inputs | {"threshold": np.array(np.inf)})[0]
    assert (deep == 6).all()
    cut = run(["layer"], inputs | {"threshold": np.array(np.inf), "max_layer": np.array(3)})[0]
    assert (cut == 3).all()


@every_case
def test_a_threshold_that_is_not_a_number_is_never_reached(number: int) -> None:
    policy, _, outputs = CASES[number]
    rng = np.random.default_rng(1)
    logits = rng.normal(0, 3, (40, EXITS, outputs)).astype(np.float32)
    inputs = {"logits_of_exits": logits, "gates_of_exits": rng.random((40, EXITS)).astype(np.float32)}
    never = {"threshold": np.full_like(policy.threshold, np.nan, float), "max_layer": np.array(LAYERS[-1])}
    assert (session(number).run(["layer"], inputs | never)[0] == LAYERS[-1]).all()


def test_every_rule_that_runs_live_is_compiled() -> None:
    names = {str(policy).split(":")[0].split(",")[0] for policy, *_ in CASES}
    assert names == {*RULES} - {"oracle", "rank"}  # oracle needs labels, and rank the documents of a list


def test_the_rule_in_the_docs_compiles_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = re.findall(r"```python\n(from dataclasses.*?)```", ARCHITECTURE.read_text("utf-8"), re.DOTALL)
    monkeypatch.setitem(RULES, "gap", None)  # the block adds it, and it is gone after this test
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(block, "docs/architecture.md", "exec"), names)
    policy = Policy(names["Gap"](), 1.5)
    logits = np.random.default_rng(0).normal(0, 3, (50, EXITS, 3)).astype(np.float32)
    logits[::7, 1, 0], logits[::5, 2, 1] = np.nan, np.inf
    inputs = {"logits_of_exits": logits, "gates_of_exits": np.zeros((50, EXITS), np.float32)}
    (layers,) = compiled(policy, SINGLE_LABEL, 3).run(["layer"], inputs)
    with np.errstate(invalid="ignore"):  # infinity minus infinity
        expected = policy.exits(logits, layers=LAYERS)
    np.testing.assert_array_equal(layers, np.array(LAYERS)[expected])
    assert len({*layers.tolist()}) > 2


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda x: np.arctan2(x, 1.0), r"np\.arctan2 has no counterpart"),
        (np.sort, r"np\.sort has no counterpart"),
        (lambda x: x.cumsum(), r"ndarray\.cumsum has no counterpart"),
        (lambda x: 1 if x > 0 else 0, "use np.where instead of if"),
        (lambda x: list(x), "the number of rows is not known"),
    ],
)
def test_a_rule_that_cannot_be_compiled_is_refused_by_what_it_uses(use: Any, message: str) -> None:
    symbol = Symbol(Recorder(), ir.Value(name="x"), np.float64, (None, 2))
    with pytest.raises(Incompatible, match=message):
        use(symbol)
