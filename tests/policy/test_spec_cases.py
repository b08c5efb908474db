"""Exit decisions of DeeBERT, RomeBERT, PABEE, ElasticBERT and ELBERT, run through their own code.

Layers count from 1. Where the original errs (untrained last off-ramp, overflow), the answer is the right one.
"""

import numpy as np
import pytest

from offramp.errors import Incompatible
from offramp.policy import Policy

# fmt: off
# ruff: noqa: E501
CASES = [  # name, policy, logits of each layer, layer to leave at, class or value to answer
    ("dee-01", "entropy:0.3", [[0.2, 0], [0, 1], [0, 3], [0, 4]], 3, 1),
    ("dee-03", "entropy:-1", [[0.2, 0], [0, 1], [0, 3], [0, 4]], 4, 1),
    ("dee-05", "entropy:0.7", [[0, 0], [0, 5], [5, 0]], 1, 0),
    ("dee-07", "entropy:0.8", [[0.1, 0, 0], [2, 0, 0], [4, 0, 0], [0, 6, 0]], 2, 0),
    ("dee-09", "entropy:0.01/0.01/0.5/0.5", [[0, 4], [0, 4], [0, 4], [4, 0]], 3, 1),
    ("dee-11", "entropy:0.3", [[0.2, 0], [0, 0.3], [0, 0.2], [0, 2]], 4, 1),  # the original errs here
    ("rome-01", "entropy:0.3", [[0.2, 0], [0, 1], [0, 3], [0, 4]], 3, 1),
    ("rome-03", "entropy:0.6", [[1, 0, 0.5], [0, 2.5, 0], [0, 4, 0], [0, 0, 4]], 2, 1),
    ("rome-05", "entropy:0.5", [[100, 0], [0, 1], [0, 3]], 1, 0),  # the original errs here
    ("rome-07", "entropy:0.7/0/0/0", [[0.2, 0], [0, 1], [0, 3], [0, 4]], 1, 0),
    ("pabee-01", "patience:1", [[1, 0]] * 12, 2, 0),
    ("pabee-03", "patience:3", [[1, 0], [1, 0], [0, 1], [0, 1], [0, 1], [0, 1], [1, 0], [1, 0]], 6, 1),
    ("pabee-05", "patience:12", [[1, 0]] * 12, 12, 0),
    ("pabee-07", "patience:0", [[1, 0], [1, 0], [1, 0], [0, 1]], 4, 1),
    ("pabee-09", "patience:1", [[0.51, 0.5], [0.5, 0.49], [9, 0], [0, 1]], 2, 0),
    ("pabee-11", "patience:2,tolerance=0.5", [[1], [1.5], [1.75], [1.875], [1.9]], 4, 1.875),
    ("pabee-13", "patience:3,tolerance=0.375", [[0], [0.25], [0.5], [0.75], [1], [1.25]], 4, 0.75),
    ("pabee-15", "patience:2", [[0.2, 0], [0.3, 0], [-0.1, 0], [-0.2, 0], [-0.3, 0], [1, 0]], 5, 1),
    ("elastic-e-01", "entropy:0.3", [[0.2, 0], [0, 1], [0, 3], [0, 4]], 3, 1),
    ("elastic-e-03", "entropy:0.7", [[0, 0], [0, 2], [2, 0]], 1, 0),
    ("elastic-e-05", "entropy:0.19", [[0, 1], [0, 3], [0, 3.3]], 3, 1),
    ("elastic-p-01", "patience:2", [[1, 0]] * 6, 3, 0),
    ("elastic-p-03", "patience:1", [[1, 0], [0, 1], [1, 0], [0, 1]], 4, 1),
    ("elastic-p-05", "patience:3,tolerance=0.94", [[1], [1.9375], [2.25], [2.5], [2.5]], 4, 2.5),
    ("elastic-p-06", "patience:0", [[1, 0], [1, 0], [0, 1]], 3, 1),
    ("elbert-01", "entropy:0.3,normalized=true", [[0, 2.5], [0, 3], [0, 5]], 2, 1),
    ("elbert-03", "window:3,shape=side,entropy=0.1,margin=0", [[0.2, 0], [0.3, 0], [0.1, 0], [0, 4]], 3, 0),
    ("elbert-05", "window:3,shape=side,entropy=0.1,margin=0", [[0.2, 0], [0, 0], [0.3, 0], [0.3, 0], [0.3, 0]], 5, 0),
    ("elbert-07", "window:1,shape=side,entropy=0.1,margin=0", [[-0.01, 0], [3, 0], [5, 0]], 1, 1),
    ("elbert-09", "window:5,shape=side,entropy=0.1,margin=0", [[0.2, 0], [0, 5], [0, 5], [0, 5], [0, 5]], 2, 1),
    ("elbert-11", "window:3,shape=monotone,entropy=0.1,margin=0", [[0.1, 0], [0.2, 0], [0.4, 0], [0.3, 0]], 3, 0),
    ("elbert-13", "window:3,shape=monotone,entropy=0.1,margin=0", [[-0.1, 0], [-0.2, 0], [-0.2, 0], [0.5, 0]], 3, 1),
    ("elbert-15", "window:3,shape=range,entropy=0.1,margin=0,range=0.05", [[0.4, 0], [0.5, 0], [0.55, 0], [2, 0]], 3, 0),
    ("elbert-17", "window:3,shape=range,entropy=0.1,margin=0,range=0.05", [[-0.1, 0], [0.1, 0], [0.05, 0], [0.1, 0], [0.1, 0]], 4, 0),
    ("elbert-18", "min_probability:0.1", [[0, 1], [0, 2], [0, 3]], 3, 1),
]

ONE_NUMBER = [  # regression under rules for classes: the originals leave at once, with the wrong answer
    ("dee-13", "entropy:0.1", [[1.5], [2.5], [3.5], [3.75]]),
    ("elastic-e-07", "entropy:0.1", [[1.5], [2.5], [3.5]]),
    ("elbert-19", "window:2,shape=side,entropy=0.1,margin=0", [[1], [2], [3], [4]]),
]

BORDERS = [  # of our own, where the rules are easily off by one
    ("entropy equal to the threshold stays", "entropy:0.6931471805599453", [[0, 0], [0, 0], [0, 9]], 3, 1),
    ("uniform over three equals ln 3 and stays", "entropy:1.0986122886681098", [[5, 5, 5], [0, 0, 9]], 2, 2),
    ("uniform is 1 when normalized", "entropy:1,normalized=true", [[7, 7, 7], [0, 1, 0], [0, 0, 9]], 2, 1),
    ("entropy 0 never leaves", "entropy:0", [[1000, 0], [1000, 0], [0, 1]], 3, 1),
    ("saturated logits leave first", "entropy:1e-30", [[1, 0], [0, 1000], [1, 0]], 2, 1),
    ("huge logits do not overflow", "entropy:0.1", [[3e38, -3e38], [0, 1]], 1, 0),
    ("a list's last value is ignored", "entropy:0/0/9", [[5, 0], [5, 0], [0, 5]], 3, 1),
    ("negative entry holds that layer", "entropy:-1/0.5/0", [[9, 0], [9, 0], [0, 9]], 2, 0),
    ("top 2 of many classes", "entropy:0.2,top=2", [[4, 0, 0, 0, 0, 0, 0], [9, 0, 0, 0, 0, 0, 0]], 1, 0),
    ("min probability equal stays", "min_probability:0.5", [[0, 0], [0, 0.1], [1, 0]], 2, 1),
    ("confidence equal stays", "confidence:0.5", [[0, 0], [0, 0.1], [1, 0]], 2, 1),
    ("margin equal stays", "margin:0", [[2, 2, 0], [0, 2.1, 2], [1, 0, 0]], 2, 1),
    ("patience can leave at the last but one", "patience:2", [[1, 0], [1, 0], [1, 0], [0, 1]], 3, 0),
    ("patience n - 1 needs the last layer", "patience:3", [[1, 0]] * 4, 4, 0),
    ("ties answer the first class", "patience:1", [[1, 1], [1, 0], [0, 1]], 2, 0),
    ("three classes", "patience:2", [[0, 1, 0], [0, 0, 1], [0, 0, 2], [0, 1, 3], [1, 0, 0]], 4, 2),
    ("tolerance 0 never agrees", "patience:1", [[1], [1], [1], [2]], 4, 2),
    ("a jump breaks the run", "patience:2,tolerance=0.5", [[1], [1.25], [2], [2.25], [2.5], [9]], 5, 2.5),
    ("window n equals all layers", "window:3,shape=side,entropy=0,margin=0", [[1, 0]] * 3, 3, 0),
    ("window longer than the model", "window:9,shape=side,entropy=0,margin=0", [[1, 0]] * 3, 3, 0),
    ("entropy 0 turns the first stage off", "window:2,shape=side,entropy=0,margin=0", [[99, 0], [0, 99], [0, 99], [9, 0]], 3, 1),
    ("first stage equal stays", "window:9,shape=side,entropy=1,margin=0", [[0, 0], [0, 0.1], [1, 0]], 2, 1),
    ("window 0 leaves by the first stage only", "window:0,shape=side,entropy=0.1,margin=0", [[1, 0], [1, 0], [9, 0], [1, 0]], 3, 0),
    ("margin narrows the sides", "window:2,shape=side,entropy=0,margin=0.2", [[0.5, 0], [0.5, 0], [2, 0], [2, 0], [0, 9]], 4, 0),
    ("monotone may not fall", "window:3,shape=monotone,entropy=0,margin=0", [[0.1, 0], [0.3, 0], [0.2, 0], [0.4, 0], [0.5, 0], [0, 1]], 5, 0),
    ("monotone starts beyond the margin", "window:2,shape=monotone,entropy=0,margin=0.1", [[0.1, 0], [1, 0], [2, 0], [0, 1]], 3, 0),
    ("monotone across the sides fails", "window:2,shape=monotone,entropy=0,margin=0", [[0, 0.5], [0.5, 0], [0.6, 0], [0, 1]], 3, 0),
    ("range 0 takes equal values", "window:3,shape=range,entropy=0,margin=0,range=0", [[1, 0], [2, 0], [2, 0], [2, 0], [0, 1]], 4, 0),
    ("range looks at the window only", "window:2,shape=range,entropy=0,margin=0,range=0.1", [[3, 0], [0.5, 0], [0.6, 0], [0, 1]], 3, 0),
    ("window of the predicted class", "window:2,shape=side,entropy=0,margin=0", [[0, 2, 0], [0, 0, 2], [0, 0, 2], [9, 0, 0]], 3, 2),
    ("no majority, no window", "window:2,shape=side,entropy=0,margin=0", [[0.1, 0, 0], [0.1, 0, 0], [0.1, 0, 0]], 3, 0),
]
# fmt: on


@pytest.mark.parametrize(
    ("text", "logits", "layer", "answer"), [pytest.param(*c[1:], id=c[0]) for c in CASES + BORDERS]
)
def test_exit_and_answer_are_as_specified(
    text: str, logits: list[list[float]], layer: int, answer: float
) -> None:
    decision = Policy.parse(text).decide([logits])
    given = decision.logits[0]
    assert decision.exits[0] + 1 == layer
    assert (given[0] if len(given) == 1 else given.argmax()) == answer


@pytest.mark.parametrize(("text", "logits"), [pytest.param(*case[1:], id=case[0]) for case in ONE_NUMBER])
def test_regression_under_a_rule_for_classes_is_refused_with_advice(
    text: str, logits: list[list[float]]
) -> None:
    with pytest.raises(Incompatible, match=r"patience:3,tolerance=0\.1"):
        Policy.parse(text).exits([logits])


def test_each_example_of_a_batch_leaves_by_its_own_patience() -> None:
    steady, turning = [[1.0, 0.0]] * 5, [[1.0, 0.0]] + [[0.0, 1.0]] * 4
    assert (Policy.parse("patience:2").exits([steady, turning]) + 1).tolist() == [3, 4]


def test_single_precision_decides_as_double_on_every_case() -> None:
    for name, text, logits, layer, _ in CASES:
        assert Policy.parse(text).exits(np.array([logits], np.float32))[0] + 1 == layer, name
