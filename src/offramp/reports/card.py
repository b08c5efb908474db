"""The model card, README.md in a model folder, and storing a policy, which the card describes."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

from offramp.files import SCORES, SUFFIX, read_json, write_files
from offramp.folder.folder import ModelInfo, is_exported, is_path
from offramp.folder.manifest import CONFIG, Manifest
from offramp.measuring import sweep
from offramp.measuring.scores import measure
from offramp.policy import Certificate, Policy, check_certificate
from offramp.policy.ranking import RankRule
from offramp.policy.text import rule_name
from offramp.problems import REGRESSION
from offramp.reports.table import layer_rows, percent, short, threshold_text
from offramp.trace import Trace
from offramp.wording import count

CARD, CURVE, RETROFIT = "README.md", "curve.json", "retrofit.json"
ROWS = 9
"""The number of points of a curve in the card."""


def store_policy(
    folder: str | PathLike[str], policy: Policy | str, trace: Trace | None = None, target: str | None = None
) -> Policy:
    """Store a policy in a model folder, saved or exported: `Classifier.from_pretrained` then uses it by default.

    The model card is updated too; with the trace that the policy was calibrated on, it shows the rule's curve.
    `target`, the flags of `offramp calibrate` that it was found with, is kept for hints to calibrate it again.
    Either all files are updated or none. Returns the policy as stored: in an exported folder, a certificate that was
    issued for another model or precision is left out.
    """
    folder = Path(folder)
    info = ModelInfo.read(folder, replaces_policy=True)
    policy = info.check_policy(policy)
    if is_exported(folder):
        manifest = Manifest.load(folder)
        policy = check_certificate(policy, manifest.fingerprint, manifest.precision)
    config = read_json(folder / CONFIG) | {"policy": policy.to_json(), "policy_target": target}
    if trace is None or (trace.labels is None and trace.problem_type == REGRESSION):
        curve = read_optional(folder / CURVE) | {"policy": None}  # measured for an earlier policy
    else:
        curve = curve_for_card(trace, policy)
    files = {
        folder / CONFIG: json.dumps(config, indent=2),
        folder / CARD: card(folder, replace(info, policy=policy), curve),
    }
    if "points" in curve:
        files[folder / CURVE] = json.dumps(curve, indent=1)
    write_files(files)
    return policy


def store_rank_rule(folder: str | PathLike[str], rule: RankRule) -> None:
    """Store a rank rule in a model folder, saved or exported: `Reranker.from_pretrained` then ranks by it."""
    folder = Path(folder)
    info = ModelInfo.read(folder)
    rule.check(info.exits, info.labels, info.problem_type)
    config = read_json(folder / CONFIG) | {"rank_rule": rule.to_json()}
    found = replace(info, rank_rule=rule)
    write_files(
        {
            folder / CONFIG: json.dumps(config, indent=2),
            folder / CARD: card(folder, found, read_optional(folder / CURVE)),
        }
    )


def write_card(folder: Path) -> None:
    write_files({folder / CARD: card(folder, ModelInfo.read(folder), read_optional(folder / CURVE))})


def read_optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def curve_for_card(trace: Trace, policy: Policy) -> dict[str, Any]:
    """A few points of the rule's curve, from the cheapest to full depth, and the policy itself."""
    found = sweep(trace, policy)
    (curve,) = found.curves.values()
    points = curve.points
    chosen = sorted({round(index * (len(points) - 1) / (ROWS - 1)) for index in range(ROWS)})
    return {
        "data": trace.data,
        "examples": len(trace),
        "layers": trace.layers[-1],
        "rule": rule_name(policy.rule),
        "headline": found.headline,
        "points": [
            {
                "threshold": points[index].threshold,
                "score": found.score(points[index]),
                "mean_layer": points[index].cost.mean_layer,
            }
            for index in chosen
        ],
        "policy": measure(policy, trace),
    }


def card(folder: Path, info: ModelInfo, curve: Mapping[str, Any]) -> str:
    from huggingface_hub import ModelCard, ModelCardData

    task = "text-ranking" if info.rank_rule else "text-classification"
    metadata = ModelCardData(
        library_name="offramp", pipeline_tag=task, tags=["early-exit", task, info.backbone]
    )
    scores = read_optional(folder / SCORES)
    parts = [f"# {title(folder.resolve())}", summary(info)]
    parts += [retrofit_section(found)] if (found := read_optional(folder / RETROFIT)) else []
    parts += [exits_section(scores)] if len(scores) > 1 else []
    parts += [policy_section(info.policy)] if info.policy else []
    parts += [rank_section(info.rank_rule)] if info.rank_rule else []
    parts += [curve_section(curve)] if "points" in curve else []
    body = "\n\n".join([*parts, RANK_USAGE if info.rank_rule else USAGE])
    return str(ModelCard(f"---\n{metadata.to_yaml()}\n---\n\n{body}\n"))


def title(folder: Path) -> str:
    """The name of the folder, or of its training run; a folder being written is inside one with a random name."""
    *others, name = [part for part in folder.parts if not part.endswith(SUFFIX)]
    return others[-1] if name == "model" else name


def summary(info: ModelInfo) -> str:
    head, source = info.head, info.encoder.get("_name_or_path", "")
    origin = f" ({Path(source).name if is_path(source) else source})" if source else ""
    rows = {
        "encoder": f"{info.backbone}{origin}, {count(info.exits[-1], 'layer')}",
        "exits": f"at layers {', '.join(map(str, info.exits))}",
        "head": f"{head['pooling']} pooling, pooler {head['pooler']}, classifier {head['classifier']}"
        + (", with a gate" if head["gate"] else ""),
        "problem": info.problem_type,
        "labels": ", ".join(info.labels),
    }
    what = (
        "A reranker with early exits: documents that cannot be among the best leave the model early."
        if info.rank_rule
        else "A text classifier with early exits: each text leaves the model at the first exit that is sure enough."
    )
    return f"{what}\n\n" + table(["", ""], [[key, value] for key, value in rows.items()])


def retrofit_section(results: Mapping[str, Any]) -> str:
    lines = "\n".join(f"- {line}" for line in results["verdict"])
    rule = results["rank_rule"] if "rank_rule" in results else short(results["policy"])
    return (
        f"## Compared with {results['original']}\n\nMeasured on {results['date']}, with `{rule}`.\n\n{lines}"
    )


def exits_section(scores: Mapping[str, Any]) -> str:
    header, *rows = layer_rows(scores["layers"], {name: scores[name] for name in scores if name != "layers"})
    return "## Scores of every exit\n\nOn the validation split, in per cent.\n\n" + table(header, rows)


def policy_section(policy: Policy) -> str:
    return f"## Policy\n\nThe default policy is `{short(policy)}`. {promise(policy.certificate)}"


def rank_section(rule: RankRule) -> str:
    return f"## Reranking\n\nDocuments are ranked by the rule `{rule}`. {promise(rule.certificate)}"


def promise(certificate: Certificate | None) -> str:
    if certificate is None:
        return "It has no certificate: nothing is guaranteed on other data."
    return f"{certificate.summary}\n\nIn full: {certificate.promise} {certificate.evidence}"


def curve_section(curve: Mapping[str, Any]) -> str:
    headline, own = curve["headline"], curve["policy"]
    rows = [
        [
            threshold_text(point["threshold"]),
            percent(point["score"]),
            f"{point['mean_layer']:.2f}",
        ]
        for point in curve["points"]
    ]
    if own is not None:
        score = own["scores"].get(headline)
        rows.append(["**the policy**", "-" if score is None else percent(score), f"{own['mean_layer']:.2f}"])
    return (
        f"## Curve\n\n{curve['rule']} on {count(curve['examples'], 'example')} ({curve['data']}), "
        f"out of {count(curve['layers'], 'layer')}.\n\n" + table(["threshold", headline, "mean layer"], rows)
    )


USAGE = """\
## Use

```python
from offramp import Classifier

classifier = Classifier.from_pretrained("FOLDER")  # the folder of this file
print(classifier.predict("a text"))
```"""
RANK_USAGE = """\
## Use

```python
from offramp import Reranker

reranker = Reranker.from_pretrained("FOLDER")  # the folder of this file
print(reranker.rank("a query", ["a document", "another"]))
```"""


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
