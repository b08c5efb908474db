"""Classifier: texts in, `Prediction`s out, with every text exiting at its own layer."""

import math
from collections.abc import Iterator, Sequence, Sized
from dataclasses import dataclass, field, replace
from typing import Any, TypedDict, Unpack, overload

import numpy as np

from offramp.errors import BadOption, Incompatible, explain_missing
from offramp.guarantees.operating_point import Decisions
from offramp.inference.runner import Pretrained, Runner
from offramp.inference.texts import Text, is_single
from offramp.policy import Decision, Policy, fold
from offramp.problems import Array
from offramp.runtimes import Runtime, Tokens


@dataclass(frozen=True, slots=True)
class Prediction:
    """The label of one text, and the layer that predicted it."""

    label: str | tuple[str, ...] | None
    """The most likely label; in a multi-label problem, all labels above 0.5. None in a regression, and if the
    logits are not finite."""
    score: float
    """The label's probability; in a multi-label problem, the probability of being right about the least certain
    label; in a regression, the value."""
    probabilities: dict[str, float]
    """The probability of every label; empty in a regression."""
    layer: int
    """The layer of the exit taken; layer 0 is the embeddings."""
    layers: int
    """The number of layers in the model."""
    finite: bool = True
    """False if an exit up to the one taken produced NaN or infinity; no text exits early at such an exit. Exits that
    the policy skips are not covered, and where one graph decides, only the logits returned are."""
    exits: tuple["Prediction", ...] = field(default=(), repr=False)
    """With `every_exit=True`, the prediction of every exit."""
    logits: tuple[float, ...] = field(default=(), repr=False)
    """One for every label, in the model's order; in a regression, the value alone."""
    decision: str | tuple[str, ...] | bool | None = None
    """At the model's operating point: yes or no; with several thresholds, the labels that reach theirs. Without one,
    the label."""


class PredictOptions(TypedDict, total=False):
    """The keyword arguments of `Classifier.predict`."""

    policy: Policy | str | None
    max_layer: int | None
    deadline_ms: float | None
    every_exit: bool


class Classifier(Pretrained):
    """Predicts the labels of texts, or of pairs, with the model and policy of a runner. Threads may share it."""

    def __init__(self, runner: Runner) -> None:
        if runner.runtime.info.problem.of_tokens:
            raise Incompatible("the model tags tokens; use Tagger, or `offramp predict`.")
        super().__init__(runner)

    @overload
    def predict(self, texts: Text, **options: Unpack[PredictOptions]) -> Prediction: ...
    @overload
    def predict(self, texts: Iterator[Any], **options: Unpack[PredictOptions]) -> Iterator[Prediction]: ...
    @overload
    def predict(self, texts: Sequence[Any], **options: Unpack[PredictOptions]) -> list[Prediction]: ...

    def predict(
        self,
        texts: Any,
        *,
        policy: Policy | str | None = None,
        max_layer: int | None = None,
        deadline_ms: float | None = None,
        every_exit: bool = False,
    ) -> Prediction | list[Prediction] | Iterator[Prediction]:
        """Predict one text, several, or a stream of texts, in order.

        A text is a string, or a pair as a tuple of two strings. A list, array or column gives a list; all items
        are checked before any of them runs. An iterator gives an iterator that reads one window at a time; a bad
        item raises after the predictions of the items before it.

        Args:
            texts: one text, several, or an iterator.
            policy: replaces the classifier's policy for this call, for example "patience:3".
            max_layer: the deepest layer to run; texts that have not exited by then exit there.
            deadline_ms: milliseconds after which texts exit with the prediction of the last exit they passed;
                every text passes the first exit. Counted from the call, or for a stream from reading each window.
            every_exit: add the prediction of every exit, which runs all layers.
        """
        runner = self.runner
        if every_exit and deadline_ms is not None:
            raise BadOption("every_exit=True runs all layers, so it cannot be combined with deadline_ms.")
        policy = runner.resolve_policy(policy, max_layer)

        def predict(part: Sequence[Text], deadline: float) -> Iterator[Prediction]:
            return predict_tokens(runner, runner.tokenizer(part), policy, deadline, every_exit)

        single, is_stream = is_single(texts), not isinstance(texts, Sized)
        checked = runner.check_texts([texts] if single else texts)
        predictions = runner.predict_windows(checked, is_stream, deadline_ms, predict)
        if is_stream:
            return predictions
        return next(predictions) if single else [*predictions]

    def sklearn(self, policy: Policy | str | None = None, classes: Sequence[Any] | None = None) -> Any:
        """A fitted scikit-learn estimator; it predicts `classes` instead of label names if they are given."""
        with explain_missing("Classifier.sklearn"):
            from offramp.inference.estimator import estimator

        return estimator(self, policy, classes)


def predict_tokens(
    runner: Runner,
    tokens: list[Tokens],
    policy: Policy,
    deadline: float | Array = math.inf,
    every_exit: bool = False,
) -> Iterator[Prediction]:
    """A prediction for each example; `policy` is resolved, and `deadline` is as in `Engine.run`."""
    if every_exit:
        return predict_every_exit(runner, tokens, policy)
    return predictions(runner.engine.run(tokens, policy, deadline), runner.runtime)


def predict_every_exit(runner: Runner, tokens: list[Tokens], policy: Policy) -> Iterator[Prediction]:
    logits, gates = runner.engine.trace(tokens)
    model = gates, runner.runtime.info.exits, runner.runtime.info.decisions
    folded = fold(policy.rule, logits, *model).logits
    finite = np.isfinite(logits.sum(-1))
    every_exit = [
        predictions(Decision(np.full(len(tokens), exit), folded[:, exit], finite[:, exit]), runner.runtime)
        for exit in range(logits.shape[1])
    ]
    taken = predictions(policy.decide(logits, *model), runner.runtime)
    for prediction, *exits in zip(taken, *every_exit, strict=True):
        yield replace(prediction, exits=tuple(exits))


def predictions(decision: Decision, runtime: Runtime[Any]) -> Iterator[Prediction]:
    """A prediction for each example of a decision."""
    info = runtime.info
    chances = info.problem.probabilities(decision.logits)
    labels, scores = info.problem.named(decision.logits, chances, info.labels)
    decided = labels
    if isinstance(info.decisions, Decisions):
        decided = info.decisions.named_decisions(decision.logits)
    names = info.labels[: chances.shape[-1]]
    outcomes = decision.logits, decision.exits, decision.finite, chances
    for row, (logits, exit, finite, shares) in enumerate(
        zip(*(outcome.tolist() for outcome in outcomes), strict=True)
    ):
        known = all(map(math.isfinite, logits))
        yield Prediction(
            label=labels[row] if known else None,
            score=scores[row] if known else math.nan,
            probabilities=dict(zip(names, shares, strict=True)),
            layer=info.exits[exit],
            layers=info.exits[-1],
            finite=finite,
            logits=tuple(logits),
            decision=decided[row] if known else None,
        )
