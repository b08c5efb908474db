"""The engine on tiny encoders in both runtimes: it decides as a policy does on the trace, and `never` is the plain
model."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from offramp.engine import Engine
from offramp.models.exit_model import ExitModel
from offramp.onnx_export import export
from offramp.policy import Policy, fold
from offramp.rules import RULES
from offramp.runtimes import Tokens
from offramp.runtimes.onnx import OnnxRuntime
from offramp.runtimes.torch import TorchRuntime

BACKBONES = ["albert", "bert", "deberta-v2", "distilbert", "modernbert", "mpnet", "roberta-prelayernorm"]
RUNS = [*((backbone, "torch") for backbone in BACKBONES), ("albert", "onnx"), ("modernbert", "onnx")]
EXAMPLES = 24
NOISE = 1e-4

# the options of each rule; `policy_between` chooses the threshold
OPTIONS = {
    "agreement": {"coefficients": [(0.1, 0.5, 0.3, -0.2, 0.4, 0.1, 0.2 * exit) for exit in range(5)]},
    "entropy": {},
    "confidence": {},
    "margin": {},
    "min_probability": {},
    "patience": {},
    "window": {"shape": "side", "entropy": 0.0},
    "patience_confidence": {"confidence": 0.4},
    "gate": {},
    "ensemble": {},
    "layer": {},
    "never": {},
}


def texts() -> list[Tokens]:
    draw = np.random.default_rng(3)
    return [Tokens(draw.integers(2, 60, length).tolist()) for length in draw.integers(1, 20, EXAMPLES)]


@pytest.fixture(scope="module")
def load(
    tiny_encoder: Callable[..., Any], tokenizer: Any, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, str], tuple[Any, np.ndarray, np.ndarray]]:
    """load("bert", "torch") -> the stages of a model, and logits and gates of its forward, one text at a time."""

    @cache
    def of(backbone: str, runtime: str) -> tuple[Any, np.ndarray, np.ndarray]:
        torch.manual_seed(0)
        encoder = tiny_encoder(backbone, layers=6)
        model = ExitModel.from_encoder(encoder, num_labels=3, exits=[1, 2, 4, 5], head={"gate": True})
        for head in model.heads.classifiers:
            torch.nn.init.normal_(head.weight, std=0.7)
        with torch.inference_mode():
            outputs = [model(input_ids=torch.tensor([text.ids])) for text in texts()]
        logits = np.concatenate([output.exit_logits.numpy() for output in outputs])
        gates = np.concatenate([output.exit_gates.numpy() for output in outputs])
        if runtime == "torch":
            return TorchRuntime(model), logits, gates
        folder = export(model, tmp_path_factory.mktemp(backbone) / "model", tokenizer=tokenizer)
        return OnnxRuntime(folder, threads=1), logits, gates

    return of


def policy_between(name: str, levels: np.ndarray, share: float) -> Policy:
    """A policy with a threshold at about this quantile of readiness, but not close to any value."""
    rule: Any = RULES[name](**OPTIONS[name])
    if not rule.takes_threshold:
        return Policy(rule)
    if rule.counts_exits:
        return Policy(rule, 4 if name == "layer" else 1 + round(2 * share))
    observed = np.unique(levels[np.isfinite(levels)])
    middles, gaps = (observed[1:] + observed[:-1]) / 2, np.diff(observed)
    middles = middles[gaps > 2 * NOISE]
    return Policy(rule, rule.sign * float(middles[int(share * (len(middles) - 1))]))


@pytest.mark.parametrize("rule", OPTIONS)
@pytest.mark.parametrize(("backbone", "kind"), RUNS)
@settings(max_examples=3)
@given(
    order=st.permutations(range(EXAMPLES)),
    window=st.sampled_from([1, 3, 24]),
    batch_tokens=st.sampled_from([1, 40, 1000]),
    overhead=st.sampled_from([0, 16, 1000]),
    share=st.floats(0, 1),
)
def test_engine_agrees_with_trace(
    load: Callable[[str, str], Any],
    backbone: str,
    kind: str,
    rule: str,
    order: list[int],
    window: int,
    batch_tokens: int,
    overhead: int,
    share: float,
) -> None:
    runtime, logits, gates = load(backbone, kind)
    runtime.overhead = overhead
    readiness = fold(RULES[rule](**OPTIONS[rule]), logits, gates, runtime.info.exits).readiness
    policy = policy_between(rule, readiness, share)
    expected = policy.decide(logits, gates, runtime.info.exits)
    chosen = [texts()[row] for row in order]
    decision = Engine(runtime, window, batch_tokens).run(chosen, policy)
    np.testing.assert_array_equal(decision.exits, expected.exits[order])
    np.testing.assert_allclose(decision.logits, expected.logits[order], atol=1e-3)
    np.testing.assert_array_equal(decision.logits.argmax(-1), expected.logits[order].argmax(-1))


def test_rules_cover_the_registry() -> None:
    assert {*OPTIONS, "oracle", "rank"} == {*RULES}  # one needs labels, the other lists


@pytest.mark.parametrize("backbone", BACKBONES)
def test_exits_are_spread_so_that_agreement_means_something(
    load: Callable[[str, str], Any], backbone: str
) -> None:
    runtime, logits, _ = load(backbone, "torch")
    levels = fold(RULES["confidence"](), logits).readiness
    exits = Engine(runtime).run(texts(), policy_between("confidence", levels, 0.8)).exits
    assert len(set(exits.tolist())) >= 3


@pytest.mark.parametrize("backbone", BACKBONES)
def test_never_equals_the_plain_model(tiny_classifier: Callable[..., Any], backbone: str) -> None:
    plain = tiny_classifier(backbone)
    runtime = TorchRuntime(ExitModel.from_encoder(plain))
    decision = Engine(runtime, batch_tokens=64).run(texts(), Policy.parse("never"))
    assert set(decision.exits) == {len(runtime.info.exits) - 1}
    with torch.inference_mode():
        for row, text in enumerate(texts()):
            truth = plain(input_ids=torch.tensor([text.ids])).logits[0].numpy()
            np.testing.assert_allclose(decision.logits[row], truth, atol=2e-5)


def test_nan_logits_are_flagged_and_leave_at_the_last_exit(tiny_encoder: Callable[..., Any]) -> None:
    model = ExitModel.from_encoder(tiny_encoder("bert"), num_labels=2)
    model.backbone.encoder.layer[1].output.dense.weight.data[0, 0] = torch.nan
    engine = Engine(TorchRuntime(model))
    decision = engine.run(texts(), Policy.parse("confidence:0,min_layer=2"))
    assert set(decision.exits) == {4}
    assert not decision.finite.any()
    assert set(engine.run(texts(), Policy.parse("confidence:0")).exits) == {0}


def test_overflow_in_half_precision_is_flagged(tiny_encoder: Callable[..., Any]) -> None:
    model = ExitModel.from_encoder(tiny_encoder("bert"), num_labels=2)
    model.heads.classifiers[0].weight.data.mul_(1e6)
    decision = Engine(TorchRuntime(model, autocast=torch.float16)).run(texts(), Policy.parse("confidence:0"))
    over = ~decision.finite
    assert over.any()
    assert (decision.exits[over] > 0).all()
