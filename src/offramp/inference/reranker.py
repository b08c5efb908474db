"""Reranker: a query and documents in, the best documents out, each with the layer that its score comes from."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from os import PathLike
from typing import Any, Self

import numpy as np

from offramp.errors import BadData, BadOption, NotFinite
from offramp.folder import copy_model, push_model
from offramp.inference.classifier import deadline_from_now
from offramp.inference.runner import Runner
from offramp.inference.texts import clean, describe
from offramp.lists import Lists
from offramp.policy import Policy
from offramp.policy.decide import check_reranker
from offramp.problems import Array
from offramp.rules.rank import Rank, relevance


@dataclass(frozen=True, slots=True)
class Ranked:
    """One document of a query."""

    index: int
    """In the list of documents."""
    score: float
    """The logit of being relevant: the last exit's, or an estimate of it from the exit taken."""
    layer: int
    """The layer of that exit; layer 0 is the embeddings."""
    document: str = field(repr=False)


class Reranker:
    """Ranks documents with a model of pairs (query, document) that has one output or two classes.

    Documents exit by the policy of the runner; `rank` is the rule that compares the documents of a query. Threads may
    share a reranker.
    """

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        check_reranker(len(runner.runtime.info.labels), runner.runtime.info.problem)

    @classmethod
    def from_pretrained(
        cls, path: str | PathLike[str], policy: Policy | str | None = None, **options: Any
    ) -> Self:
        """Load a model from a folder or the hub; arguments are those of `Runner.from_pretrained`."""
        return cls(Runner.from_pretrained(path, policy, **options))

    @property
    def top_k(self) -> int:
        """How many documents are found by default: as many as the rule was calibrated for, or 10."""
        rule = self.runner.policy.rule
        return rule.top_k if isinstance(rule, Rank) else Rank.top_k

    def save_pretrained(self, path: str | PathLike[str]) -> None:
        """Like `Classifier.save_pretrained`."""
        copy_model(self.runner.folder, path)

    def push_to_hub(self, repo_id: str, **options: Any) -> str:
        """Like `Classifier.push_to_hub`."""
        return push_model(self.runner.folder, repo_id, **options)

    def rank(
        self,
        query: str,
        documents: Sequence[str],
        top_k: int | None = None,
        *,
        exact_top: bool = False,
        deadline_ms: float | None = None,
    ) -> list[Ranked]:
        """The best `top_k` documents, best first.

        Args:
            query: a text that is not empty.
            documents: at least one text. If there are no more than `top_k`, all run to full depth.
            top_k: how many documents to find; by default as the rule was calibrated, or 10.
            exact_top: run the documents that may be among the best to full depth, for their exact order. The others
                keep their estimates.
            deadline_ms: milliseconds after which documents keep the score of the last exit they passed.
        """
        options: dict[str, Any] = {"exact_top": exact_top, "deadline_ms": deadline_ms}
        return self.rank_many([(query, documents)], top_k, **options)[0]

    def rank_many(
        self,
        queries: Iterable[tuple[str, Sequence[str]]],
        top_k: int | None = None,
        *,
        exact_top: bool = False,
        deadline_ms: float | None = None,
    ) -> list[list[Ranked]]:
        """Like `rank` for several queries, each with its documents; they share windows and micro-batches."""
        wanted = self.top_k if top_k is None else top_k
        options: dict[str, Any] = {"exact_top": exact_top, "deadline_ms": deadline_ms}
        return [ranked[:wanted] for ranked in self.rank_all(queries, wanted, **options)]

    def rank_all(
        self,
        queries: Iterable[tuple[str, Sequence[str]]],
        top_k: int,
        *,
        exact_top: bool = False,
        deadline_ms: float | None = None,
    ) -> list[list[Ranked]]:
        """Like `rank_many`, with all documents of each query; beyond `top_k`, their order is a guess."""
        deadline = deadline_from_now(deadline_ms)
        if not isinstance(top_k, int | np.integer) or top_k < 1:
            raise BadOption(f"top_k={top_k!r} must be a whole number from 1.")
        pairs = read_queries(queries)
        if not pairs:
            return []
        sizes = np.array([len(each) for each in pairs])
        texts = self.runner.check_texts([pair for each in pairs for pair in each])
        tokens = self.runner.tokenizer([*texts])
        policy = self.runner.policy.with_exact_top() if exact_top else self.runner.policy
        lists = Lists.consecutive(sizes, np.minimum(sizes, min(top_k, int(sizes.max()))))
        decision = self.runner.engine.run(tokens, policy, deadline, lists)
        scores = relevance(decision.logits)
        layers = np.asarray(self.runner.runtime.info.exits)[decision.exits]
        found = []
        for query, (size, end) in enumerate(zip(sizes.tolist(), sizes.cumsum().tolist(), strict=True)):
            with naming(query, len(pairs)):
                documents = [document for _, document in pairs[query]]
                found.append(best_first(scores[end - size : end], layers[end - size : end], documents))
        return found


def read_queries(queries: Iterable[Any]) -> list[list[tuple[str, str]]]:
    """The texts of each query, one for each of its documents."""
    given, found = [*queries], []
    for query, each in enumerate(given):
        with naming(query, len(given)):
            if isinstance(each, str) or not isinstance(each, Sequence) or len(each) != 2:
                raise BadData(f"it is {describe(each)}, not a query with its documents.")
            found.append(make_pairs(*each))
    return found


@contextmanager
def naming(query: int, queries: int) -> Iterator[None]:
    """Say which of several queries an error is about."""
    try:
        yield
    except (BadData, NotFinite) as error:
        if queries == 1:
            raise
        raise type(error)(f"query {query}: {error}") from error


def make_pairs(query: Any, documents: Any) -> list[tuple[str, str]]:
    """The texts that the model reads, one for each document."""
    query = check_text(query, "the query")
    if not query.strip():
        raise BadData("the query is empty.")
    if isinstance(documents, str | bytes) or not isinstance(documents, Iterable):
        raise BadData(f"the documents are {describe(documents)}, not a list of texts.")
    texts = [check_text(document, f"document {index}") for index, document in enumerate(documents)]
    if not texts:
        raise BadData("there are no documents to rank; give at least one.")
    return [(query, text) for text in texts]


def check_text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise BadData(f"{name} is {describe(value)}, not a text.")
    return clean(value)


def best_first(scores: Array, layers: Array, documents: Sequence[str]) -> list[Ranked]:
    """The documents of one list; of equal ones, the first is better."""
    bad = np.flatnonzero(~np.isfinite(scores))
    if len(bad):
        raise NotFinite(f"the model returned NaN or infinity for document {', '.join(map(str, bad[:5]))}.")
    order = np.argsort(-scores, kind="stable").tolist()
    return [Ranked(index, float(scores[index]), int(layers[index]), documents[index]) for index in order]
