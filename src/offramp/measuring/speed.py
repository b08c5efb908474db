"""The speed of several ways to predict the same examples, timed in turns, beside their scores and changed
predictions.
"""

import math
import platform
import statistics
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from offramp.cpus import available_cpus
from offramp.guarantees import Guarantee
from offramp.guarantees.losses import OF_TAGS
from offramp.measuring.losses import mean_losses
from offramp.measuring.scores import score
from offramp.policy import Policy
from offramp.trace import Trace

SINGLES, BATCH = 100, 500
"""The number of examples that are timed one at a time, and all at once."""
REPEATS = 5
PROBES = 3
"""The number of examples that tell how many fit into the time."""

Predict = Callable[[Sequence[Any]], object]
"""A function of texts, of pairs, or of queries with their documents."""
Name = TypeVar("Name", bound=Hashable)


@dataclass(frozen=True)
class Speed:
    """Median milliseconds per example, or how many times faster than another."""

    single: float
    """One example at a time, on average over examples."""
    batch: float
    """All examples at once."""
    p50: float
    p95: float
    """Half of the examples, and 95% of them, take at most this long, one at a time."""

    @property
    def cost(self) -> float:
        """The geometric mean of the two, squared: single examples and batches weigh the same."""
        return self.single * self.batch

    def times_faster_than(self, other: "Speed") -> "Speed":
        return Speed(
            **{field.name: getattr(other, field.name) / getattr(self, field.name) for field in fields(Speed)}
        )


@dataclass(frozen=True)
class Contender:
    """One way to predict, measured."""

    name: str
    losses: Mapping[str, float]
    """Mean loss by risk, such as the share of predictions that differ from the reference: "changed"."""
    scores: Mapping[str, float]
    """By metric, if there are labels."""
    mean_layer: float
    milliseconds: Speed
    times_faster: Speed
    """Than the first contender."""

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> "Contender":
        speeds = {name: Speed(**record[name]) for name in ("milliseconds", "times_faster")}
        return cls(**{**record, **speeds})


def measure_contender(
    name: str,
    trace: Trace,
    policy: Policy | None,
    speed: Speed,
    baseline: Speed,
    target: Guarantee | None = None,
) -> Contender:
    """A policy on a trace; without a policy, the reference itself. A trace of lists needs a target with a top k."""
    tolerance, top_k = (None, None) if target is None else (target.tolerance, target.top_k)
    logits, mean_layer = trace.reference, float(trace.layers[-1])
    if policy is not None:
        decision = policy.decide_trace(trace, top_k)
        logits, mean_layer = decision.logits, float(np.asarray(trace.layers)[decision.exits].mean())
    assert logits is not None, "a policy or a reference"
    if trace.problem.of_tokens:
        risks = OF_TAGS
    else:
        asked = ["overlap", "ndcg"] if trace.has_lists else ["changed", *(target.risks if target else ())]
        risks = {risk: risk for risk in asked}
    means = mean_losses(trace, logits, risks.values(), tolerance, top_k)
    losses = {name: means[risk] for name, risk in risks.items()}
    scores = score(trace, logits)
    return Contender(name, losses, scores, mean_layer, speed, speed.times_faster_than(baseline))


def compare_speed(
    contenders: Mapping[str, Predict],
    examples: Sequence[Any],
    *,
    repeats: int | None = None,
    seconds: float = math.inf,
    progress: bool = False,
) -> dict[str, Speed]:
    """Times the contenders in turns.

    If that would take longer than `seconds`, fewer examples are timed, and fewer times. If a single example already
    takes most of it, only that example is timed.
    """
    end, repeats = time.perf_counter() + seconds, repeats or REPEATS
    probes = probe(contenders, examples[:PROBES], end)
    once = sum(times[-1] for times in probes.values())  # all contenders, one example
    left = end - time.perf_counter()
    if left < 4 * once:  # no time for a warm-up and a round of even one example, alone and as a batch
        return {name: Speed(*[1000 * times[-1]] * 4) for name, times in probes.items()}
    number = min(SINGLES, len(examples)) + len(examples)  # a batch is not slower than its examples alone
    share = min(1, left / ((repeats + 1) * once * number))
    singles = examples[: max(1, int(share * min(SINGLES, len(examples))))]
    batch = examples[: max(1, int(share * len(examples)))]
    latencies: dict[str, list[float]] = {name: [] for name in contenders}
    runs: dict[tuple[str, bool], Callable[[], object]] = {}
    for name, predict in contenders.items():
        runs[name, True] = partial(one_by_one, predict, singles, latencies[name])
        runs[name, False] = partial(predict, batch)
    for warm_up in runs.values():
        warm_up()
    for warm in latencies.values():
        warm.clear()
    times = time_in_turns(runs, repeats, end - time.perf_counter(), progress)
    return {
        name: Speed(
            1000 * times[name, True] / len(singles),
            1000 * times[name, False] / len(batch),
            *(1000 * np.percentile(latencies[name], (50, 95))).tolist(),
        )
        for name in contenders
    }


def probe(contenders: Mapping[str, Predict], examples: Sequence[Any], end: float) -> dict[str, list[float]]:
    """The seconds of single examples. The first call, which may load and allocate, is left out, unless further calls
    would take half of the time until `end`: then it is all there is."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for name, predict in contenders.items():
        one_by_one(predict, examples[:1], seconds[name])
    first = sum(times[0] for times in seconds.values())
    if len(examples) * first < (end - time.perf_counter()) / 2:
        for times in seconds.values():
            times.clear()
        for name, predict in contenders.items():
            one_by_one(predict, examples, seconds[name])
            seconds[name].append(statistics.mean(seconds[name]))
    return seconds


def one_by_one(predict: Predict, examples: Sequence[Any], latencies: list[float]) -> None:
    """Appends the seconds of each."""
    for example in examples:
        begin = time.perf_counter()
        predict([example])
        latencies.append(time.perf_counter() - begin)


def time_in_turns(
    runs: Mapping[Name, Callable[[], object]], repeats: int, seconds: float = math.inf, progress: bool = False
) -> dict[Name, float]:
    """Median seconds of each run. They take turns, so that other load on the machine affects all of them.

    A round that would not end in time does not begin, except for the first.
    """
    from tqdm.auto import tqdm

    times: dict[Name, list[float]] = {name: [] for name in runs}
    end = time.perf_counter() + seconds
    for _ in tqdm(range(repeats), "timing", leave=False, disable=not progress):
        start = time.perf_counter()
        for name, run in runs.items():
            begin = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - begin)
        if 2 * time.perf_counter() - start > end:
            break
    return {name: statistics.median(values) for name, values in times.items()}


def describe_machine(threads: int | None = None) -> dict[str, Any]:
    """What a time depends on, apart from the model and the texts."""
    packages = [name for name in ("torch", "transformers", "onnxruntime") if find_spec(name)]
    return {
        "cpu": cpu_name(),
        "machine": platform.machine(),
        "system": platform.system(),
        "threads": threads or available_cpus(),
        "python": platform.python_version(),
        **{name: version(name) for name in packages},
    }


def cpu_name() -> str:
    """As Linux calls it; elsewhere what Python knows, which may be nothing."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())
