"""Classifier: texts in, predictions out, with every text exiting at its own layer."""

import math
import time
from collections.abc import Iterator, Sequence, Sized
from os import PathLike
from typing import Any, Self, TypedDict, Unpack, overload

from offramp.errors import BadOption, Incompatible, explain_missing
from offramp.folder import copy_model, push_model
from offramp.inference.prediction import Prediction, predict_tokens
from offramp.inference.runner import Runner
from offramp.inference.texts import Text, chunks, is_single
from offramp.policy import Policy


class PredictOptions(TypedDict, total=False):
    """The keyword arguments of `Classifier.predict`."""

    policy: Policy | str | None
    max_layer: int | None
    deadline_ms: float | None
    every_exit: bool


class Classifier:
    """Predicts the labels of texts, or of pairs, with the model and policy of a runner. Threads may share it."""

    def __init__(self, runner: Runner) -> None:
        if runner.runtime.info.problem.of_tokens:
            raise Incompatible("the model tags tokens; use Tagger, or `offramp predict`.")
        self.runner = runner

    @classmethod
    def from_pretrained(
        cls, path: str | PathLike[str], policy: Policy | str | None = None, **options: Any
    ) -> Self:
        """Load a model from a folder or the hub; arguments are those of `Runner.from_pretrained`."""
        return cls(Runner.from_pretrained(path, policy, **options))

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
        if policy is not None or max_layer is not None:  # its own is checked already
            policy = runner.resolve_policy(policy or runner.policy, max_layer)
        policy = policy or runner.policy
        if not isinstance(texts, Sized):
            return self.stream(runner.check_texts(texts), policy, deadline_ms, every_exit)
        deadline, single = deadline_from_now(deadline_ms), is_single(texts)
        predicted = [
            prediction
            for part in chunks([*runner.check_texts([texts] if single else texts)], runner.engine.window)
            for prediction in predict_tokens(runner, runner.tokenizer(part), policy, deadline, every_exit)
        ]
        return predicted[0] if single else predicted

    def stream(
        self, texts: Iterator[Text], policy: Policy, deadline_ms: float | None, every_exit: bool
    ) -> Iterator[Prediction]:
        runner = self.runner
        for part in chunks(texts, runner.engine.window):
            deadline = deadline_from_now(deadline_ms)
            yield from predict_tokens(runner, runner.tokenizer(part), policy, deadline, every_exit)

    def sklearn(self, policy: Policy | str | None = None, classes: Sequence[Any] | None = None) -> Any:
        """A fitted scikit-learn estimator; it predicts `classes` instead of label names if they are given."""
        with explain_missing("Classifier.sklearn"):
            from offramp.inference.estimator import estimator

        return estimator(self, policy, classes)

    def save_pretrained(self, path: str | PathLike[str]) -> None:
        """Copy the folder that the model was loaded from; `store_policy` changes the policy of the copy."""
        copy_model(self.runner.folder, path)

    def push_to_hub(self, repo_id: str, **options: Any) -> str:
        """Upload the folder that the model was loaded from, and return the address of the commit.

        `options` are `token`, `private`, and those of `HfApi.upload_folder`, such as `commit_message`.
        """
        return push_model(self.runner.folder, repo_id, **options)


def deadline_from_now(deadline_ms: float | None) -> float:
    """The `time.monotonic()` value at which the deadline passes."""
    return math.inf if deadline_ms is None else time.monotonic() + deadline_ms / 1000
