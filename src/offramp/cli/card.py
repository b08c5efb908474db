"""The model card: README.md in a model's folder, written from what else lies there.

config.json tells backbone, exits, head, policy and certificate; scores.json the score of every exit, as
training left them; curve.json what leaving early costs and saves, as calibration left it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offramp.atomic import write_files
from offramp.cli.models import CONFIG, is_path, read_config

if TYPE_CHECKING:
    from offramp.policy import Policy
    from offramp.trace import Trace

CARD, SCORES, CURVE = "README.md", "scores.json", "curve.json"
ROWS = 9
"""Points of a curve that the card shows."""


def write_card(folder: Path) -> None:
    """Write the card anew."""
    write_files({folder / CARD: card(folder, read_config(folder), read(folder / CURVE))})


def store_policy(folder: Path, policy: "Policy", trace: "Trace | None") -> None:
    """Predictions will leave by this policy unless told otherwise; the card tells of it, and of the trace."""
    config = read_config(folder) | {"policy": policy.to_json()}
    texts = {folder / CONFIG: json.dumps(config, indent=2)}
    if trace is None or (trace.labels is None and trace.problem_type == "regression"):
        curve = read(folder / CURVE) | {"policy": None}  # what it tells of an earlier policy
    else:
        curve = curve_for_card(trace, policy)
    if "points" in curve:
        texts[folder / CURVE] = json.dumps(curve, indent=1)
    write_files({**texts, folder / CARD: card(folder, config, curve)})


def read(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}


def curve_for_card(trace: "Trace", policy: "Policy") -> dict[str, Any]:
    """A few points of the policy's rule on this trace, from the cheapest to full depth, and the policy itself."""
    from offramp.cli.timing import on_trace
    from offramp.curves import sweep
    from offramp.policy.text import criterion_name

    rule = str(replace(policy, class_thresholds={}))
    found = sweep(trace, rule)
    points = found.curves[rule].points
    chosen = sorted({round(index * (len(points) - 1) / (ROWS - 1)) for index in range(ROWS)})
    return {
        "data": trace.data,
        "examples": len(trace),
        "layers": trace.layers[-1],
        "rule": criterion_name(policy.criterion),
        "headline": found.headline,
        "points": [
            {
                "threshold": points[index].threshold,
                "score": found.score(points[index]),
                "mean_layer": points[index].cost.mean_layer,
            }
            for index in chosen
        ],
        "policy": on_trace(policy, trace),
    }


def card(folder: Path, config: Mapping[str, Any], curve: Mapping[str, Any]) -> str:
    """The whole page."""
    name, scores = title(folder.resolve()), read(folder / SCORES)
    parts = [front_matter(config), f"# {name}", summary(config)]
    parts += [about_exits(scores)] if len(scores) > 1 else []
    parts += [about_policy(config["policy"])] if config.get("policy") else []
    parts += [about_curve(curve)] if "points" in curve else []
    return "\n\n".join([*parts, usage()]) + "\n"


def title(folder: Path) -> str:
    """The name of the folder, or of the run around it."""
    return folder.parent.name if folder.name == "model" else folder.name


def front_matter(config: Mapping[str, Any]) -> str:
    tags = ["early-exit", "text-classification", config["encoder_config"]["model_type"]]
    return "\n".join(["---", "library_name: offramp", "tags:", *(f"- {tag}" for tag in tags), "---"])


def summary(config: Mapping[str, Any]) -> str:
    encoder, head = config["encoder_config"], config["head"]
    layers = config["exits"]
    source = encoder.get("_name_or_path", "")
    origin = f" ({Path(source).name if is_path(source) else source})" if source else ""
    rows = {
        "encoder": f"{encoder['model_type']}{origin}, {layers[-1]} layers",
        "exits": f"behind layers {', '.join(map(str, layers))}",
        "head": f"{head['pooling']} pooling, pooler {head['pooler']}, classifier {head['classifier']}"
        + (", with a gate" if head["gate"] else ""),
        "problem": config["problem_type"],
        "labels": ", ".join(config.get("id2label", {}).values()),
    }
    return (
        "A text classifier with exits: each text leaves the model at the layer where the answer is clear enough.\n\n"
        + table(["", ""], [[key, value] for key, value in rows.items()])
    )


def about_exits(scores: Mapping[str, Any]) -> str:
    metrics = [name for name in scores if name != "layers"]
    rows = [
        [str(layer), *(percent(scores[metric][exit]) for metric in metrics)]
        for exit, layer in enumerate(scores["layers"])
    ]
    return "## Every exit\n\nScores on the validation examples of training, in per cent.\n\n" + table(
        ["layer", *metrics], rows
    )


def about_policy(record: Mapping[str, Any]) -> str:
    from offramp.policy import Policy

    policy = Policy.from_json(record)
    certificate = policy.certificate
    if certificate is None:
        promise = "It carries no certificate: nothing is promised for other data."
    else:
        promise = (
            f"Certificate: {certificate['promise']} It rests on {certificate['examples']} examples "
            f"({certificate['data']}) and the {certificate['bound']} bound; the risk observed on them was "
            f"{certificate['observed_risk']:.4f}. It speaks of data like these, and of no other."
        )
    return f"## Policy\n\nPredictions leave by `{policy}` unless told otherwise. {promise}"


def about_curve(curve: Mapping[str, Any]) -> str:
    headline, own = curve["headline"], curve["policy"]
    rows = [
        [
            "-" if point["threshold"] is None else f"{point['threshold']:.4g}",
            percent(point["score"]),
            f"{point['mean_layer']:.2f}",
        ]
        for point in curve["points"]
    ]
    if own is not None:
        score = own["scores"].get(headline)
        rows.append(["**the policy**", "-" if score is None else percent(score), f"{own['mean_layer']:.2f}"])
    return (
        f"## Curve\n\n{curve['rule']} on {curve['examples']} examples ({curve['data']}), "
        f"{curve['layers']} layers in all.\n\n" + table(["threshold", headline, "mean layer"], rows)
    )


def usage() -> str:
    return (
        "## Use\n\n```python\nfrom offramp import Classifier\n\n"
        'classifier = Classifier.from_pretrained("FOLDER")  # where this file is\n'
        'print(classifier.predict("a text"))\n```'
    )


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def percent(score: float) -> str:
    return f"{100 * score:.1f}"
