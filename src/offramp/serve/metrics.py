"""Metrics for Prometheus.

With several workers each writes its values to its own files, and the worker that is scraped adds them up.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest, multiprocess

from offramp.serve.batcher import Batcher, Reply
from offramp.serve.ladder import OWN_CERTIFICATE, STRICTER_RUNG

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
AUDIT = {
    "examined": ("Examples compared with the reference.", "livemax"),
    "disagreed": ("The sum of their losses; of texts, those that differ.", "livemax"),
    "dropped": ("Drawn but never compared.", "livesum"),
    "lower": ("Lower bound on their mean loss.", "livemax"),
    "upper": ("Upper bound on their mean loss.", "livemin"),
}
"""Fields of `RungReport` that are metrics: the help, and how the values of several workers are combined."""


class Metrics:
    """Metrics of this process, or of all workers if they share a folder."""

    def __init__(self, shared_folder: Path | None = None) -> None:
        self.shared_folder = shared_folder
        self.registry = CollectorRegistry()
        self.requests = self.counter("requests", "Requests for predictions.", "status")
        self.seconds = Histogram(
            "offramp_request_seconds",
            "Duration of a request for predictions.",
            buckets=SECONDS,
            registry=self.registry,
        )
        self.texts = self.counter("texts", "Texts answered, by exit layer.", "layer", "rung")
        self.cached = self.counter("cached_texts", "Texts answered from the cache.")
        self.not_finite = self.counter("texts_not_finite", "Texts with NaN or infinite logits.")
        self.waiting_texts = self.gauge("waiting_texts", "Texts in the queue.", "livesum")
        self.waiting_tokens = self.gauge(
            "waiting_tokens", "Tokens in the queue, padding included.", "livesum"
        )
        self.rung = self.gauge("rung", "Current rung; the lowest of all workers.", "livemax")
        self.healthy = self.gauge(
            "healthy", "1 if the model passes its test and no worker is missing.", "livemin"
        )
        self.audit = {
            name: self.gauge(f"audit_{name}", help, mode, "rung") for name, (help, mode) in AUDIT.items()
        }
        self.broken = self.gauge("certificate_broken", "1 if the audit disproved it.", "livemax", "rung")
        self.forbidden = self.gauge(
            "rung_forbidden", "1 if a rung is not used, for this reason.", "livemax", "rung", "reason"
        )
        self.drift = self.gauge(
            "exit_drift", "Total variation distance of the exits from calibration.", "livemax", "rung"
        )

    def counter(self, name: str, help: str, *labels: str) -> Counter:
        return Counter(f"offramp_{name}", help, labels, registry=self.registry)

    def gauge(self, name: str, help: str, mode: str, *labels: str) -> Gauge:
        """`mode` is how the values of several workers are combined."""
        return Gauge(f"offramp_{name}", help, labels, registry=self.registry, multiprocess_mode=mode)  # type: ignore[arg-type]

    def count_request(self, status: int, seconds: float) -> None:
        self.requests.labels(status).inc()
        self.seconds.observe(seconds)

    def count_texts(self, reply: Reply) -> None:
        if reply.cached:
            self.cached.inc(len(reply.predictions))
        rung = "none" if reply.rung is None else str(reply.rung)
        for prediction in reply.predictions:
            self.texts.labels(prediction.layer, rung).inc()
            if not prediction.finite:
                self.not_finite.inc()

    def refresh(self, batcher: Batcher, is_ready: bool) -> None:
        """Sets the gauges to the batcher's current state."""
        waiting = batcher.waiting
        self.waiting_texts.set(waiting.items)
        self.waiting_tokens.set(waiting.tokens)
        self.rung.set(batcher.ladder.current)
        self.healthy.set(is_ready)
        for number, reason in enumerate(batcher.ladder.reasons):
            for possible in (OWN_CERTIFICATE, STRICTER_RUNG):
                self.forbidden.labels(number, possible).set(reason == possible)
        for report in batcher.audit.reports() if batcher.audit else ():
            for name, gauge in self.audit.items():
                gauge.labels(report.rung).set(getattr(report, name))
            self.broken.labels(report.rung).set(report.verdict == "broken")
            if report.drift is not None:
                self.drift.labels(report.rung).set(report.drift)

    def render(self) -> bytes:
        if self.shared_folder is None:
            return generate_latest(self.registry)
        folder = str(self.shared_folder)
        remove_dead_workers(self.shared_folder, partial(multiprocess.mark_process_dead, path=folder))
        registry = CollectorRegistry()
        multiprocess.MultiProcessCollector(registry, folder)  # type: ignore[no-untyped-call]
        return generate_latest(registry)


def remove_dead_workers(folder: Path, remove: Callable[[int], object]) -> None:
    """Removes the gauges of workers that were killed; their counters stay. Also their empty files, left if there was
    no space: those cannot be read."""
    workers = {int(file.stem.rpartition("_")[2]) for file in folder.glob("*.db")}
    for worker in workers:
        try:
            os.kill(worker, 0)
        except ProcessLookupError:
            with suppress(FileNotFoundError):  # a scrape of another worker was first
                remove(worker)
            for file in folder.glob(f"*_{worker}.db"):
                with suppress(FileNotFoundError):
                    if not file.stat().st_size:
                        file.unlink()
        except PermissionError:
            continue  # the pid now belongs to another user's process
