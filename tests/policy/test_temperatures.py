"""Temperatures change how sure an exit looks to the rule, alike in the live and in the offline half."""

from dataclasses import replace

import numpy as np
import pytest

from offramp.errors import BadPolicy, Incompatible
from offramp.policy import Policy, fold, reached

LOGITS = np.random.default_rng(0).normal(0, 2, (50, 3, 4)).astype(np.float32)
COOL = Policy.parse("confidence:0.6,temperatures=2/1.5/1")


def test_a_rule_sees_logits_divided_by_the_temperature_of_their_exit() -> None:
    divided = LOGITS / np.array([2, 1.5, 1], np.float32)[:, None]
    plain = replace(COOL, temperatures=None)
    assert COOL.exits(LOGITS).tolist() == plain.exits(divided).tolist()
    assert COOL.exits(LOGITS).tolist() != plain.exits(LOGITS).tolist()


def test_answers_stay_the_same_class_at_the_same_exit() -> None:
    done = COOL.decide(LOGITS)
    assert (done.logits.argmax(-1) == LOGITS[np.arange(50), done.exits].argmax(-1)).all()


def test_a_sweep_over_tempered_logits_is_the_live_decision() -> None:
    ready = fold(COOL.rule, COOL.tempered(LOGITS)).readiness
    leaves = reached(COOL.rule, ready, 0.6)
    leaves[:, -1] = True
    assert leaves.argmax(1).tolist() == COOL.exits(LOGITS).tolist()


def test_temperatures_come_back_from_text_and_json() -> None:
    assert Policy.parse(str(COOL)) == COOL
    assert Policy.from_json(COOL.to_json()) == COOL
    assert str(COOL) == "confidence:0.6,temperatures=2/1.5/1"


def test_impossible_temperatures_are_refused() -> None:
    with pytest.raises(BadPolicy, match="above 0"):
        Policy.parse("confidence:0.6,temperatures=1/0/1")
    with pytest.raises(Incompatible, match="2 temperatures for 3 exits"):
        Policy.parse("confidence:0.6,temperatures=1/2").exits(LOGITS)
