"""Train recipes on GLUE tasks and print the headline metric at every layer, as JSON and as a Markdown table.

    python benchmarks/recipes.py ENCODER GLUE_FOLDER --out runs --tasks cola mrpc

Every recipe starts from the same encoder and seed and has the same budget. Runs that are done in `--out` are
read back, interrupted ones go on, so the command can be repeated. Beside the last layer stands by how much it differs
from the first recipe's, as a 95 % interval over draws of the development examples.
"""

import argparse
import json
import platform
import time
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer, set_seed

from offramp import ExitModel, Task, Trace, collect, train
from offramp.cli.settings import parse_recipe
from offramp.problems import decode
from offramp.tasks.metrics import compute
from offramp.training import default_arguments

TRACE = "validation.trace"
DRAWS = 1000
RECIPES_OF_TABLE = ["final", "deebert", "pabee", "elbert", "romebert", "elasticbert"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("encoder")
    parser.add_argument("glue", help="a folder with the GLUE tasks in it")
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--tasks", nargs="+", default=["cola", "mrpc"])
    parser.add_argument(
        "--recipes",
        nargs="+",
        default=RECIPES_OF_TABLE,
        help="with settings if wanted: romebert:anchor=final",
    )
    parser.add_argument("--epochs", type=float, default=3)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    results = [run(options, task, recipe) for task in options.tasks for recipe in options.recipes]
    for task in options.tasks:
        print(table(task, [result for result in results if result["task"] == task]))
    print(json.dumps({"machine": machine(options.threads), "date": str(date.today()), "runs": results}))


def run(options: argparse.Namespace, name: str, recipe: str) -> dict[str, Any]:
    folder = options.out / f"{name}-{recipe.replace(':', '-')}"
    found = folder / "result.json"
    if not found.exists():
        set_seed(options.seed)
        task = Task.named(name, folder=options.glue)
        model = ExitModel.from_encoder(options.encoder, num_labels=len(task.labels or [0]))
        args = default_arguments(
            folder,
            num_train_epochs=options.epochs,
            per_device_train_batch_size=options.batch,
            learning_rate=options.learning_rate,
            seed=options.seed,
            disable_tqdm=True,
        )
        start = time.perf_counter()
        trained = train(model, task, parse_recipe(recipe), args)
        scores = {metric: [round(100 * s, 1) for s in each] for metric, each in trained.scores.items()}
        result = {
            "task": name,
            "recipe": recipe,
            "headline": task.headline,
            "layers": model.config.exits,
            "scores": scores,
            "minutes": round((time.perf_counter() - start) / 60, 1),
            "epochs": options.epochs,
            "batch": options.batch,
            "learning_rate": options.learning_rate,
            "seed": options.seed,
        }
        found.write_text(json.dumps(result), encoding="utf-8")
    if not (folder / TRACE).exists():
        keep_trace(options, name, folder)
    return {**json.loads(found.read_text(encoding="utf-8")), "folder": str(folder)}


def keep_trace(options: argparse.Namespace, name: str, folder: Path) -> None:
    """Traces of the trained model on the development examples."""
    task, home = Task.named(name, folder=options.glue), folder / "model"
    rows = task.load("validation")["validation"]
    model, tokenizer = ExitModel.from_pretrained(home), AutoTokenizer.from_pretrained(home)
    collect(model, rows, tokenizer, metrics=task.metrics, progress=False).save(folder / TRACE)


def difference(result: dict[str, Any], first: dict[str, Any]) -> tuple[float, float]:
    """The last layer's headline less that of the first recipe, both on the same draws of examples."""
    traces = [Trace.load(Path(each["folder"]) / TRACE) for each in (result, first)]
    given = [decode(trace.logits[:, -1], trace.problem_type) for trace in traces]
    labels, metric = np.asarray(traces[0].labels), result["headline"]
    draw = np.random.default_rng(0)
    found = []
    for _ in range(DRAWS):
        rows = draw.integers(0, len(labels), len(labels))
        mine, other = (compute([metric], labels[rows], each[rows])[metric] for each in given)
        found.append(100 * (mine - other))
    low, high = np.percentile(found, [2.5, 97.5])
    return float(low), float(high)


def table(task: str, results: list[dict[str, Any]]) -> str:
    layers, headline = results[0]["layers"], results[0]["headline"]
    lines = [
        f"| {task}, {headline} at layer | {' | '.join(map(str, layers))} | last less {results[0]['recipe']}'s |",
        "|---" * (len(layers) + 2) + "|",
    ]
    for result in results:
        scores = " | ".join(f"{score:.1f}" for score in result["scores"][headline])
        low, high = difference(result, results[0])
        lines.append(f"| {result['recipe']} | {scores} | {low:+.1f} to {high:+.1f} |")
    return "\n".join(lines) + "\n"


def machine(threads: int) -> str:
    return f"{platform.machine()} CPU, {threads} threads, torch {torch.__version__}"


if __name__ == "__main__":
    main()
