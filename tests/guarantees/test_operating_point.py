"""How scores become decisions."""

import numpy as np
import pytest

from offramp.errors import BadOption, UnknownName
from offramp.guarantees.operating_point import OperatingPoint

SCORES = np.array([[0.6, 0.3, 0.1], [0.2, 0.3, 0.5]])
NAMES = ["ham", "spam", "phish"]


@pytest.mark.parametrize(
    ("text", "decisions"),
    [
        ("", [0, 2]),
        ("spam>=0.3", [1, 1]),
        ("phish >= 0.4", [0, 1]),
        ("phish", [0, 1]),
        ("spam>=0.31,phish>=0.1", [[0, 1], [0, 1]]),
    ],
)
def test_scores_are_decided_about_at_thresholds(text: str, decisions: list) -> None:
    assert OperatingPoint.parse(text).decide(SCORES, NAMES).tolist() == decisions


def test_exits_are_decided_about_all_at_once() -> None:
    assert OperatingPoint.parse("spam>=0.3").decide(SCORES[None], NAMES).tolist() == [[1, 1]]


def test_a_number_is_cut_whatever_its_name() -> None:
    assert OperatingPoint.parse("stars>=2.5").decide(np.array([[2.4], [2.5]]), [""]).tolist() == [0, 1]


@pytest.mark.parametrize("text", ["", "spam>=0.3", "spam", "a>=0.5,b>=0.25"])
def test_the_text_form_is_read_back(text: str) -> None:
    assert str(OperatingPoint.parse(text)) == text


@pytest.mark.parametrize("text", ["spam>=high", "spam>=nan", "spam,ham", "spam,ham>=0.5"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(BadOption, match="decide="):
        OperatingPoint.parse(text)


def test_an_unknown_label_is_named_with_what_was_meant() -> None:
    with pytest.raises(UnknownName, match="'sapm'; did you mean spam"):
        OperatingPoint.parse("sapm>=0.5").decide(SCORES, NAMES)
