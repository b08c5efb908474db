"""Compares two runs of `recipes.py` on one task: the difference of their areas, with a paired interval.

    python benchmarks/area_difference.py runs/cola-joint-42/dev.trace runs/cola-elasticbert-42/dev.trace

Both areas are computed on the same draws of examples; prints the difference and its 95% interval as JSON.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from recipes import area

from offramp.trace import Trace


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("traces", nargs=2, type=Path)
    parser.add_argument("--draws", type=int, default=200)
    options = parser.parse_args()
    ours, other = (Trace.load(file) for file in options.traces)
    if not (
        np.array_equal(ours.ids, other.ids)
        and np.array_equal(np.asarray(ours.labels), np.asarray(other.labels))
    ):
        parser.error("the two traces are not of the same examples")
    draws = np.random.default_rng(0).integers(0, len(ours), (options.draws, len(ours)))
    found = [area(ours[rows]) - area(other[rows]) for rows in draws]
    low, high = np.percentile(found, [2.5, 97.5])
    difference = {"difference": area(ours) - area(other), "low": float(low), "high": float(high)}
    print(json.dumps({name: round(value, 2) for name, value in difference.items()}))


if __name__ == "__main__":
    main()
