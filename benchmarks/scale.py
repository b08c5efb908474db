"""Throughput of batch prediction: one process, and one and two workers on Ray, on one machine.

    python benchmarks/scale.py --model FOLDER --texts FILE [--policy entropy:0.3] [--count 6000]

prints JSON and, on stderr, a table. Each way answers a quarter of the texts and then all of them, in a process
of its own; the difference tells the pace without the start, and what is left of the time is the start.
"""

import argparse
import datetime
import json
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

WAYS = {
    "one process, 1 thread": {"workers": 0, "threads": 1},
    "one process, 2 threads": {"workers": 0, "threads": 2},
    "Ray, 1 worker of 1 thread": {"workers": 1, "threads": 1},
    "Ray, 2 workers of 1 thread": {"workers": 2, "threads": 1},
}


def main() -> None:
    args = arguments()
    with TemporaryDirectory() as name:
        folder = Path(name)
        sizes = [args.count // 4, args.count]
        for size in sizes:
            write(folder / f"{size}.jsonl", islice(cycle(texts_in(args.texts)), size))
        ways = {way: measured(settings, folder, sizes, args) for way, settings in WAYS.items()}
    alone = next(iter(ways.values()))["texts_per_second"]
    for way in ways.values():
        way["times_one_process"] = way["texts_per_second"] / alone
    print(table(ways), file=sys.stderr)
    print(json.dumps({**about(args), "ways": ways}, indent=1))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--texts", type=Path, required=True, help="csv, tsv, jsonl or parquet")
    parser.add_argument("--policy", default="entropy:0.3")
    parser.add_argument(
        "--count", type=int, default=6000, help="so many texts, the file over again if it is short"
    )
    parser.add_argument("--alone", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.alone:
        source, out, workers, threads = args.alone
        print(json.dumps(answered(args, Path(source), Path(out), int(workers), int(threads))))
        raise SystemExit
    return args


def texts_in(file: Path) -> list[str]:
    from offramp.tasks.files import ColumnMap, guess_columns, read_file

    found = read_file(file)
    columns = guess_columns(str(file), found.column_names, label="")
    return found.select(ColumnMap(columns.text)).cells["text"]


def write(file: Path, texts: Iterator[str]) -> None:
    file.write_text("\n".join(json.dumps({"text": text}) for text in texts), encoding="utf-8")


def measured(
    settings: dict[str, int], folder: Path, sizes: list[int], args: argparse.Namespace
) -> dict[str, Any]:
    """Seconds for both sizes, and what follows from them."""
    runs = []
    for size in sizes:
        out = folder / f"{size}-{settings['workers']}-{settings['threads']}"
        given = ["--model", args.model, "--texts", args.texts, "--policy", args.policy]
        job = ["--alone", folder / f"{size}.jsonl", out, settings["workers"], settings["threads"]]
        begin = time.perf_counter()
        done = subprocess.run(
            [sys.executable, __file__, *map(str, [*given, *job])],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        runs.append({**json.loads(done.stdout), "seconds": time.perf_counter() - begin})
    pace = (sizes[1] - sizes[0]) / (runs[1]["seconds"] - runs[0]["seconds"])
    return {
        **settings,
        "mean_layer": runs[1]["mean_layer"],
        "seconds": {str(size): run["seconds"] for size, run in zip(sizes, runs, strict=True)},
        "texts_per_second": pace,
        "seconds_to_start": runs[1]["seconds"] - sizes[1] / pace,
    }


def answered(args: argparse.Namespace, source: Path, out: Path, workers: int, threads: int) -> dict[str, Any]:
    """All texts of a file; without workers in this process."""
    if workers:
        from offramp.cluster import predict

        done = predict(args.model, source, out, policy=args.policy, workers=workers, threads=threads)
        return {"mean_layer": done.mean_layer}
    from offramp.classifier import Classifier

    classifier = Classifier.from_pretrained(args.model, args.policy, threads=threads)
    layers = [answer.layer for answer in classifier.predict(texts_in(source))]
    return {"mean_layer": sum(layers) / len(layers)}


def about(args: argparse.Namespace) -> dict[str, Any]:
    import ray
    import torch

    return {
        "date": datetime.date.today().isoformat(),
        "machine": platform.machine(),
        "model": args.model.name,
        "texts": f"{args.count} of {args.texts.name}",
        "policy": args.policy,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "ray": ray.__version__,
    }


def table(ways: dict[str, Any]) -> str:
    lines = ["| | texts/s | times one process | seconds to start |", "|---|---|---|---|"]
    for name, way in ways.items():
        pace, times = f"{way['texts_per_second']:.0f}", f"{way['times_one_process']:.2f}"
        lines.append(f"| {name} | {pace} | {times} | {way['seconds_to_start']:.1f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
