"""Reranker: a query and documents in, the best documents out, each with the layer that its score comes from."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from offramp.errors import BadData, BadOption, NotFinite
from offramp.inference.runner import Pretrained, Runner, deadline_from_now
from offramp.inference.texts import clean, describe
from offramp.lists import Lists
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


class Reranker(Pretrained):
    """Ranks documents with a model of pairs (query, document) that has one output or two classes.

    Documents exit by the policy of the runner; `rank` is the rule that compares the documents of a query. Threads may
    share a reranker.
    """

    def __init__(self, runner: Runner) -> None:
        super().__init__(runner)
        check_reranker(len(runner.runtime.info.labels), runner.runtime.info.problem)

    @property
    def top_k(self) -> int:
        """How many documents are found by default: as many as the rule was calibrated for, or 10."""
        rule = self.runner.policy.rule
        return rule.top_k if isinstance(rule, Rank) else Rank.top_k

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
        return self.rank_many([(query, documents)], top_k, exact_top=exact_top, deadline_ms=deadline_ms)[0]

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
        every = self.rank_all(queries, wanted, exact_top=exact_top, deadline_ms=deadline_ms)
        return [ranked[:wanted] for ranked in every]

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
        sizes = np.array([len(of_query) for of_query in pairs])
        texts = self.runner.check_texts([pair for of_query in pairs for pair in of_query])
        tokens = self.runner.tokenizer([*texts])
        policy = self.runner.policy.with_exact_top() if exact_top else self.runner.policy
        lists = Lists.consecutive(sizes, np.minimum(sizes, min(top_k, int(sizes.max()))))
        decision = self.runner.engine.run(tokens, policy, deadline, lists)
        scores = relevance(decision.logits)
        layers = np.asarray(self.runner.runtime.info.exits)[decision.exits]
        rankings = []
        for query, (size, end) in enumerate(zip(sizes.tolist(), sizes.cumsum().tolist(), strict=True)):
            with naming(query, len(pairs)):
                documents = [document for _, document in pairs[query]]
                rankings.append(best_first(scores[end - size : end], layers[end - size : end], documents))
        return rankings


def read_queries(queries: Iterable[Any]) -> list[list[tuple[str, str]]]:
    """The texts of each query, one for each of its documents."""
    items, pairs = [*queries], []
    for number, item in enumerate(items):
        with naming(number, len(items)):
            if isinstance(item, str) or not isinstance(item, Sequence) or len(item) != 2:
                raise BadData(f"it is {describe(item)}, not a query with its documents.")
            pairs.append(make_pairs(*item))
    return pairs


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
