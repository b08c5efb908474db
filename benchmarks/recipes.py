"""Train recipes on GLUE tasks and print the headline metric at every layer, as JSON and as a Markdown table.

    python benchmarks/recipes.py ENCODER GLUE_FOLDER --out runs --tasks cola mrpc

Every recipe starts from the same encoder and seed and has the same budget. Runs that are done in `--out` are
read back, interrupted ones go on, so the command can be repeated.
"""

import argparse
import json
import platform
import time
from datetime import date
from pathlib import Path
from typing import Any

import torch
from transformers import set_seed

from offramp import ExitModel, Task, train
from offramp.cli.settings import parse_recipe
from offramp.training import default_arguments

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
    return dict(json.loads(found.read_text(encoding="utf-8")))


def table(task: str, results: list[dict[str, Any]]) -> str:
    layers, headline = results[0]["layers"], results[0]["headline"]
    lines = [
        f"| {task}, {headline} at layer | {' | '.join(map(str, layers))} |",
        "|---" * (len(layers) + 1) + "|",
    ]
    for result in results:
        scores = " | ".join(f"{score:.1f}" for score in result["scores"][headline])
        lines.append(f"| {result['recipe']} | {scores} |")
    return "\n".join(lines) + "\n"


def machine(threads: int) -> str:
    return f"{platform.machine()} CPU, {threads} threads, torch {torch.__version__}"


if __name__ == "__main__":
    main()
