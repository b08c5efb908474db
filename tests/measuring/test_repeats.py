"""Certificates must hold whether texts repeat later or not; each regime is simulated and must stay within delta."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binom

from offramp import Guarantee, calibrate
from offramp.errors import BadOption, NoSafeThreshold
from offramp.measuring.calibrate import Rules
from offramp.problems import Array
from offramp.trace import Trace

EPSILON, DELTA, DRAWS, TEXTS = 0.05, 0.2, 40, 10_000
Draw = Callable[[np.random.Generator], Array]


def make_population(texts: int, seed: int = 0) -> Trace:
    """Two inner exits, whose predictions are wrong the more often the less sure they are."""
    leads = np.random.default_rng(seed).normal((1.0, 1.6, 9.0), (1.0, 1.0, 0.1), (texts, 3))
    logits = np.stack([leads, np.zeros_like(leads)], -1)
    return Trace(
        logits,
        (1, 2, 3),
        labels=np.zeros(texts, int),
        lengths=np.ones(texts),
        ids=np.arange(texts),
        texts=np.arange(texts),
    )


POPULATION = make_population(TEXTS)


def no_repeats(rng: np.random.Generator) -> Array:
    return rng.choice(TEXTS, 600, replace=False)


def bursts(rng: np.random.Generator) -> Array:
    """A fifth of the texts about 20 times, in this log and not later."""
    return np.repeat(rng.choice(TEXTS, 300, replace=False), np.where(rng.random(300) < 0.2, 20, 1))


def everything_three_times(rng: np.random.Generator) -> Array:
    return np.repeat(rng.choice(TEXTS, 500, replace=False), 3)


def share_of_false_certificates(
    draw: Draw, rule: Rules, risk: Callable[[Array], float], population: Trace = POPULATION
) -> tuple[float, float]:
    """The share of draws that give a false certificate, and of those that give one at all."""
    false = certified = 0
    for seed in range(DRAWS):
        try:
            sample = population[draw(np.random.default_rng(seed))]
            policy = calibrate(sample, rule, Guarantee(EPSILON, DELTA)).policy
        except NoSafeThreshold:
            continue
        decision = policy.decide(population.logits, None, population.layers, population.problem)
        certified += 1
        false += risk(decision.logits.argmax(-1) != 0) > EPSILON
    return false / DRAWS, certified / DRAWS


MOST = binom.ppf(0.99, DRAWS, DELTA) / DRAWS
"""What chance allows if exactly DELTA of certificates are false."""


@pytest.mark.parametrize("rule", ["entropy", "agreement", None], ids=str)
@pytest.mark.parametrize("draw", [no_repeats, bursts, everything_three_times])
def test_a_certificate_is_true_of_new_texts_in_all_but_delta_of_the_draws(draw: Draw, rule: Rules) -> None:
    false, certified = share_of_false_certificates(draw, rule, np.mean)
    assert false <= MOST
    assert certified > 0.5


@pytest.mark.parametrize("rule", ["entropy", "agreement"])
def test_a_certificate_is_true_where_texts_keep_their_frequency(rule: str) -> None:
    popularity = 1 / np.arange(1, TEXTS + 1) ** 0.8
    popularity /= popularity.sum()

    def stable(rng: np.random.Generator) -> Array:
        return rng.choice(TEXTS, 1000, p=popularity)

    false, certified = share_of_false_certificates(
        stable, rule, lambda lost: float(np.average(lost, weights=popularity))
    )
    assert false <= MOST
    assert certified > 0.3


def test_texts_that_exits_have_memorized_certify_nothing_about_others() -> None:
    """Half of the rows were learned from, and there the exits are always right."""
    learned = np.arange(TEXTS) % 2 == 0
    logits = POPULATION.logits.copy()
    logits[learned, :-1, 0] = abs(logits[learned, :-1, 0])
    memorized = replace(POPULATION, logits=logits)
    new = POPULATION[~learned]
    target = Guarantee(EPSILON, DELTA)
    false = []
    for seed in range(DRAWS):
        sample = memorized[np.random.default_rng(seed).choice(TEXTS, 800, replace=False)]
        known = replace(sample, trained_on=learned[sample.ids])
        with pytest.raises(BadOption, match="trained on"):
            calibrate(known, "entropy", target)
        policy = calibrate(known, "entropy", target, allow_training_rows=True).policy
        decision = policy.decide(new.logits, None, new.layers, new.problem)
        false.append(np.mean(decision.logits.argmax(-1) != 0) > EPSILON)
        assert policy.certificate is not None
        assert policy.certificate.unseen == (~known.trained_on).sum()  # type: ignore[operator]
    assert np.mean(false) <= MOST


def test_one_row_of_each_group_certifies() -> None:
    """Texts of a conversation are alike: here they are the same but for noise too small to matter."""
    groups = np.repeat(np.arange(TEXTS // 10), 10)
    noise = np.random.default_rng(1).normal(0, 1e-3, POPULATION.logits.shape)
    alike = replace(
        POPULATION, logits=POPULATION.logits[groups * 10] + noise, texts=groups, group_column="chat"
    )

    def conversations(rng: np.random.Generator) -> Array:
        return (rng.choice(TEXTS // 10, 300, replace=False)[:, None] * 10 + np.arange(10)).ravel()

    for rule in ("entropy", "agreement"):
        false, certified = share_of_false_certificates(conversations, rule, np.mean, alike)
        assert false <= MOST
        assert certified > 0.5


def test_the_certificate_says_how_many_texts_are_unseen() -> None:
    once = POPULATION[:600]
    proof = calibrate(once, "entropy", Guarantee(EPSILON)).policy.certificate
    assert proof is not None
    assert (proof.unseen, proof.unseen_risk) == (None, None)
    assert "new texts" not in proof.promise
    twice = POPULATION[np.tile(np.arange(600), 2)]
    proof = calibrate(twice, "entropy", Guarantee(EPSILON)).policy.certificate
    assert proof is not None
    assert (proof.examples, proof.unseen) == (1200, 600)
    assert proof.promise.endswith("The same holds for new texts, each counted once.")
    assert "The same is proven on 600 distinct unseen texts" in proof.evidence


def test_too_few_distinct_texts_are_named() -> None:
    with pytest.raises(NoSafeThreshold, match="20 distinct unseen texts cannot prove"):
        calibrate(POPULATION[np.tile(np.arange(20), 50)], "entropy", Guarantee(EPSILON))


def test_bounds_by_class_hold_for_unseen_texts_too() -> None:
    sample = POPULATION[np.tile(np.arange(600), 2)]
    sample = replace(sample, logits=np.where((sample.ids % 2 == 0)[:, None, None], 1, -1) * sample.logits)
    proof = calibrate(sample, "entropy", Guarantee({"0": 0.2, "1": 0.2})).policy.certificate
    assert proof is not None
    assert {bound.examples for bound in proof.bounds} == {600}
    assert proof.unseen == 600


def test_a_rule_may_be_fitted_on_other_examples() -> None:
    found = calibrate(POPULATION[:600], "agreement", Guarantee(EPSILON), fit_on=POPULATION[500:800])
    proof = found.policy.certificate
    assert proof is not None
    assert (proof.examples, proof.fitted_on, proof.unseen) == (600, 300, 500)
