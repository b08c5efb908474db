"""Certify policies on one trace and score them on others.

    python benchmarks/certified.py CALIBRATION.trace TEST.trace ... --epsilon 0.02 0.01 --rule agreement entropy

Prints a Markdown table: mean layer, changed predictions and points of the headline metric lost, for each trace.
"""

import argparse
from pathlib import Path

from recipes import measured

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
    print(f"| epsilon | rule | {' | '.join(columns)} |\n{'|---' * (2 + len(columns))}|")
    for epsilon in options.epsilon:
        for rule in options.rule:
            target = Guarantee(epsilon, tolerance=options.tolerance)
            try:
                policy = calibrate(calibration, rule, target).policy
            except NoSafeThreshold as refusal:
                print(f"| {100 * epsilon:g} % | {rule} | {refusal} |")
                continue
            found = [measured(policy, trace, options.tolerance) for trace in traces.values()]
            cells = [
                f"{each['mean_layer']:.2f} | {each['changed']:.1f} % | {each['lost']:.1f}" for each in found
            ]
            print(f"| {100 * epsilon:g} % | {rule} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
