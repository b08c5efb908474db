"""Measures the time and memory of a sweep: six rules, 100 thresholds each, 12 exits, 3 classes.

    python benchmarks/sweep.py [EXAMPLES ...]

Prints JSON. Each size runs in its own process, so that peak memory is its own, on one thread.
"""

import json
import os
import resource
import subprocess
import sys
import time

SIZES = ["10000", "100000", "1000000"]
RULES = [
    "entropy",
    "confidence",
    "margin",
    "min_probability",
    "ensemble",
    "patience_confidence:2,confidence=0.5",
]
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def main(sizes: list[str]) -> None:
    print(json.dumps([measure_in_process(size) for size in sizes], indent=2))


def measure_in_process(size: str) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, __file__, "--measure", size],
        env={**os.environ, **ONE_THREAD},
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def measure(examples: int) -> dict[str, float]:
    import numpy as np

    from offramp.measuring import sweep
    from offramp.trace import Trace

    rng = np.random.default_rng(0)
    labels = rng.integers(3, size=examples)
    logits = rng.normal(0, 0.8, (examples, 12, 3)).astype(np.float32)
    logits[np.arange(examples), :, labels] += 1.2 / rng.gamma(2, 1, (examples, 1)).astype(np.float32)
    np.cumsum(logits, axis=1, out=logits)
    trace = Trace(logits, tuple(range(1, 13)), labels, rng.integers(5, 128, examples), np.arange(examples))
    thresholds = {RULES[-1]: list(range(1, 101))}  # automatic thresholds would be fewer than 100
    before = peak_memory()
    start, start_cpu = time.perf_counter(), time.process_time()
    found = sweep(trace, RULES, thresholds)
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - start_cpu
    return {
        "examples": examples,
        "points": sum(len(curve.points) for curve in found.curves.values()),
        "seconds": round(seconds, 2),
        "cpu_seconds": round(cpu_seconds, 2),
        "peak_mib": round(peak_memory()),
        "of_which_before_the_sweep_mib": round(before),
    }


def peak_memory() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        print(json.dumps(measure(int(sys.argv[2]))))
    else:
        main(sys.argv[1:] or SIZES)
