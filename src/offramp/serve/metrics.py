"""What /metrics tells, in Prometheus' form.

With several workers each writes its figures to files of its own, and the one that is asked adds them up.
"""

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest, multiprocess

from offramp.classifier import Prediction
from offramp.serve.batcher import Batcher

FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""Where prometheus-client keeps the files of several workers; set before it is first imported."""
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = self.counter("requests", "Requests to /predict.", ["status"])
        self.seconds = Histogram(
            "offramp_request_seconds",
            "From a request to /predict to its answer.",
            buckets=SECONDS,
            registry=self.registry,
        )
        self.texts = self.counter(
            "texts", "Texts answered, by the layer at which they left.", ["layer", "rung"]
        )
        self.not_finite = self.counter("texts_not_finite", "Texts whose answer was NaN or infinite.", [])
        self.waiting_texts = self.gauge("waiting_texts", "Texts that wait.", [], "livesum")
        self.waiting_tokens = self.gauge(
            "waiting_tokens", "Tokens that wait, padding included.", [], "livesum"
        )
        self.rung = self.gauge("rung", "The rung of the ladder; with workers the lowest.", [], "livemax")
        self.healthy = self.gauge("healthy", "1 if the model answers a test.", [], "livemin")
        self.examined = self.gauge("audit_examined", "Answers compared with full depth.", ["rung"], "livesum")
        self.disagreed = self.gauge("audit_disagreed", "Of these, not the same.", ["rung"], "livesum")
        self.lower = self.gauge("audit_lower", "At least so many disagree, as a share.", ["rung"], "livemax")
        self.upper = self.gauge("audit_upper", "At most so many disagree, as a share.", ["rung"], "livemin")
        self.broken = self.gauge("certificate_broken", "1 if the audit disproved it.", ["rung"], "livemax")
        self.drift = self.gauge(
            "exit_drift", "Total variation distance of exits to calibration's.", ["rung"], "livemax"
        )

    def counter(self, name: str, help: str, labels: list[str]) -> Counter:
        return Counter(f"offramp_{name}", help, labels, registry=self.registry)

    def gauge(self, name: str, help: str, labels: list[str], workers: str) -> Gauge:
        """`workers` says what several make of it."""
        return Gauge(f"offramp_{name}", help, labels, registry=self.registry, multiprocess_mode=workers)  # type: ignore[arg-type]

    def request(self, path: str, status: int, seconds: float) -> None:
        if path == "/predict":
            self.requests.labels(status).inc()
            self.seconds.observe(seconds)

    def answered(self, predictions: Iterable[Prediction], rung: int | None) -> None:
        for prediction in predictions:
            self.texts.labels(prediction.layer, "none" if rung is None else rung).inc()
            if not prediction.finite:
                self.not_finite.inc()

    def look(self, batcher: Batcher) -> None:
        """How things stand now."""
        waiting = batcher.waiting
        self.waiting_texts.set(waiting.items)
        self.waiting_tokens.set(waiting.tokens)
        self.rung.set(batcher.rung)
        self.healthy.set(batcher.healthy)
        for account in batcher.audit.accounts() if batcher.audit else ():
            rung = account.rung
            self.examined.labels(rung).set(account.examined)
            self.disagreed.labels(rung).set(account.disagreed)
            self.lower.labels(rung).set(account.lower)
            self.upper.labels(rung).set(account.upper)
            self.broken.labels(rung).set(rung in batcher.ladder.broken)
            if account.drift is not None:
                self.drift.labels(rung).set(account.drift)

    def text(self) -> bytes:
        if FOLDER not in os.environ:
            return generate_latest(self.registry)
        forget_the_dead(Path(os.environ[FOLDER]), multiprocess.mark_process_dead)
        registry = CollectorRegistry()
        multiprocess.MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return generate_latest(registry)


def forget_the_dead(folder: Path, forget: Callable[[int], object]) -> None:
    """What a worker had waiting when it was killed waits no more; what it had counted still counts."""
    workers = {int(file.stem.rpartition("_")[2]) for file in folder.glob("gauge_live*.db")}
    for worker in workers:
        try:
            os.kill(worker, 0)
        except ProcessLookupError:
            with suppress(FileNotFoundError):  # another request for the metrics forgot it first
                forget(worker)
        except PermissionError:
            continue  # somebody has its number
