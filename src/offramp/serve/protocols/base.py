"""What the protocols share: the body of a request, and the call for the batcher that it becomes."""

import math
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal
from urllib.parse import quote, unquote

import numpy as np
from fastapi import Response
from pydantic_core import to_json

from offramp.errors import NotFinite, UnknownName
from offramp.inference import Classifier, Prediction
from offramp.policy.ranking import RankRule
from offramp.problems import MULTI_LABEL, SINGLE_LABEL, Problem
from offramp.serve.batcher import Reply
from offramp.serve.error_responses import ErrorShape
from offramp.serve.schema import ExitOptions, parse_json, validate

Activation = Literal["sigmoid", "softmax", "none"]
MOST_LAYERS = 512
"""How many exit layers a header lists; proxies limit its length."""


@dataclass(frozen=True)
class ServedModel:
    name: str
    classifier: Classifier
    rank_rule: RankRule | None = None

    @property
    def labels(self) -> tuple[str, ...]:
        return self.classifier.runtime.labels

    @property
    def problem_type(self) -> Problem:
        return self.classifier.runtime.problem_type

    def check_name(self, name: str | None) -> None:
        """A request may omit the name; naming another model is an error."""
        if name not in (None, self.name):
            raise UnknownName(f"the model {name!r} is not served here; this is {self.name!r}.")

    def scores(self, prediction: Prediction, activation: Activation | None = None) -> list[float]:
        """A score for each label. By default the probabilities: a softmax over several labels of which one is
        right, a sigmoid of every label otherwise."""
        if activation == "none":
            return [*prediction.logits]
        one_is_right = self.problem_type == SINGLE_LABEL and len(self.labels) > 1
        softmax = activation == "softmax" if activation else one_is_right
        logits = np.array([prediction.logits])
        problem = SINGLE_LABEL if softmax else MULTI_LABEL
        scores: list[float] = problem.probabilities(logits)[0].tolist()
        return scores


@dataclass(frozen=True)
class Body:
    """A request as it came."""

    content: bytes
    headers: Mapping[str, str]
    id: str
    path_parts: Mapping[str, str]
    """The variable parts of the path."""
    arrived: float
    """In seconds of `time.monotonic`."""

    @cached_property
    def json(self) -> Any:
        return parse_json(self.content)

    def has(self, name: str) -> bool:
        return isinstance(self.json, dict) and name in self.json

    def exit_options(self) -> ExitOptions:
        """From headers, for protocols with no place for them in the body."""
        found = {
            name: self.headers.get(f"x-offramp-{name.replace('_', '-')}") for name in ExitOptions.model_fields
        }
        given = {name: unquote(value) for name, value in found.items() if value is not None}
        return validate(ExitOptions, given, strict=False)  # a header is text


@dataclass(frozen=True)
class Call:
    """A request, translated for the batcher."""

    texts: Sequence[Any]
    """The batcher checks them."""
    respond: Callable[[Reply], Response]
    exit_options: ExitOptions
    trace: bool = False
    truncate: bool = True
    mixed: bool = False
    top_k: int | None = None
    """The texts are documents of one query, of which this many are wanted."""


@dataclass(frozen=True)
class Operation:
    """A kind of request in a protocol."""

    translate: Callable[[ServedModel, Body], Call]
    errors: ErrorShape


def json_response(content: Any, reply: Reply) -> Response:
    return Response(to_json(content), headers=exit_headers(reply), media_type="application/json")


def exit_headers(reply: Reply) -> dict[str, str]:
    """What early exits did, outside the body: strict clients refuse fields that they do not know."""
    layers = [prediction.layer for prediction in reply.predictions]
    headers = {
        "x-offramp-policy": quote(reply.policy, safe=string.punctuation.replace("%", "") + " "),
        "x-offramp-mean-layer": f"{sum(layers) / len(layers):.2f}",
    }
    if reply.rung is not None:
        headers["x-offramp-rung"] = str(reply.rung)
    if len(layers) <= MOST_LAYERS:
        headers["x-offramp-layers"] = ",".join(map(str, layers))
    return headers


def check_finite(reply: Reply) -> None:
    """JSON has no NaN, and these protocols have no null in its place."""
    for index, prediction in enumerate(reply.predictions):
        if not math.isfinite(sum(prediction.logits)):
            raise NotFinite(f"the model returned NaN or infinity for item {index}.")
