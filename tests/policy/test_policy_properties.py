"""What holds for every rule, whatever the logits: tried on random ones, ties and broken numbers included."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offramp.policy import Policy, fold, reached
from offramp.problems import MULTI_LABEL, SINGLE_LABEL
from offramp.rules import RULES
from offramp.rules.agreement import Agreement
from offramp.rules.fixed import Oracle

EXITS = 6

TEXTS = [
    "agreement:0.7",
    "entropy:0.5",
    "entropy:0.4/0.1/0.6/0.2/0.5/0.3,normalized=true",
    "entropy:0.3,top=2",
    "confidence:0.7",
    "margin:0.4",
    "min_probability:0.2",
    "patience:1",
    "patience:2,min_layer=2,max_layer=5",
    "window:2,shape=side,entropy=0.2,margin=0.05",
    "window:2,shape=monotone,entropy=0.2,margin=0",
    "window:2,shape=range,entropy=0.2,margin=0,range=0.2",
    "patience_confidence:2,confidence=0.6",
    "gate:0.5",
    "ensemble:0.7",
    "layer:4",
    "never",
    "oracle",
]


FITTED = Agreement(coefficients=tuple((0.1, 0.5, 0.3, -0.2, 0.4, 0.1, 0.2 * exit) for exit in range(EXITS)))


def policy(text: str, oracle_exits: Any) -> Policy:
    if text == "oracle":
        return Policy(Oracle(oracle_exits))
    return Policy.parse(text).with_fit_of(Policy(FITTED))


@st.composite
def batches(draw: st.DrawFn) -> dict[str, Any]:
    """Logits, gates and oracle exits of a few examples; some logits tie, saturate or are broken."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    problem_type = draw(st.sampled_from([SINGLE_LABEL, MULTI_LABEL]))
    examples, classes = draw(st.integers(1, 12)), draw(st.integers(2, 4))
    logits = random.normal(0, draw(st.sampled_from([0.3, 2.0, 200.0])), (examples, EXITS, classes))
    if draw(st.booleans()):
        logits = logits.round()
    if draw(st.booleans()):
        broken = random.random(logits.shape) < 0.1
        logits[broken] = random.choice([np.nan, np.inf, -np.inf], broken.sum())
    return {
        "logits": logits,
        "gates": random.random((examples, EXITS)),
        "oracle_exits": random.integers(0, EXITS, examples),
        "problem_type": problem_type,
    }


def decide(text: str, batch: dict[str, Any], rows: Any = slice(None)) -> Any:
    chosen = policy(text, batch["oracle_exits"][rows])
    return chosen.decide(batch["logits"][rows], batch["gates"][rows], problem_type=batch["problem_type"])


def same(one: Any, other: Any) -> None:
    np.testing.assert_array_equal(one.exits, other.exits)
    np.testing.assert_array_equal(one.logits, other.logits)
    np.testing.assert_array_equal(one.finite, other.finite)


def test_every_rule_is_tried() -> None:
    assert {text.split(":")[0] for text in TEXTS} == {*RULES} - {"rank"}  # see tests/rules/test_rank.py


@pytest.mark.parametrize("text", TEXTS)
@settings(max_examples=15)
@given(batch=batches(), seed=st.integers(0, 99))
def test_later_exits_never_change_an_earlier_decision(text: str, batch: dict[str, Any], seed: int) -> None:
    before = decide(text, batch)
    later = np.arange(EXITS) > before.exits[:, None]
    changed = dict(batch, logits=batch["logits"].copy(), gates=batch["gates"].copy())
    changed["logits"][later] = np.random.default_rng(seed).normal(0, 9, changed["logits"][later].shape)
    changed["gates"][later] = 1.0
    same(decide(text, changed), before)


@pytest.mark.parametrize("text", TEXTS)
@settings(max_examples=15)
@given(batch=batches())
def test_thresholds_on_the_whole_fold_give_the_same_exits_and_logits(
    text: str, batch: dict[str, Any]
) -> None:
    chosen = policy(text, batch["oracle_exits"])
    if chosen.min_layer:
        chosen = Policy(chosen.rule, chosen.threshold)
    arrays = (batch["logits"], batch["gates"], None, batch["problem_type"])
    live, whole = chosen.decide(*arrays), fold(chosen.rule, *arrays)
    leaves = reached(chosen.rule, whole.readiness, chosen.threshold)
    leaves[:, -1] = True
    exits = leaves.argmax(1)
    np.testing.assert_array_equal(exits, live.exits)
    np.testing.assert_array_equal(whole.logits[np.arange(len(exits)), exits], live.logits)


@pytest.mark.parametrize("text", TEXTS)
@settings(max_examples=15)
@given(batch=batches(), seed=st.integers(0, 99))
def test_order_of_examples_does_not_matter(text: str, batch: dict[str, Any], seed: int) -> None:
    rows = np.random.default_rng(seed).permutation(len(batch["logits"]))
    shuffled, plain = decide(text, batch, rows), decide(text, batch)
    np.testing.assert_array_equal(shuffled.exits, plain.exits[rows])
    np.testing.assert_array_equal(shuffled.logits, plain.logits[rows])


@pytest.mark.parametrize("text", TEXTS)
@settings(max_examples=15)
@given(batch=batches(), seed=st.integers(0, 99))
def test_dropping_rows_at_any_time_leaves_the_others_as_they_were(
    text: str, batch: dict[str, Any], seed: int
) -> None:
    random = np.random.default_rng(seed)
    logits, gates, rows = batch["logits"], batch["gates"], np.arange(len(batch["logits"]))
    start = policy(text, batch["oracle_exits"]).begin(len(rows), range(1, EXITS + 1), batch["problem_type"])
    whole, some = start, start[rows]
    for exit in range(EXITS):
        leaving, output = whole.step(exit, logits[:, exit], gates[:, exit])
        still_leaving, still_output = some.step(exit, logits[rows, exit], gates[rows, exit])
        np.testing.assert_array_equal(still_leaving, leaving[rows])
        np.testing.assert_array_equal(still_output, output[rows])
        kept = random.random(len(rows)) < 0.7
        if random.random() < 0.5:
            kept = np.flatnonzero(kept)
        some, rows = some[kept], rows[kept]


@pytest.mark.parametrize("text", [text for text in TEXTS if text not in ("never", "oracle")])
@settings(max_examples=15)
@given(batch=batches(), numbers=st.tuples(st.integers(1, 6), st.integers(1, 6)))
def test_a_looser_threshold_never_leaves_later(
    text: str, batch: dict[str, Any], numbers: tuple[int, int]
) -> None:
    rule = policy(text, batch["oracle_exits"]).rule
    low, high = sorted(numbers if rule.counts_exits else (number / 6 for number in numbers))
    strict, loose = (low, high) if rule.sign < 0 else (high, low)
    arrays = (batch["logits"], batch["gates"], None, batch["problem_type"])
    assert (Policy(rule, loose).exits(*arrays) <= Policy(rule, strict).exits(*arrays)).all()


@pytest.mark.parametrize("text", TEXTS)
@settings(max_examples=15)
@given(batch=batches())
def test_no_example_leaves_early_where_logits_are_broken_and_all_are_reported(
    text: str, batch: dict[str, Any]
) -> None:
    decision = decide(text, batch)
    broken = ~np.isfinite(batch["logits"]).all(-1)  # (examples, exits)
    here = broken[np.arange(len(broken)), decision.exits]
    forced = EXITS - 1 if "max_layer" not in text else 4
    assert (decision.exits[here] == forced).all()
    on_the_way = (broken & (np.arange(EXITS) <= decision.exits[:, None])).any(1)
    np.testing.assert_array_equal(decision.finite, ~on_the_way)


options = st.one_of(
    st.builds("entropy:{},normalized=true,top={}".format, st.floats(allow_nan=False), st.integers(2, 9)),
    st.builds("patience:{},tolerance={}".format, st.integers(0, 30), st.floats(0.001, 9)),
    st.builds(
        "window:{},shape={},entropy={},margin={}".format,
        st.integers(0, 30),
        st.sampled_from(["side", "monotone"]),
        st.floats(0, 1),
        st.floats(0, 0.49),
    ),
)


@given(text=options, limits=st.tuples(st.integers(1, 6), st.integers(6, 12)) | st.none())
def test_text_and_json_round_trip(text: str, limits: Any) -> None:
    plain = Policy.parse(text)
    low, high = limits or (None, None)
    written = Policy(plain.rule, plain.threshold, low, high)
    assert Policy.parse(str(written)) == written
    assert Policy.from_json(written.to_json()) == written
