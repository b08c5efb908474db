"""Compare recipes on GLUE tasks at an equal number of updates.

    python benchmarks/recipes.py ENCODER GLUE_FOLDER --out runs --tasks sst2 cola --recipes mixed pabee --seeds 42 43

Every recipe starts from the same encoder and has EPOCHS epochs of updates to the backbone, which its phases
share equally; training heads on stored features comes on top and takes seconds, so `deebert` and `frozen` start from
the run of `final`, and `joint` from that of `elasticbert`: the exit before the first layer does not train the
backbone, so theirs are the same. `sst2` is 8,000 labelled rows of the train file, with 24,000 others as text without
labels for recipes that can use it, 4,000 to calibrate on and 6,000 to test on. On other tasks the development set is
measured, with thresholds chosen on its other half. `final` and the published recipes have exits after every layer,
ours also one before the first.

Finished runs in --out are read and interrupted ones resume, so the command can be repeated; runs in the files that
--known names are not repeated, and `--recipes` without a name only makes tables of them. Writes OUT/recipes.json,
OUT/recipes.md and OUT/recipes.svg:

- the headline metric at every layer;
- area: the mean headline metric over all budgets of MACs, from none (the majority class) to full depth, under the
  rule `agreement`;
- the mean layer under `agreement` at 0.5 points lost and at 2% of predictions changed;
- the 95% interval, over draws of the examples, of the last layer's difference from `final` (with several seeds, the
  mean of their intervals).
"""

import argparse
import json
import time
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from shared import markdown, processor, read_sst2
from transformers import AutoTokenizer, set_seed

from offramp import ExitModel, Task, Trace, collect, sweep, train
from offramp.data.metrics import compute
from offramp.policy import Policy
from offramp.rules.agreement import Agreement
from offramp.training.recipes import parse_recipe

PUBLISHED = ["deebert", "pabee", "elbert", "romebert", "elasticbert"]
OURS = ["frozen", "mixed", "joint"]
RECIPES = ["final", *PUBLISHED, *OURS]
FIRST = {"deebert": "final", "frozen": "final", "joint": "elasticbert"}
"""The recipe that is the first phase of another."""
SST2 = {"train": 8000, "calibration": 4000, "test": 6000, "unlabelled": 24_000}
TOLERANCE = 0.25
"""On STS-B, scores no further apart than this are the same prediction."""
THRESHOLDS = 1 / (1 + np.exp(-np.linspace(-3, 9, 200)))
DRAWS = 1000
STORED_POINTS = 50
"""Points of a curve."""


def main() -> None:
    options = parse_arguments()
    torch.set_num_threads(options.threads)
    results = [run for file in options.known for run in json.loads(file.read_text())["runs"]]
    options.out.mkdir(parents=True, exist_ok=True)
    for task in options.tasks:
        for seed in options.seeds:
            for recipe in options.recipes:
                run = {"task": task, "recipe": recipe, "seed": seed}
                if not any(run.items() <= each.items() for each in results):
                    folder, final = (
                        trained(options, task, recipe, seed),
                        run_folder(options, task, "final", seed),
                    )
                    results.append({**run, **measure(folder, final, options)})
                    save(results, options.out)
    save(results, options.out)


def save(results: list[dict[str, Any]], folder: Path) -> None:
    """Everything measured so far: the runs as JSON, a table for each task, a picture."""
    lines = ",\n".join(json.dumps(rounded(result)) for result in results)
    (folder / "recipes.json").write_text(f'{{"runs": [\n{lines}\n]}}\n')
    tasks = dict.fromkeys(result["task"] for result in results)
    tables = [table([result for result in results if result["task"] == task]) for task in tasks]
    (folder / "recipes.md").write_text("\n".join(tables))
    plot(results, folder / "recipes.svg")


def rounded(value: Any) -> Any:
    """To four digits after the point, in lists and dicts too."""
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(each) for each in value]
    return round(value, 4) if isinstance(value, float) else value


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("encoder")
    parser.add_argument("glue", type=Path, help="folder of the GLUE tasks")
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--tasks", nargs="+", default=["sst2", "cola", "mrpc", "rte", "sts-b"])
    parser.add_argument(
        "--recipes", nargs="*", default=RECIPES, help="with optional settings: romebert:anchor=final"
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[42])
    parser.add_argument("--epochs", type=float, default=4)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument(
        "--bf16", action="store_true", help="train in bfloat16 where torch can; scores are fp32"
    )
    parser.add_argument("--known", type=Path, nargs="+", default=[], help="recipes.json of earlier runs")
    return parser.parse_args()


def trained(options: argparse.Namespace, name: str, recipe: str, seed: int) -> Path:
    """The folder of a trained model, with the traces that are measured."""
    folder = run_folder(options, name, recipe, seed)
    if (folder / "minutes").exists():
        return folder
    task, parts = load_task(name, options)
    tokenizer = AutoTokenizer.from_pretrained(options.encoder)
    method = parse_recipe(recipe)
    backbone_phases = [phase for phase in method.phases if phase.trainable != "exits"]
    start_from = trained(options, name, FIRST[method.name], seed) if method.name in FIRST else None
    set_seed(seed)
    layers = len_layers(options.encoder)
    exits = range(0 if method.name in OURS else 1, layers + 1)
    model = ExitModel.from_encoder(
        options.encoder, num_labels=len(task.labels or [0]), problem_type=task.problem, exits=list(exits)
    )
    if start_from:
        copy_weights(ExitModel.from_pretrained(start_from / "model"), model)
        model.config.fine_tuned = True
        method = replace(method, phases=tuple(phase for phase in method.phases if phase.trainable == "exits"))
    args = {
        "output_dir": folder,
        "seed": seed,
        "eval_strategy": "no",
        "load_best_model_at_end": False,  # the development set is for scores alone
        "save_strategy": "no",
        "bf16": options.bf16,
        "report_to": "none",
        "disable_tqdm": True,
    }
    if any(phase.epochs is None for phase in method.phases):
        args |= {
            "num_train_epochs": options.epochs / max(1, len(backbone_phases)),
            "per_device_train_batch_size": options.batch,
            "learning_rate": options.learning_rate,
        }
    start = time.perf_counter()
    unlabelled = Dataset.from_dict({"text": parts["unlabelled"]["text"]}) if parts else None
    train(model, task, method, args, tokenizer=tokenizer, unlabelled=unlabelled)
    minutes = (time.perf_counter() - start) / 60
    rows = {"dev": task.load("validation")["validation"]}
    rows |= {part: Dataset.from_dict(parts[part]) for part in ("calibration", "test") if parts}
    for part, data in rows.items():
        trace = collect(model, data, tokenizer, metrics=task.metrics, data=part, progress=False)
        trace.save(folder / f"{part}.trace")
    (folder / "minutes").write_text(f"{minutes:.1f}")
    return folder


def run_folder(options: argparse.Namespace, task: str, recipe: str, seed: int) -> Path:
    return Path(options.out) / f"{task}-{recipe.replace(':', '-')}-{seed}"


def copy_weights(source: ExitModel, target: ExitModel) -> None:
    """The backbone, and the exits that both models have."""
    target.backbone.load_state_dict(source.backbone.state_dict())
    for number, layer in enumerate(source.config.exits):
        mine, theirs = target.heads.parts(target.config.exits.index(layer)), source.heads.parts(number)
        for part, trained_part in zip(mine, theirs, strict=True):
            part.load_state_dict(trained_part.state_dict())


def len_layers(encoder: str) -> int:
    return int(json.loads((Path(encoder) / "config.json").read_text())["num_hidden_layers"])


def load_task(name: str, options: argparse.Namespace) -> tuple[Task, dict[str, Any]]:
    """The task and, for SST-2, the other parts of its train file."""
    if name != "sst2":
        return Task.named(name, folder=options.glue), {}
    rows = read_sst2(options.glue / "SST-2" / "train.tsv")
    order = iter(np.random.default_rng(0).permutation(len(rows["text"])).tolist())
    parts = {}
    for part, count in SST2.items():
        chosen = [next(order) for _ in range(count)]
        parts[part] = {name: [column[row] for row in chosen] for name, column in rows.items()}
    folder = options.out / "sst2"
    folder.mkdir(parents=True, exist_ok=True)
    Dataset.from_dict(parts["train"]).to_csv(folder / "train.csv")
    Dataset.from_dict(read_sst2(options.glue / "SST-2" / "dev.tsv")).to_csv(folder / "dev.csv")
    task = Task.from_files(
        train=folder / "train.csv", validation=folder / "dev.csv", metrics=["acc"], name="sst2"
    )
    return task, parts


def measure(folder: Path, final: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Everything that the tables show about one model."""
    traces = {file.stem: Trace.load(file) for file in folder.glob("*.trace")}
    dev = traces["dev"]
    return {
        "minutes": float((folder / "minutes").read_text()),
        "date": str(date.today()),
        "machine": f"{processor()}, {options.threads} threads{', bf16' if options.bf16 else ''}",
        "headline": dev.metrics[0],
        "layers": list(dev.layers),
        "scores": {part: exit_scores(trace) for part, trace in traces.items()},
        **{f"area_{part}": area(trace) for part, trace in traces.items() if part != "calibration"},
        "at_half_a_point": operating_point(traces, "loss"),
        "at_2_percent_changed": operating_point(traces, "changed"),
        "last_minus_final": last_minus_final(dev, final / "dev.trace"),
        "curve": thinned(curve(dev)),
    }


def exit_scores(trace: Trace) -> list[float]:
    return [score(trace, trace.problem.decode(trace.logits[:, exit])) for exit in range(len(trace.layers))]


def score(trace: Trace, predictions: Any) -> float:
    metric = trace.metrics[0]
    return 100 * compute([metric], trace.labels, predictions)[metric]  # type: ignore[arg-type]


def rule(trace: Trace) -> str:
    return f"agreement:0,tolerance={TOLERANCE}" if not trace.problem.has_classes else "agreement"


def curve(trace: Trace) -> list[tuple[float, float]]:
    """(fraction of full depth's MACs, headline metric), cross-fitted, from the majority class on."""
    found = sweep(trace, rule(trace), points=200)
    full = found.full.cost.macs or 1.0
    points = [*found.curves[rule(trace)].points, found.full]
    rows = [((point.cost.macs or 0.0) / full, 100 * found.score(point)) for point in points]
    return sorted([(0.0, majority(trace)), *rows])


def thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Few enough to store, the first and the last among them."""
    chosen = np.linspace(0, len(points) - 1, min(STORED_POINTS, len(points))).round().astype(int)
    return [points[index] for index in chosen]


def majority(trace: Trace) -> float:
    if not trace.problem.has_classes:
        return 0.0
    labels = np.asarray(trace.labels)
    return score(trace, np.full(len(labels), np.bincount(labels).argmax()))


def area(trace: Trace) -> float:
    spent, reached = np.array(curve(trace)).T
    return float(np.trapezoid(reached, spent))


def operating_point(traces: dict[str, Trace], target: str) -> dict[str, Any]:
    """Mean layer and score at the loosest threshold that keeps to the target on other examples."""
    dev = traces["dev"]
    if "calibration" in traces:
        return {part: applied(traces["calibration"], traces[part], target) for part in ("test", "dev")}
    order = np.random.default_rng(0).permutation(len(dev))
    halves = [dev[np.sort(order[::2])], dev[np.sort(order[1::2])]]
    both = [applied(halves[0], halves[1], target), applied(halves[1], halves[0], target)]
    return {"dev": {name: float(np.mean([each[name] for each in both])) for name in both[0]}}


def applied(calibration: Trace, test: Trace, target: str) -> dict[str, float]:
    """A third fits the rule, the rest chooses the threshold, other examples are measured."""
    tolerance = None if calibration.problem.has_classes else TOLERANCE
    fitted = Agreement.fit(calibration[::3], tolerance)
    rest = calibration[np.arange(len(calibration)) % 3 > 0]
    best = None
    for threshold in sorted(THRESHOLDS, reverse=True):
        policy = Policy(fitted, float(threshold))
        outcome = measured(policy, rest, tolerance)
        if outcome["lost" if target == "loss" else "changed"] > (0.5 if target == "loss" else 2.0):
            break
        best = policy
    return measured(best or Policy.parse("never"), test, tolerance)


def measured(policy: Policy, trace: Trace, tolerance: float | None) -> dict[str, float]:
    decision = policy.decide(trace.logits, layers=trace.layers, problem_type=trace.problem)
    reached = score(trace, trace.problem.decode(decision.logits))
    return {
        "mean_layer": float(np.asarray(trace.layers)[decision.exits].mean()),
        "score": reached,
        "lost": exit_scores(trace)[-1] - reached,
        "changed": 100 * float(1 - trace.agrees(decision.logits, tolerance).mean()),
    }


def table(results: list[dict[str, Any]]) -> str:
    """One row for each recipe, means over seeds; rows that lack a seed say so."""
    task, headline = results[0]["task"], results[0]["headline"]
    part = "test" if "test" in results[0]["scores"] else "dev"
    depth = max(results[0]["layers"])
    header = [
        f"{task}, {headline} at layer",
        *map(str, range(depth + 1)),
        "area",
        "0.5 lost",
        "2% changed",
        "last minus final",
    ]
    rows = []
    seeds = {each["seed"] for each in results}
    for recipe in dict.fromkeys(each["recipe"] for each in results):
        runs = [each for each in results if each["recipe"] == recipe]
        had = [run["seed"] for run in runs]
        name = recipe if {*had} == seeds else f"{recipe}, seed {', '.join(map(str, had))} only"
        scores = np.mean([run["scores"][part] for run in runs], axis=0)
        cells = [f"{value:.1f}" for value in scores]
        cells = [""] * (depth + 1 - len(cells)) + cells
        numbers = [
            np.mean([run[f"area_{part}"] for run in runs]),
            np.mean([run["at_half_a_point"][part]["mean_layer"] for run in runs]),
            np.mean([run["at_2_percent_changed"][part]["mean_layer"] for run in runs]),
        ]
        ends = [run["last_minus_final"] for run in runs if run["last_minus_final"]]
        interval = "{:+.1f} to {:+.1f}".format(*np.mean(ends, axis=0)) if ends else ""
        summary = [f"{numbers[0]:.1f}", f"{numbers[1]:.2f}", f"{numbers[2]:.2f}", interval]
        rows.append([name, *cells, *summary])
    return markdown(header, rows) + "\n"


def last_minus_final(trace: Trace, final: Path) -> list[float]:
    """The 95% interval of the difference at the last layer, over draws of examples; empty without `final`."""
    if not final.exists():
        return []
    labels, metric = np.asarray(trace.labels), trace.metrics[0]
    mine, theirs = (each.problem.decode(each.logits[:, -1]) for each in (trace, Trace.load(final)))
    draws = np.random.default_rng(0).integers(0, len(labels), (DRAWS, len(labels)))
    found = [
        compute([metric], labels[rows], mine[rows])[metric]
        - compute([metric], labels[rows], theirs[rows])[metric]
        for rows in draws
    ]
    return [100 * float(end) for end in np.percentile(found, [2.5, 97.5])]


def plot(results: list[dict[str, Any]], file: Path) -> None:
    """Headline metric against MACs for every recipe, one panel per task."""
    from matplotlib.figure import Figure

    tasks = list(dict.fromkeys(each["task"] for each in results))
    figure = Figure(figsize=(4.2 * len(tasks), 3.6), layout="constrained")
    axes = figure.subplots(1, len(tasks), squeeze=False)[0]
    recipes = dict.fromkeys(each["recipe"] for each in results if each["recipe"] != "final")
    for axis, task in zip(axes, tasks, strict=True):
        for number, recipe in enumerate(recipes):
            runs = [each for each in results if each["task"] == task and each["recipe"] == recipe]
            if runs:
                spent, reached = np.array(runs[0]["curve"]).T
                width = 2.2 if recipe in OURS else 1.1
                color = "black" if recipe == "joint" else f"C{number}"
                axis.plot(spent, reached, color=color, label=recipe, linewidth=width)
        axis.set_title(task)
        axis.set_xlabel("MACs, fraction of full depth")
    axes[0].set_ylabel("headline metric")
    axes[0].legend(fontsize=8)
    figure.savefig(file)


if __name__ == "__main__":
    main()
