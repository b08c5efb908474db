"""The model card, README.md in a model folder."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from offramp.files import SCORES, SUFFIX, read_json, write_files
from offramp.folder import is_path
from offramp.guarantees.certificate import Certificate
from offramp.model_info import ModelInfo
from offramp.policy import Policy
from offramp.problems import MULTI_LABEL, REGRESSION, SINGLE_LABEL, TOKENS
from offramp.reports.results import RETROFIT, RetrofitResults, origin_lines
from offramp.reports.table import layer_rows, percent, short, threshold_text
from offramp.rules.rank import Rank
from offramp.wording import count

CARD, CURVE = "README.md", "curve.json"


def write_card(folder: Path) -> None:
    write_files({folder / CARD: card(folder, ModelInfo.read(folder), read_optional(folder / CURVE))})


def read_optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def card(folder: Path, info: ModelInfo, curve: Mapping[str, Any]) -> str:
    scores = read_optional(folder / SCORES)
    parts = [exits_section(scores)] if len(scores) > 1 else []
    parts += [policy_section(info.policy)] if info.policy else []
    parts += [curve_section(curve)] if "points" in curve else []
    return card_text(folder, info, "offramp", [], [*parts, usage_section(info)])


def card_text(folder: Path, info: ModelInfo, library: str, tags: Sequence[str], parts: Sequence[str]) -> str:
    """A card with its metadata: what the model is and, after a retrofit, the comparison, before the other parts."""
    from huggingface_hub import ModelCard, ModelCardData

    task = task_of(info)
    metadata = ModelCardData(
        library_name=library, pipeline_tag=task, tags=[*tags, "early-exit", task, info.backbone]
    )
    opening = [f"# {title(folder.resolve())}", summary(info)]
    opening += [retrofit_section(RetrofitResults.load(folder))] if (folder / RETROFIT).is_file() else []
    body = "\n\n".join([*opening, *parts])
    return str(ModelCard(f"---\n{metadata.to_yaml()}\n---\n\n{body}\n"))


def ranks(info: ModelInfo) -> bool:
    """Whether the policy is for the documents of a query."""
    return info.policy is not None and isinstance(info.policy.rule, Rank)


def task_of(info: ModelInfo) -> str:
    """The hub's name of the task of such a model."""
    if ranks(info):
        return "text-ranking"
    return "token-classification" if info.problem.of_tokens else "text-classification"


def title(folder: Path) -> str:
    """The name of the folder, or of its training run; a folder being written is inside one with a random name."""
    *others, name = [part for part in folder.parts if not part.endswith(SUFFIX)]
    return others[-1] if name == "model" else name


def summary(info: ModelInfo) -> str:
    source = info.encoder.get("_name_or_path", "")
    origin = f" ({Path(source).name if is_path(source) else source})" if source else ""
    rows = {
        "encoder": f"{info.backbone}{origin}, {count(info.exits[-1], 'layer')}",
        "exits": f"after layers {', '.join(map(str, info.exits))} (0: before the first), {classifiers(info.head)}",
        "predicts": PREDICTS[info.problem],
        "labels": ", ".join(info.labels),
    }
    what = "A text classifier with early exits: each text stops at the first exit that is sure enough."
    if ranks(info):
        what = "A reranker with early exits: documents that cannot be among the best exit early."
    elif info.problem.of_tokens:
        what = "A tagger with early exits: each text stops at the first exit that is sure enough of all its words."
    return f"{what}\n\n" + table([["", ""], *rows.items()])


PREDICTS = {
    SINGLE_LABEL: "one label",
    MULTI_LABEL: "any number of labels",
    REGRESSION: "a number",
    TOKENS: "a tag for each token",
}
READS = {
    "first": "the first token",
    "mean": "the mean of all tokens",
    "pair": "both texts of a pair",
    "tokens": "every token",
}


def classifiers(head: Mapping[str, Any]) -> str:
    """What the exits are, in words."""
    of = {"own": "each with its own small classifier", "shared": "which share one classifier"}
    shared = of.get(head["classifier"], f"one classifier for every {head['classifier']} of them")
    return f"{shared}, on {READS[head['pooling']]}" + (", and a gate" if head["gate"] else "")


def retrofit_section(results: RetrofitResults) -> str:
    """What was measured. What is promised is with the policy, whose certificate loading checks."""
    lines = "\n".join(f"- {line}" for line in [*origin_lines(results), *results.gain(), *results.details()])
    how = f"Measured on {results.date}, with `{short(results.policy)}`."
    return f"## Compared with {results.original}\n\n{how}\n\n{table(results.rows())}\n\n{lines}"


def exits_section(scores: Mapping[str, Any]) -> str:
    rows = layer_rows(scores["layers"], {name: scores[name] for name in scores if name != "layers"})
    return "## Scores of every exit\n\nOn the validation split, in per cent.\n\n" + table(rows)


def policy_section(policy: Policy) -> str:
    return f"## Policy\n\nThe default policy is `{short(policy)}`. {promise(policy.certificate)}"


def promise(certificate: Certificate | None) -> str:
    if certificate is None:
        return "It has no certificate: nothing is guaranteed on other data."
    return f"{certificate.summary}\n\nIn full: {certificate.promise} {certificate.evidence}"


def curve_section(curve: Mapping[str, Any]) -> str:
    headline, policy = curve["headline"], curve["policy"]
    rows = [
        [threshold_text(point["threshold"]), percent(point["score"]), f"{point['mean_layer']:.2f}"]
        for point in curve["points"]
    ]
    if policy is not None:
        score = policy["scores"].get(headline)
        shown = "-" if score is None else percent(score)
        rows.append(["**the policy**", shown, f"{policy['mean_layer']:.2f}"])
    return (
        f"## Curve\n\n{curve['rule']} on {count(curve['examples'], 'example')} ({curve['data']}), "
        f"out of {count(curve['layers'], 'layer')}.\n\n"
        + table([["threshold", headline, "mean layer"], *rows])
    )


def usage_section(info: ModelInfo) -> str:
    kind, call = "Classifier", '.predict("a text")'
    if ranks(info):
        kind, call = "Reranker", '.rank("a query", ["a document", "another"])'
    elif info.problem.of_tokens:
        kind, call = "Tagger", '.tag("a text")'
    name = kind.lower()
    return f"""\
## Use

```python
from offramp import {kind}

{name} = {kind}.from_pretrained("FOLDER")  # the folder of this file
print({name}{call})
```"""


def table(rows: Sequence[Sequence[str]]) -> str:
    """A header and rows in Markdown."""
    lines = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
