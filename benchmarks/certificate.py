"""Measures how often a certificate is broken: calibrates on many samples of a trace, checks each on all of it.

    python benchmarks/certificate.py TRACE --rule entropy --epsilon 0.02 --delta 0.1 --examples 500 --draws 500

The trace, with one label per example, is the population that examples are drawn from with replacement, so the true
risk of a policy is its risk on the trace. Prints JSON; `broken_share` should be at most delta.
"""

import argparse
import json

import numpy as np
from scipy.stats import binom

from offramp.errors import NoSafeThreshold
from offramp.measuring import Guarantee, calibrate
from offramp.trace import Trace


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trace")
    parser.add_argument("--rule", default="entropy")
    parser.add_argument("--risk", default="changed", choices=["changed", "accuracy"])
    parser.add_argument("--epsilon", type=float, default=0.02)
    parser.add_argument("--delta", type=float, default=0.1)
    parser.add_argument("--examples", type=int, default=500)
    parser.add_argument("--draws", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    population = Trace.load(options.trace)
    target = Guarantee(options.epsilon, options.delta, options.risk)
    rng = np.random.default_rng(options.seed)
    layers, risks = [], []
    for _ in range(options.draws):
        rows = rng.integers(len(population), size=options.examples)
        try:
            policy = calibrate(population[rows], options.rule, target).policy
        except NoSafeThreshold:
            continue
        decision = policy.decide(population.logits, population.gates, population.layers, population.problem)
        risks.append(risk(population, decision.logits.argmax(-1), options.risk))
        layers.append(np.asarray(population.layers)[decision.exits].mean())
    broken = int(np.sum(np.array(risks) > options.epsilon))
    print(
        json.dumps(
            {
                **vars(options),
                "data": population.data,
                "population": len(population),
                "certified": len(risks),
                "broken": broken,
                "broken_share": broken / options.draws,
                "most_that_chance_allows": int(binom.ppf(0.999, options.draws, options.delta)),
                "mean_true_risk": float(np.mean(risks)) if risks else None,
                "mean_layer": float(np.mean(layers)) if layers else None,
            },
            indent=2,
        )
    )


def risk(population: Trace, predictions: np.ndarray, kind: str) -> float:
    full = population.logits[:, -1].argmax(-1)
    if kind == "changed":
        return float(np.mean(predictions != full))
    return float(np.mean((full == population.labels) & (predictions != population.labels)))


if __name__ == "__main__":
    main()
