"""Which exits are kept: those that save more time than they cost."""

import numpy as np
import pytest

from offramp.guarantees.guarantee import Guarantee
from offramp.measuring.paying_exits import ExitCost, paying_exits
from offramp.trace import Trace

LAYERS = (0, 1, 2, 3, 6)
TARGET = Guarantee(0.02)


@pytest.fixture(scope="module")
def trace() -> Trace:
    """Layer 1 is sure and right about two thirds of the texts; layers 2 and 3 know no more, and layer 0 nothing."""
    rng = np.random.default_rng(0)
    truth, easy = rng.integers(0, 2, 600), rng.random(600) < 2 / 3
    sign = 2.0 * truth - 1
    unsure = rng.normal(0, 0.3, (600, 5)) * sign[:, None]
    margin = np.where(easy[:, None], 5 * sign[:, None] + rng.normal(0, 0.3, (600, 5)), unsure)
    margin[:, 0], margin[:, -1] = rng.normal(0, 0.3, 600), 6 * sign
    logits = np.stack([-margin, margin], -1)
    return Trace(logits, LAYERS, labels=None, lengths=np.ones(600), ids=np.arange(600))


def test_an_exit_that_decides_nothing_new_goes(trace: Trace) -> None:
    assert paying_exits(trace, TARGET, [ExitCost(layer=1, exit=0.2)]) == (1, 4)


def test_one_exit_stays_where_none_pays(trace: Trace) -> None:
    *others, last = paying_exits(trace, TARGET, [ExitCost(layer=1, exit=20)])
    assert (len(others), last) == (1, 4)


def test_the_product_of_several_costs_counts() -> None:
    """Layer 1 decides two thirds of the texts, layer 3 half of the others: both pay only if exits cost little."""
    rng = np.random.default_rng(1)
    sign, part = rng.choice([-1.0, 1.0], 900), rng.integers(0, 6, 900)
    margin = rng.normal(0, 0.3, (900, 3)) + 5 * sign[:, None] * np.stack([part < 4, part < 5, part < 6], 1)
    logits = np.stack([-margin, margin], -1)
    trace = Trace(logits, (1, 3, 6), labels=None, lengths=np.ones(900), ids=np.arange(900))
    single, batch = ExitCost(layer=1, exit=60), ExitCost(layer=1, exit=0.1)
    assert paying_exits(trace, TARGET, [batch]) == (0, 1, 2)
    assert paying_exits(trace, TARGET, [single, batch]) == (1, 2)  # fewer texts pass it


def test_exits_of_a_tagger_pay_by_what_its_texts_lose() -> None:
    """Words are tagged right from layer 1 on, and surely; layer 0 is as sure, and misses the words in spans."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(2, 6, 400)
    inside = rng.random(sizes.sum()) < 0.2
    margin = np.where(inside, 6.0, -6.0)[:, None] + rng.normal(0, 0.3, (len(inside), 4))
    margin[:, 0] = -6 + rng.normal(0, 0.3, len(inside))
    logits = np.stack([-margin / 2, margin / 2], -1)
    trace = Trace(
        logits,
        (0, 1, 2, 6),
        labels=None,
        lengths=sizes,
        ids=np.arange(len(sizes)),
        sizes=sizes,
        problem="token_classification",
        label_names=("O", "I-A"),
    )
    target = Guarantee(0.02, risk="missed").for_problem(trace.problem)
    assert paying_exits(trace, target, [ExitCost(layer=1, exit=0.2)]) == (1, 3)
