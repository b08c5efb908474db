"""Classifier: texts in, predictions out, each text leaving the model at its own layer."""

import math
import time
from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, Self, TypedDict, Unpack, overload

import numpy as np

from offramp.classifier.collecting import collect
from offramp.classifier.prediction import Prediction, predictions
from offramp.classifier.texts import BatchTokenizer, Text, checked, chunks, is_one
from offramp.criteria import CRITERIA
from offramp.engine import WINDOW, Engine
from offramp.errors import BadOption
from offramp.policy import Decision, Policy, check_certificate, fold
from offramp.stages import Array, Stages, Tokens
from offramp.store import SavedTokenizer, is_exported, load_model
from offramp.trace import Trace

NEVER = Policy(CRITERIA["never"]())
SHORTEST = 8
"""Tokens to which texts may be cut at the shortest; a tokenizer's own take up to four of them."""


class Options(TypedDict, total=False):
    """What `Classifier.predict` takes besides texts."""

    policy: Policy | str | None
    max_layer: int | None
    deadline_ms: float | None
    trace: bool


class Classifier:
    """A model with exits, its tokenizer, and the policy that decides who leaves where.

    `model` is an ExitModel, or the stages of one; `tokenizer` a fast transformers tokenizer, or a
    `tokenizers.Tokenizer`. Without a policy the one stored with the model is taken, and without that nobody
    leaves early. Threads may share a classifier.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        policy: Policy | str | None = None,
        *,
        window: int = WINDOW,
        budget: int | None = None,
        max_length: int | None = None,
    ) -> None:
        if max_length is not None and max_length < SHORTEST:
            raise BadOption(f"max_length={max_length} leaves no room for texts; at least {SHORTEST} tokens.")
        self.stages: Stages[Any] = model if isinstance(model, Stages) else torch_stages(model)
        self.engine = Engine(self.stages, window, budget)
        longest = self.stages.max_length
        self.tokenizer = BatchTokenizer(tokenizer, min(max_length or longest, longest))
        self.policy = self.resolve_policy(policy or self.stages.policy or NEVER)
        if self.policy.certificate is not None:  # a fingerprint takes a while
            check_certificate(self.policy, self.stages.about()["fingerprint"], self.stages.precision)

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
        budget: int | None = None,
        max_length: int | None = None,
        **options: Any,
    ) -> Self:
        """A saved ExitModel with its tokenizer, in PyTorch; or an exported one, in ONNX Runtime.

        Args:
            path: a folder or a hub name; of an exported model a folder.
            policy: instead of the stored one, such as "entropy:0.3".
            device: "cpu", "cuda", ...; the CPU by default.
            autocast: a dtype to compute in while the weights stay as they are, such as torch.bfloat16.
            threads: how many work on the CPU; in PyTorch, in the whole process.
            window: how many texts run together.
            budget: how many tokens, padding included, a micro-batch may hold.
            max_length: how many tokens of a text are read; by default as many as the model takes.
            options: go to transformers' `from_pretrained`, such as `revision` or `dtype`.

        An exported model takes neither `device` nor `autocast` nor such options.
        """
        if is_exported(path):
            unknown = [*options, *(["device"] if device else []), *(["autocast"] if autocast else [])]
            if unknown:
                raise BadOption(
                    f"{path} is exported: ONNX Runtime runs it on the CPU, and takes no {', '.join(unknown)}."
                )
            from offramp.stages.onnx import OnnxStages

            onnx = OnnxStages(path, threads)
            stages: Stages[Any] = onnx
            tokenizer: Any = SavedTokenizer.load(Path(path), onnx.manifest.tokenizer)
        else:
            model, tokenizer = load_model(path, **options)
            stages = torch_stages(model, device, autocast, threads)
        return cls(stages, tokenizer, policy, window=window, budget=budget, max_length=max_length)

    @overload
    def predict(self, texts: Text, **options: Unpack[Options]) -> Prediction: ...
    @overload
    def predict(self, texts: Iterator[Any], **options: Unpack[Options]) -> Iterator[Prediction]: ...
    @overload
    def predict(self, texts: Sequence[Any], **options: Unpack[Options]) -> list[Prediction]: ...

    def predict(
        self,
        texts: Any,
        *,
        policy: Policy | str | None = None,
        max_layer: int | None = None,
        deadline_ms: float | None = None,
        trace: bool = False,
    ) -> Prediction | list[Prediction] | Iterator[Prediction]:
        """What the model says of a text, of several, or of a stream of them, in their order.

        A text is a string or a pair, a tuple of two strings. A list, array or column of them gives a list, all
        items checked before any is run. An iterator gives an iterator: it reads a window at a time, and
        at a bad item it fails after the predictions for those before it.

        Args:
            texts: one text, several, or an iterator.
            policy: instead of the classifier's own, such as "patience:3".
            max_layer: whoever is still there leaves at this layer, the worst case.
            deadline_ms: when so much time has passed, everyone leaves with the answer of the last exit passed.
                Everyone passes the first. Counted from this call; in a stream anew for each window read.
            trace: adds what every exit says, for which the model is run to its end.
        """
        if trace and deadline_ms is not None:
            raise BadOption("a trace runs all layers, so it takes no deadline; leave one of them out.")
        policy = self.resolve_policy(policy or self.policy, max_layer)
        if is_one(texts):
            until = after(deadline_ms)
            return next(self.answer(self.tokenizer([*checked([texts])]), policy, until, trace))
        if not isinstance(texts, Sized):
            return self.stream(checked(texts), policy, deadline_ms, trace)
        until = after(deadline_ms)
        parts = chunks([*checked(texts)], self.engine.window)
        return [each for part in parts for each in self.answer(self.tokenizer(part), policy, until, trace)]

    def decide(self, texts: Iterable[Any], policy: Policy | str | None = None) -> Decision:
        """As `predict` for several texts, but as arrays: exits taken, logits answered, whether all was finite."""
        policy = self.resolve_policy(policy or self.policy)
        parts = [*chunks([*checked(texts)], self.engine.window)] or [[]]
        decisions = [self.engine.run(self.tokenizer(part), policy) for part in parts]
        return Decision(
            exits=np.concatenate([decision.exits for decision in decisions]),
            answers=np.concatenate([decision.answers for decision in decisions]),
            finite=np.concatenate([decision.finite for decision in decisions]),
        )

    def collect(
        self, dataset: Any, *, metrics: tuple[str, ...] = (), data: str = "", progress: bool = True
    ) -> Trace:
        """Run all exits once over a data set; as `offramp.collect`, but by what runs this classifier.

        Args:
            dataset: a `datasets.Dataset` with the columns `text` and maybe `text_pair`, or `input_ids`; and
                maybe `label` or `labels`, and `idx` or `id`.
            metrics: names of the task's metrics, the headline first.
            data: what the data is, for people who read the trace later.
            progress: show a progress bar.
        """
        return collect(self, dataset, metrics, data, progress)

    def sklearn(self, policy: Policy | str | None = None, classes: Sequence[Any] | None = None) -> Any:
        """The same as a fitted scikit-learn estimator, which predicts `classes` instead of label names if given."""
        from offramp.classifier.estimator import estimator

        return estimator(self, policy, classes)

    def resolve_policy(self, policy: Policy | str, max_layer: int | None = None) -> Policy:
        """A policy in terms of this model, checked against it."""
        policy = Policy.parse(policy) if isinstance(policy, str) else policy
        policy = policy.for_labels(self.stages.labels) if policy.class_thresholds else policy
        if max_layer is not None:
            policy = replace(policy, max_layer=min(max_layer, policy.max_layer or max_layer))
        policy.begin(0, self.stages.layers, self.stages.problem_type)
        return policy

    def stream(
        self, texts: Iterator[Text], policy: Policy, deadline_ms: float | None, trace: bool
    ) -> Iterator[Prediction]:
        for part in chunks(texts, self.engine.window):
            until = after(deadline_ms)
            yield from self.answer(self.tokenizer(part), policy, until, trace)

    def answer(
        self, tokens: list[Tokens], policy: Policy, until: float | Array = math.inf, trace: bool = False
    ) -> Iterator[Prediction]:
        """As `predict`, for tokens; `policy` comes from `resolve_policy`, `until` is the engine's."""
        if trace:
            return self.traced(tokens, policy)
        return predictions(self.engine.run(tokens, policy, until), self.stages)

    def traced(self, tokens: list[Tokens], policy: Policy) -> Iterator[Prediction]:
        logits, gates = self.engine.trace(tokens)
        model = gates, self.stages.layers, self.stages.problem_type
        answers = fold(policy.criterion, policy.tempered(logits), *model).answers
        finite = np.isfinite(logits.sum(-1))
        every_exit = [
            predictions(Decision(np.full(len(tokens), exit), answers[:, exit], finite[:, exit]), self.stages)
            for exit in range(logits.shape[1])
        ]
        taken = predictions(policy.decide(logits, *model), self.stages)
        for prediction, *exits in zip(taken, *every_exit, strict=True):
            yield replace(prediction, exits=tuple(exits))


def torch_stages(model: Any, *options: Any) -> Stages[Any]:
    from offramp.stages.torch import TorchStages

    return TorchStages(model, *options)


def after(deadline_ms: float | None) -> float:
    """The moment when a deadline from now will have passed."""
    return math.inf if deadline_ms is None else time.monotonic() + deadline_ms / 1000
