"""Classifier: texts in, predictions out, with every text leaving the model at its own layer."""

import math
import os
import time
from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, Self, TypedDict, Unpack, overload

import numpy as np

from offramp.engine import WINDOW, Engine
from offramp.errors import BadOption, explain_missing
from offramp.folder import SavedTokenizer, copy_model, find_model, is_exported, load_model, push_model
from offramp.inference.prediction import Prediction, predictions
from offramp.inference.texts import BatchTokenizer, Text, check_texts, chunks, is_single
from offramp.policy import Decision, Policy, check_certificate, fold
from offramp.problems import Array
from offramp.row_hashes import load_hashes
from offramp.rules import RULES
from offramp.runtimes import Runtime, Tokens, runtime_of, text_length

NEVER = Policy(RULES["never"]())
MIN_LENGTH = 8
"""The smallest `max_length`: special tokens take up to four."""


class PredictOptions(TypedDict, total=False):
    """The keyword arguments of `Classifier.predict`."""

    policy: Policy | str | None
    max_layer: int | None
    deadline_ms: float | None
    every_exit: bool


class Classifier:
    """A model with exits, its tokenizer, and a policy.

    `model` is an ExitModel or a runtime (`Runtime`); `tokenizer` is a fast transformers tokenizer or a
    `tokenizers.Tokenizer`. The default policy is the one stored with the model, or `never`. Threads may share a
    classifier.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        policy: Policy | str | None = None,
        *,
        window: int = WINDOW,
        batch_tokens: int | None = None,
        max_length: int | None = None,
        training_rows: Array | None = None,
        folder: Path | None = None,
    ) -> None:
        if max_length is not None and max_length < MIN_LENGTH:
            raise BadOption(f"max_length={max_length} must be at least {MIN_LENGTH} tokens.")
        self.runtime = runtime_of(model)
        self.folder = folder
        """The folder that the model was loaded from, if any."""
        self.training_rows = training_rows  # hashes, sorted; see `offramp.row_hashes`
        self.engine = Engine(self.runtime, window, batch_tokens)
        self.tokenizer = BatchTokenizer(tokenizer, text_length(self.runtime, max_length))
        self.policy = self.resolve_policy(policy or self.runtime.info.policy or NEVER)
        if self.policy.certificate is not None:  # computing a fingerprint is slow
            self.policy = check_certificate(
                self.policy,
                self.runtime.fingerprint(),
                self.runtime.precision,
                self.tokenizer.max_length,
            )

    @classmethod
    def from_pretrained(
        cls,
        path: str | PathLike[str],
        policy: Policy | str | None = None,
        *,
        device: Any = None,
        autocast: Any = None,
        threads: int | None = None,
        window: int = WINDOW,
        batch_tokens: int | None = None,
        max_length: int | None = None,
        **options: Any,
    ) -> Self:
        """Load a saved model, which runs in PyTorch, or an exported one, which runs in ONNX Runtime.

        Args:
            path: a folder or a hub name.
            policy: replaces the stored policy, for example "entropy:0.3".
            device: "cpu", "cuda", ...; the CPU by default. PyTorch only.
            autocast: a dtype to compute in, such as torch.bfloat16; the weights keep their own. PyTorch only.
            threads: CPU threads; in PyTorch, for the whole process.
            window: the number of texts that run together.
            batch_tokens: the most tokens in a micro-batch, padding included.
            max_length: the number of tokens at which texts are truncated; by default as in training, or the
                model's limit if that is unknown.
            options: passed to transformers' `from_pretrained`, for example `revision` or `dtype`. PyTorch only.
        """
        folder = find_model(os.fspath(path), options.get("revision"))
        if is_exported(folder):
            unknown = [*options, *(["device"] if device else []), *(["autocast"] if autocast else [])]
            if unknown:
                raise BadOption(
                    f"{path} is an exported model, which runs on the CPU in ONNX Runtime and does not support "
                    f"{', '.join(unknown)}."
                )
            from offramp.runtimes.onnx import OnnxRuntime

            onnx = OnnxRuntime(folder, threads)
            runtime: Runtime[Any] = onnx
            tokenizer: Any = SavedTokenizer.load(folder, onnx.manifest.tokenizer)
        else:
            from offramp.runtimes.torch import TorchRuntime

            options.pop("revision", None)
            model, tokenizer = load_model(folder, **options)
            runtime = TorchRuntime(model, device, autocast, threads)
        sizes: dict[str, Any] = {"window": window, "batch_tokens": batch_tokens, "max_length": max_length}
        return cls(runtime, tokenizer, policy, **sizes, training_rows=load_hashes(folder), folder=folder)

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
            max_layer: the deepest layer to run; texts that have not left by then leave there.
            deadline_ms: milliseconds after which texts leave with the prediction of the last exit they passed;
                every text passes the first exit. Counted from the call, or for a stream from reading each window.
            every_exit: add the prediction of every exit, which runs all layers.
        """
        if every_exit and deadline_ms is not None:
            raise BadOption("every_exit=True runs all layers, so it cannot be combined with deadline_ms.")
        if policy is not None or max_layer is not None:  # its own is checked already
            policy = self.resolve_policy(policy or self.policy, max_layer)
        policy = policy or self.policy
        if not isinstance(texts, Sized):
            return self.stream(self.check_texts(texts), policy, deadline_ms, every_exit)
        deadline, single = deadline_from_now(deadline_ms), is_single(texts)
        found = [
            prediction
            for part in chunks([*self.check_texts([texts] if single else texts)], self.engine.window)
            for prediction in self.predict_tokens(self.tokenizer(part), policy, deadline, every_exit)
        ]
        return found[0] if single else found

    def decide(self, texts: Iterable[Any], policy: Policy | str | None = None) -> Decision:
        """Like `predict` for several texts, as arrays: the exits taken, their logits, and whether all were finite."""
        policy = self.resolve_policy(policy or self.policy)
        parts = [*chunks([*self.check_texts(texts)], self.engine.window)] or [[]]
        decisions = [self.engine.run(self.tokenizer(part), policy) for part in parts]
        return Decision(
            exits=np.concatenate([decision.exits for decision in decisions]),
            logits=np.concatenate([decision.logits for decision in decisions]),
            finite=np.concatenate([decision.finite for decision in decisions]),
        )

    def check_texts(self, texts: Any) -> Iterator[Text]:
        """The texts or pairs, whichever the model was trained on; anything else is a `BadData`."""
        return check_texts(texts, self.runtime.info.trained_on_pairs)

    def sklearn(self, policy: Policy | str | None = None, classes: Sequence[Any] | None = None) -> Any:
        """A fitted scikit-learn estimator; it predicts `classes` instead of label names if they are given."""
        with explain_missing("Classifier.sklearn"):
            from offramp.inference.estimator import estimator

        return estimator(self, policy, classes)

    def save_pretrained(self, path: str | PathLike[str]) -> None:
        """Copy the folder that the model was loaded from; `store_policy` changes the policy of the copy."""
        copy_model(self.folder, path)

    def push_to_hub(self, repo_id: str, **options: Any) -> str:
        """Upload the folder that the model was loaded from, and return the address of the commit.

        `options` are `token`, `private`, and those of `HfApi.upload_folder`, such as `commit_message`.
        """
        return push_model(self.folder, repo_id, **options)

    def resolve_policy(self, policy: Policy | str, max_layer: int | None = None) -> Policy:
        """Parse a policy, resolve class names, apply `max_layer`, and check it against this model."""
        policy = Policy.resolve(policy, self.runtime.info.policy)
        if max_layer is not None:
            own = max_layer if policy.max_layer is None else policy.max_layer
            policy = replace(policy, max_layer=min(max_layer, own))
        info = self.runtime.info
        policy.check(info.exits, info.problem, info.has_gate, len(info.labels))
        return policy

    def stream(
        self, texts: Iterator[Text], policy: Policy, deadline_ms: float | None, every_exit: bool
    ) -> Iterator[Prediction]:
        for part in chunks(texts, self.engine.window):
            deadline = deadline_from_now(deadline_ms)
            yield from self.predict_tokens(self.tokenizer(part), policy, deadline, every_exit)

    def predict_tokens(
        self,
        tokens: list[Tokens],
        policy: Policy,
        deadline: float | Array = math.inf,
        every_exit: bool = False,
    ) -> Iterator[Prediction]:
        """Like `predict`, for tokens; `policy` comes from `resolve_policy`, `deadline` is as in `Engine.run`."""
        if every_exit:
            return self.predict_every_exit(tokens, policy)
        return predictions(self.engine.run(tokens, policy, deadline), self.runtime)

    def predict_every_exit(self, tokens: list[Tokens], policy: Policy) -> Iterator[Prediction]:
        logits, gates = self.engine.trace(tokens)
        model = gates, self.runtime.info.exits, self.runtime.info.problem
        folded = fold(policy.rule, logits, *model).logits
        finite = np.isfinite(logits.sum(-1))
        every_exit = [
            predictions(Decision(np.full(len(tokens), exit), folded[:, exit], finite[:, exit]), self.runtime)
            for exit in range(logits.shape[1])
        ]
        taken = predictions(policy.decide(logits, *model), self.runtime)
        for prediction, *exits in zip(taken, *every_exit, strict=True):
            yield replace(prediction, exits=tuple(exits))


def deadline_from_now(deadline_ms: float | None) -> float:
    """The `time.monotonic()` value at which the deadline passes."""
    return math.inf if deadline_ms is None else time.monotonic() + deadline_ms / 1000
