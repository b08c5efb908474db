"""A batcher with a model whose runs wait at a door."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from fakes import FakeRuntime

from offramp.inference import Classifier
from offramp.policy import Policy
from offramp.runtimes import Tokens
from offramp.serve.batcher import Batcher, Reply, Request

WAIT = 120
"""Seconds that nothing here takes, on however busy a machine."""
NORMAL, LOOSER, LOOSEST = (Policy.parse(text) for text in ("confidence:0.9", "confidence:0.7", "layer:2"))


@dataclass
class WordRuntime(FakeRuntime):
    """Every run waits at a door first."""

    max_length: int = 300
    overhead: int = 16
    door: threading.Event = field(default_factory=threading.Event)
    reached: threading.Event = field(default_factory=threading.Event)
    """A run has reached the door."""
    before: Callable[[], None] = lambda: None

    def embed(self, tokens: Sequence[Tokens]) -> list[Tokens]:
        self.reached.set()
        assert self.door.wait(WAIT)
        self.before()
        return super().embed(tokens)

    @property
    def runs(self) -> list[tuple[int, int]]:
        """(exit, examples) of each micro-batch."""
        return [(exit, len(lengths)) for exit, lengths in self.batches]


@dataclass
class Bench:
    """A batcher with its classifier and stages."""

    runtime: WordRuntime
    classifier: Classifier
    batcher: Batcher

    @property
    def windows(self) -> list[int]:
        """The number of texts in each run since `shut`; a window of texts of like length is one run."""
        return [examples for exit, examples in self.runtime.runs if exit == 0]

    def submit(self, texts: Any, **options: Any) -> Future[Reply]:
        return self.batcher.submit(Request([texts] if isinstance(texts, str) else texts, **options))

    def shut(self, text: str = "z") -> Future[Reply]:
        """Holds the worker at the door with this text; later requests wait."""
        self.runtime.door.clear()
        self.runtime.reached.clear()
        first = self.submit(text)
        assert self.runtime.reached.wait(WAIT)
        self.runtime.batches.clear()
        return first

    def open(self) -> None:
        self.runtime.door.set()


Make = Callable[..., Bench]


def predictions(future: Future[Reply]) -> list[Any]:
    return future.result(WAIT).predictions
