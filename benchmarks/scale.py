"""Throughput of batch prediction on one machine: one process, and one and two Ray workers.

    python benchmarks/scale.py --model FOLDER --texts FILE [--policy entropy:0.3] [--count 6000] [--project 1e9]

prints JSON, and a table on stderr. Each configuration predicts a quarter of the texts and then all of them, each in a
new process; the difference gives the throughput without the start-up time, and the rest is the start-up time.
--project estimates core-hours, machines and cost for that many texts of the same kind.
"""

import argparse
import json
import math
import subprocess
import sys
import time
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from shared import about, markdown, read_texts

CONFIGURATIONS = {
    "one process, 1 thread": {"workers": 0, "threads": 1},
    "one process, 2 threads": {"workers": 0, "threads": 2},
    "Ray, 1 worker, 1 thread": {"workers": 1, "threads": 1},
    "Ray, 2 workers, 1 thread": {"workers": 2, "threads": 1},
}


def main() -> None:
    args = parse_arguments()
    if args.child:
        source, out, workers, threads = args.child
        print(json.dumps(predict(args, Path(source), Path(out), int(workers), int(threads))))
        return
    with TemporaryDirectory() as name:
        folder, sizes, texts = Path(name), [args.count // 4, args.count], read_texts(args.texts)
        for size in sizes:
            lines = (json.dumps({"text": text}) for text in islice(cycle(texts), size))
            (folder / f"{size}.jsonl").write_text("\n".join(lines), encoding="utf-8")
        rows = {name: measure(options, folder, sizes, args) for name, options in CONFIGURATIONS.items()}
    baseline = next(iter(rows.values()))["texts_per_second"]
    for row in rows.values():
        row["times_one_process"] = row["texts_per_second"] / baseline
        if args.project:
            row["projection"] = project(row, args)
    print(table(rows), file=sys.stderr)
    print(json.dumps({**describe(args), "configurations": rows}, indent=1))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--texts", type=Path, required=True, help="csv, tsv, jsonl or parquet")
    parser.add_argument("--policy", default="entropy:0.3", help="`never` for full depth")
    parser.add_argument("--count", type=int, default=6000, help="number of texts; a short file is repeated")
    parser.add_argument("--project", type=float, metavar="TEXTS", help="estimate the cost of so many texts")
    parser.add_argument("--hours", type=float, default=24, help="time for them")
    parser.add_argument("--cores-per-machine", type=int, default=16)
    parser.add_argument("--price-per-core-hour", type=float, default=0.05, help="made up: give your own")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    return parser.parse_args()


def measure(
    options: dict[str, int], folder: Path, sizes: list[int], args: argparse.Namespace
) -> dict[str, Any]:
    """Times both sizes, and derives throughput and start-up time."""
    runs = []
    for size in sizes:
        out = folder / f"{size}-{options['workers']}-{options['threads']}"
        same = ["--model", args.model, "--texts", args.texts, "--policy", args.policy]
        child = ["--child", folder / f"{size}.jsonl", out, options["workers"], options["threads"]]
        start = time.perf_counter()
        done = subprocess.run(
            [sys.executable, __file__, *map(str, [*same, *child])],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        runs.append({**json.loads(done.stdout), "seconds": time.perf_counter() - start})
    throughput = (sizes[1] - sizes[0]) / (runs[1]["seconds"] - runs[0]["seconds"])
    return {
        **options,
        "mean_layer": runs[1]["mean_layer"],
        "seconds": {str(size): run["seconds"] for size, run in zip(sizes, runs, strict=True)},
        "texts_per_second": throughput,
        "seconds_to_start": runs[1]["seconds"] - sizes[1] / throughput,
    }


def predict(args: argparse.Namespace, source: Path, out: Path, workers: int, threads: int) -> dict[str, Any]:
    """Predicts the texts of a file; with `workers=0` in this process."""
    if workers:
        from offramp.cluster import predict as predict_on_ray

        done = predict_on_ray(args.model, source, out, policy=args.policy, workers=workers, threads=threads)
        return {"mean_layer": done.mean_layer}
    from offramp.inference import Classifier

    classifier = Classifier.from_pretrained(args.model, args.policy, threads=threads)
    layers = [prediction.layer for prediction in classifier.predict(read_texts(source))]
    return {"mean_layer": sum(layers) / len(layers)}


def project(row: dict[str, Any], args: argparse.Namespace) -> dict[str, float]:
    """Core-hours, machines and cost of `--project` texts at the throughput measured."""
    cores = max(1, row["workers"]) * row["threads"]
    core_hours = args.project / row["texts_per_second"] * cores / 3600
    return {
        "core_hours": core_hours,
        "machines": math.ceil(core_hours / (args.hours * args.cores_per_machine)),
        "cost": core_hours * args.price_per_core_hour,
    }


def describe(args: argparse.Namespace) -> dict[str, Any]:
    names = ("policy", "project", "hours", "cores_per_machine", "price_per_core_hour")
    facts = {name: getattr(args, name) for name in names}
    return about("torch", "ray", model=args.model.name, texts=f"{args.count} of {args.texts.name}", **facts)


def table(rows: dict[str, Any]) -> str:
    projected = ["core-hours", "machines", "cost"] if "projection" in next(iter(rows.values())) else []
    body = []
    for name, row in rows.items():
        figures = [f"{row['texts_per_second']:.0f}", f"{row['times_one_process']:.2f}"]
        estimates = [f"{value:,.0f}" for value in row.get("projection", {}).values()]
        body.append([name, *figures, f"{row['seconds_to_start']:.1f}", *estimates])
    return markdown(["", "texts/s", "times one process", "seconds to start", *projected], body)


if __name__ == "__main__":
    main()
