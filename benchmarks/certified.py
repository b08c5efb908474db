"""Certify policies on one trace and score them on others.

    python benchmarks/certified.py CALIBRATION.trace TEST.trace ... --epsilon 0.02 0.01 --rule agreement entropy

Prints a Markdown table: mean layer, changed predictions and points of the headline metric lost, for each trace.
"""

import argparse
from pathlib import Path

from recipes import measured
from shared import markdown

from offramp import Guarantee, NoSafeThreshold, Trace
from offramp.measuring.calibrate import calibrate


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("calibration", type=Path)
    parser.add_argument("traces", type=Path, nargs="+")
    parser.add_argument("--epsilon", type=float, nargs="+", default=[0.02, 0.01])
    parser.add_argument("--rule", nargs="+", default=["agreement", "entropy"])
    parser.add_argument("--tolerance", type=float)
    options = parser.parse_args()
    calibration = Trace.load(options.calibration)
    traces = {path.stem: Trace.load(path) for path in options.traces}
    columns = [f"{name}: {what}" for name in traces for what in ("mean layer", "changed", "lost")]
    rows = []
    for epsilon in options.epsilon:
        for rule in options.rule:
            target = Guarantee(epsilon, tolerance=options.tolerance)
            try:
                policy = calibrate(calibration, rule, target).policy
            except NoSafeThreshold as refusal:
                rows.append([f"{100 * epsilon:g}%", rule, str(refusal)])
                continue
            cells = []
            for trace in traces.values():
                outcome = measured(policy, trace, options.tolerance)
                cells += [
                    f"{outcome['mean_layer']:.2f}",
                    f"{outcome['changed']:.1f}%",
                    f"{outcome['lost']:.1f}",
                ]
            rows.append([f"{100 * epsilon:g}%", rule, *cells])
    print(markdown(["epsilon", "rule", *columns], rows))


if __name__ == "__main__":
    main()
