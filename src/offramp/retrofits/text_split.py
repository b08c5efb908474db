"""Splitting the texts of a retrofit into those to learn from, to calibrate on and to test on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import ceil
from typing import Any

import numpy as np

from offramp.data.files import text_columns
from offramp.errors import BadData
from offramp.files import digest
from offramp.guarantees import Guarantee
from offramp.guarantees.bounds import binomial_examples
from offramp.inference.texts import Text
from offramp.measuring.calibrate import FIT_MOST, FIT_SHARE
from offramp.measuring.curve import parse_rule
from offramp.problems import Array

CALIBRATION, MOST_CALIBRATION = 0.3, 12_000
TEST, MOST_TEST = 0.2, 2000
"""Shares of the texts, and the most that are used: beyond these, further texts help more to learn from."""


@dataclass(frozen=True)
class TextSet:
    """Some of the texts, with their labels if there are any."""

    texts: list[Text]
    labels: Array | None = None

    def __len__(self) -> int:
        return len(self.texts)

    def columns(self) -> dict[str, list[Any]]:
        """As columns of a data set."""
        labels = {} if self.labels is None else {"label": self.labels.tolist()}
        return {**text_columns(self.texts), **labels}


@dataclass(frozen=True)
class TextSplit:
    learn: TextSet
    calibration: TextSet
    test: TextSet

    def sizes(self) -> dict[str, int]:
        return {"learn": len(self.learn), "calibration": len(self.calibration), "test": len(self.test)}


def split_texts(texts: Sequence[Text], labels: Array | None, seed: int) -> TextSplit:
    order = np.random.default_rng(seed).permutation(len(texts))
    test = min(int(TEST * len(texts)), MOST_TEST)
    calibration = min(int(CALIBRATION * len(texts)), MOST_CALIBRATION)
    rows = (
        np.sort(order[test + calibration :]),
        np.sort(order[test : test + calibration]),
        np.sort(order[:test]),
    )
    return TextSplit(
        *(
            TextSet([texts[row] for row in chosen], None if labels is None else labels[chosen])
            for chosen in rows
        )
    )


def split_queries(pairs: Sequence[tuple[str, str]], seed: int) -> TextSplit:
    """Like `split_texts`, with all pairs of a query in the same part."""
    queries = [*dict.fromkeys(query for query, _ in pairs)]
    order = np.random.default_rng(seed).permutation(len(queries)).tolist()
    test, calibration = int(TEST * len(queries)), int(CALIBRATION * len(queries))
    part = {
        queries[index]: (place >= test) + (place >= test + calibration) for place, index in enumerate(order)
    }
    rows: list[list[Text]] = [[pair for pair in pairs if part[pair[0]] == which] for which in range(3)]
    return TextSplit(learn=TextSet(rows[2]), calibration=TextSet(rows[1]), test=TextSet(rows[0]))


def check_enough(texts: Sequence[Text], target: Guarantee, rules: Sequence[str], precisions: int) -> None:
    """Too few texts to prove the guarantee, even without errors, are an error."""
    if not texts:
        raise BadData("there are no texts.")
    if len(texts) > len(set(texts)) == 1:
        raise BadData(
            f"all {len(texts)} texts are the same; a retrofit needs texts like those the model will see."
        )
    bounds = target.epsilon.values() if isinstance(target.epsilon, Mapping) else [target.epsilon]
    delta = target.delta / (len(rules) * precisions)  # they share it
    proof = sum(binomial_examples([0.0], bound, delta) or MOST_CALIBRATION for bound in bounds)
    if all(not parse_rule(rule).rule.is_fitted for rule in rules):
        proof = min(ceil(proof * FIT_SHARE / (FIT_SHARE - 1)), proof + FIT_MOST)
    wanted = f"a bound of {min(bounds):g} takes {proof} to calibrate on"
    if proof > MOST_CALIBRATION:
        raise BadData(f"{wanted}, and at most {MOST_CALIBRATION} are used. Allow a larger bound.")
    needed = ceil(proof / CALIBRATION) + 1
    if len(texts) < needed:
        raise BadData(
            f"not enough texts ({len(texts)}): {wanted}, so {needed} in all, and more if predictions change. "
            "Add texts, or allow a larger bound."
        )


def hash_texts(texts: Sequence[Text], labels: Array | None) -> str:
    """A hash of the texts and labels, to recognize an interrupted retrofit."""
    encoded = (repr(text).encode("utf-8", "surrogatepass") for text in texts)
    return digest(chain(encoded, [] if labels is None else [labels.tobytes()]))
