"""Readiness of each rule against numbers from elsewhere: scipy, and counting by hand."""

import numpy as np
import pytest
from scipy import special, stats

from offramp.errors import BadPolicy, Incompatible
from offramp.numerics import entropy, log_softmax, softmax
from offramp.policy import Policy, fold
from offramp.rules import RULES
from offramp.rules.base import PerExample

LOGITS = np.random.default_rng(0).normal(0, 3, (40, 5, 4))
CHANCES = special.softmax(LOGITS, -1)
MULTI = "multi_label_classification"


def ready(text: str, logits: np.ndarray = LOGITS, **options: object) -> np.ndarray:
    return fold(Policy.parse(text).rule, logits, **options).readiness  # type: ignore[arg-type]


def counts(text: str, logits: list[list[float]]) -> list[float]:
    return ready(text, np.array([logits]))[0].tolist()


def test_numerics_equal_scipy() -> None:
    np.testing.assert_allclose(softmax(LOGITS), CHANCES, rtol=1e-13)
    np.testing.assert_allclose(log_softmax(LOGITS), special.log_softmax(LOGITS, -1), rtol=1e-13)
    np.testing.assert_allclose(entropy(LOGITS), stats.entropy(CHANCES, axis=-1), rtol=1e-12)


def test_entropy_of_saturated_logits_is_tiny_and_never_negative() -> None:
    nats = entropy(np.array([[100.0, 0.0], [-1e6, 1e6], [745.0, 0.0]]))
    assert nats[0] == pytest.approx(101 * np.exp(-100.0), rel=0.01)  # p ln(1/p) of the rare class, and 1 - p
    assert (nats >= 0).all()


def test_readiness_of_the_stateless_rules_is_what_scipy_computes() -> None:
    best = np.sort(CHANCES, -1)
    np.testing.assert_allclose(ready("entropy:1"), -stats.entropy(CHANCES, axis=-1), rtol=1e-12)
    np.testing.assert_allclose(ready("entropy:1,normalized=true"), -stats.entropy(CHANCES, base=4, axis=-1))
    np.testing.assert_allclose(ready("entropy:1,top=2"), -stats.entropy(best[..., 2:], axis=-1))
    np.testing.assert_allclose(ready("confidence:1"), best[..., 3])
    np.testing.assert_allclose(ready("margin:1"), best[..., 3] - best[..., 2])
    np.testing.assert_allclose(ready("min_probability:1"), -best[..., 0])


def test_ensemble_answers_with_the_geometric_mean_of_the_exits_so_far() -> None:
    folded = fold(RULES["ensemble"](), LOGITS)
    for exit in range(5):
        mean = stats.gmean(CHANCES[:, : exit + 1], axis=1)
        mean /= mean.sum(-1, keepdims=True)
        np.testing.assert_allclose(np.exp(folded.logits[:, exit]), mean)
        np.testing.assert_allclose(folded.readiness[:, exit], mean.max(-1))


def test_ensemble_leaves_broken_exits_out() -> None:
    logits = LOGITS[:1].copy()
    logits[0, 1, 0] = np.nan
    without = fold(RULES["ensemble"](), np.delete(LOGITS[:1], 1, axis=1))
    with_it = fold(RULES["ensemble"](), logits)
    np.testing.assert_allclose(np.delete(with_it.logits, 1, axis=1), without.logits)
    assert with_it.readiness[0, 1] == -np.inf


def test_patience_counts_agreements_after_the_first() -> None:
    a, b, c = [1, 0, 0], [0, 1, 0], [0, 0, 1]
    assert counts("patience:1", [a, a, a, b, c, c]) == [0, 1, 2, 0, 0, 1]


def test_a_broken_exit_breaks_the_run_and_agrees_with_nothing() -> None:
    a, nan = [1, 0], [np.nan, 0]
    assert counts("patience:1", [nan, nan, a, a, nan, a, a]) == [-np.inf, -np.inf, 0, 1, -np.inf, 0, 1]
    assert counts("patience_confidence:1,confidence=0.5", [a, a, nan, a]) == [1, 2, -np.inf, 1]
    for shape in ("side", "monotone", "range,range=1"):
        assert counts(f"window:2,entropy=0,shape={shape}", [a, a, nan, a, a]) == [1, 2, -np.inf, 1, 2]
    assert counts("patience:1,tolerance=9", [[1], [2], [np.inf], [2], [3]]) == [0, 1, -np.inf, 0, 1]


def test_patience_with_confidence_counts_sure_exits_only() -> None:
    sure, unsure, other = [3, 0], [0.1, 0], [0, 3]
    run = counts("patience_confidence:1,confidence=0.9", [sure, sure, unsure, sure, other, other])
    assert run == [1, 2, 0, 1, 1, 2]


def test_patience_with_confidence_of_one_exit_is_confidence() -> None:
    paired, plain = "patience_confidence:1,confidence=0.8", "confidence:0.8"
    np.testing.assert_array_equal(Policy.parse(paired).exits(LOGITS), Policy.parse(plain).exits(LOGITS))


@pytest.mark.parametrize("size", range(2, 6))
def test_for_two_classes_a_window_is_patience_of_one_less(size: int) -> None:
    logits = LOGITS[..., :2]
    window = Policy.parse(f"window:{size},shape=side,entropy=0,margin=0").exits(logits)
    np.testing.assert_array_equal(window, Policy.parse(f"patience:{size - 1}").exits(logits))


@pytest.mark.parametrize("shape", ["side", "monotone", "range"])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_windows_for_two_classes_decide_as_elbert_wrote_them(shape: str, size: int) -> None:
    logits = np.random.default_rng(1).normal(0, 1, (300, 7, 2))
    logits = (logits * 4).round() / 4  # with ties that are exact
    margin, width, delta = 0.1, 0.15, 0.3
    width_option = f",range={width}" if shape == "range" else ""
    text = f"window:{size},shape={shape},entropy={delta},margin={margin}{width_option}"
    chances = special.softmax(logits, -1)
    entropies = stats.entropy(chances, base=2, axis=-1)

    def fits(x: np.ndarray) -> bool:  # the last values of p(class 0)
        above, below = (x > 0.5 + margin).all(), (x < 0.5 - margin).all()
        if shape == "side":
            return bool(above or below)
        if shape == "range":
            return bool((above or below) and x.max() - x.min() <= width)
        rises, falls = (np.diff(x) >= 0).all(), (np.diff(x) <= 0).all()
        return bool((x[0] > 0.5 + margin and rises) or (x[0] < 0.5 - margin and falls))

    def leaves_at(example: int) -> int:
        for exit in range(6):
            window = chances[example, max(0, exit + 1 - size) : exit + 1, 0]
            if entropies[example, exit] < delta or (len(window) == size and fits(window)):
                return exit
        return 6

    assert Policy.parse(text).exits(logits).tolist() == [leaves_at(example) for example in range(300)]


def test_of_many_labels_the_least_certain_decides() -> None:
    chance = special.expit(LOGITS)
    sure = np.maximum(chance, 1 - chance)
    binary = stats.bernoulli(chance).entropy()
    np.testing.assert_allclose(ready("confidence:1", problem_type=MULTI), sure.min(-1))
    np.testing.assert_allclose(ready("margin:1", problem_type=MULTI), (2 * sure - 1).min(-1), atol=1e-12)
    np.testing.assert_allclose(ready("entropy:1", problem_type=MULTI), -binary.max(-1), rtol=1e-9)


def test_patience_of_many_labels_watches_the_whole_set() -> None:
    run = np.zeros(40)
    expected = [run]
    present = LOGITS > 0
    for exit in range(1, 5):
        run = np.where((present[:, exit] == present[:, exit - 1]).all(-1), run + 1, 0)
        expected.append(run)
    np.testing.assert_array_equal(ready("patience:1", problem_type=MULTI), np.stack(expected, 1))


def test_answers_of_many_labels_are_the_logits_themselves() -> None:
    decision = Policy.parse("confidence:0.6").decide(LOGITS, problem_type=MULTI)
    np.testing.assert_array_equal(decision.logits, LOGITS[np.arange(40), decision.exits])


@pytest.mark.parametrize("problem_type", [None, MULTI])
def test_oracle_leaves_at_the_chosen_exits(problem_type: str | None) -> None:
    chosen = np.random.default_rng(2).integers(0, 5, 40)
    exits = Policy(RULES["oracle"](chosen)).exits(LOGITS, problem_type=problem_type)
    np.testing.assert_array_equal(exits, chosen)


def test_oracle_refuses_exits_of_other_examples() -> None:
    with pytest.raises(Incompatible, match="exits of shape"):
        Policy(RULES["oracle"](np.zeros(3, int))).exits(LOGITS)


@pytest.mark.parametrize("rows", [np.array([True, False, True]), np.array([2, 0]), slice(1, None)])
def test_state_keeps_rows_by_mask_by_index_and_by_slice(rows: object) -> None:
    for name, kind in RULES.items():
        if name == "rank":  # its documents share the estimates of their list
            continue
        rule = kind(np.array([0, 1, 2])) if name == "oracle" else kind()  # type: ignore[call-arg]
        state = rule.start(3)
        assert isinstance(state, PerExample)
        for value in vars(state[rows]).values():
            if isinstance(value, np.ndarray):
                assert len(value) == len(np.arange(3)[rows])  # type: ignore[call-overload]


@pytest.mark.parametrize(
    "text",
    [
        "entropy:1,top=1",
        "window:2,shape=side,margin=0.5",
        "window:2,shape=side,margin=-0.1",
        "window:2,shape=range",
        "window:2,shape=side,range=0.1",
        "window:2,shape=round",
        "patience_confidence:2,confidence=1",
    ],
)
def test_options_out_of_range_are_refused(text: str) -> None:
    with pytest.raises(BadPolicy):
        Policy.parse(text)
