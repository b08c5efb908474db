"""Runner: a model with its tokenizer and policy; what classifiers, rerankers and taggers have."""

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np

from offramp.engine import WINDOW, Engine
from offramp.errors import BadOption
from offramp.folder import copy_model, find_model, is_exported, load_model, push_model
from offramp.folder.manifest import SavedTokenizer
from offramp.guarantees.certificate import check_certificate
from offramp.inference.texts import BatchTokenizer, Text, check_texts, chunks
from offramp.policy import Decision, Policy
from offramp.problems import Array
from offramp.row_hashes import load_hashes
from offramp.rules import RULES
from offramp.runtimes import Runtime, runtime_of, text_length
from offramp.tags import token_kinds

Outcome = TypeVar("Outcome")

NEVER = Policy(RULES["never"]())
MIN_LENGTH = 8
"""The smallest `max_length`: special tokens take up to four."""


class Runner:
    """A model with exits, its tokenizer, and a policy. Threads may share a runner.

    Args:
        model: an ExitModel or a runtime (`Runtime`).
        tokenizer: a fast transformers tokenizer or a `tokenizers.Tokenizer`.
        policy: by default the one stored with the model, or `never`.
        window: the number of texts that run together.
        batch_tokens: the most tokens in a micro-batch, padding included.
        max_length: the number of tokens at which texts are truncated; by default as in training, or the model's
            limit if that is unknown.
        training_rows: hashes of the texts that the model was trained on, sorted; see `offramp.row_hashes`.
        folder: the folder that the model was loaded from, if any.
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
        self.training_rows = training_rows
        self.tokenizer = BatchTokenizer(tokenizer, text_length(self.runtime, max_length))
        kinds = None
        if self.runtime.info.problem.of_tokens:  # rules for taggers read the tokens that begin a word
            kinds = token_kinds(self.tokenizer.rust, self.tokenizer.unknown_token)
        self.engine = Engine(self.runtime, window, batch_tokens, kinds)
        self.policy = self.resolve_policy(policy or self.runtime.info.policy or NEVER)
        if self.policy.certificate is not None:  # computing a fingerprint is slow
            self.policy = check_certificate(
                self.policy,
                self.runtime.fingerprint(),
                self.runtime.precision,
                self.tokenizer.max_length,
                decision=str(self.runtime.info.decide),
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
            window, batch_tokens, max_length: as above.
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
            from offramp.runtimes.onnx import open_folder

            exported = open_folder(folder, threads)
            runtime: Runtime[Any] = exported
            tokenizer: Any = SavedTokenizer.load(folder, exported.manifest.tokenizer)
        else:
            from offramp.runtimes.torch import TorchRuntime

            options.pop("revision", None)
            model, tokenizer = load_model(folder, **options)
            runtime = TorchRuntime(model, device, autocast, threads)
        return cls(
            runtime,
            tokenizer,
            policy,
            window=window,
            batch_tokens=batch_tokens,
            max_length=max_length,
            training_rows=load_hashes(folder),
            folder=folder,
        )

    def resolve_policy(self, policy: Policy | str | None = None, max_layer: int | None = None) -> Policy:
        """Parse a policy, by default the runner's own, apply `max_layer`, and check it against this model."""
        if policy is None and max_layer is None:
            return self.policy  # checked already
        info = self.runtime.info
        policy = Policy.resolve(self.policy if policy is None else policy, info.policy)
        if max_layer is not None:
            deepest = max_layer if policy.max_layer is None else min(max_layer, policy.max_layer)
            policy = replace(policy, max_layer=deepest)
        return info.check_policy(policy)

    def check_texts(self, texts: Any) -> Iterator[Text]:
        """The texts or pairs, whichever the model was trained on; anything else is a `BadData`."""
        return check_texts(texts, self.runtime.info.trained_on_pairs)

    def predict_windows(
        self,
        texts: Iterable[Text],
        is_stream: bool,
        deadline_ms: float | None,
        predict: Callable[[Sequence[Any], float], Iterable[Outcome]],
    ) -> Iterator[Outcome]:
        """What `predict` makes of the texts of each window and their deadline.

        In a stream, windows are read one by one and have a deadline each; otherwise all texts are read, and so
        checked, before any of them runs.
        """
        deadline = deadline_from_now(deadline_ms)
        for part in chunks(texts if is_stream else [*texts], self.engine.window):
            yield from predict(part, deadline_from_now(deadline_ms) if is_stream else deadline)

    def decide(self, texts: Iterable[Any], policy: Policy | str | None = None) -> Decision:
        """For several texts, as arrays: the exits taken, their logits, and whether all were finite."""
        policy = self.resolve_policy(policy)
        parts = [*chunks([*self.check_texts(texts)], self.engine.window)] or [[]]
        decisions = [self.engine.run(self.tokenizer(part), policy) for part in parts]
        return Decision(
            exits=np.concatenate([decision.exits for decision in decisions]),
            logits=np.concatenate([decision.logits for decision in decisions]),
            finite=np.concatenate([decision.finite for decision in decisions]),
        )


class Pretrained:
    """Loading and saving, which are the same for everything that has a runner."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner

    @classmethod
    def from_pretrained(
        cls, path: str | PathLike[str], policy: Policy | str | None = None, **options: Any
    ) -> Self:
        """Load a model from a folder or the hub; arguments are those of `Runner.from_pretrained`."""
        return cls(Runner.from_pretrained(path, policy, **options))

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
