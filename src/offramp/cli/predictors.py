"""Anything that gives scores to texts: a folder of transformers or offramp, an ONNX file, a server."""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from offramp.cli.options import RuntimeOptions
from offramp.errors import BadData, CannotLoad, Incompatible
from offramp.problems import PROBLEMS, Array, Problem

BATCH = 32
ATTEMPTS = 5
"""How often a server without capacity is asked before giving up."""
LONGEST_WAIT = 30.0
TIMEOUT = 300.0
DEFAULT_LENGTH = 512
"""Tokens, for an ONNX file whose config says nothing."""


@dataclass(frozen=True)
class Predictor:
    name: str
    labels: tuple[str, ...]
    """In a regression there is one."""
    problem: Problem
    score: Callable[[Sequence[Any]], Array]
    """Texts or pairs -> (texts, labels) probabilities; in a regression the number."""


def load_predictor(name: str, runtime: RuntimeOptions) -> Predictor:
    """A model or server by its folder, file, hub name or address."""
    predictor = find_predictor(name, runtime)
    if predictor.problem.of_tokens:
        raise Incompatible(
            f"{name} tags tokens, and certify compares predictions for whole texts; `offramp retrofit` proves what "
            "a faster tagger changes, and `offramp calibrate --guarantee` what a policy does."
        )
    return predictor


def find_predictor(name: str, runtime: RuntimeOptions) -> Predictor:
    if name.startswith(("http://", "https://")):
        return server(name)
    if name.lower().endswith(".onnx"):
        return onnx_file(Path(name), runtime)
    from offramp.files import read_json
    from offramp.folder import find_model, is_exported

    folder = find_model(name)
    if is_exported(folder) or read_json(folder / "config.json").get("model_type") == "offramp":
        return offramp_model(name, folder, runtime)
    return transformers_model(name, folder, runtime)


def offramp_model(name: str, folder: Path, runtime: RuntimeOptions) -> Predictor:
    runner = runtime.load(folder, None)
    info = runner.runtime.info

    def score(texts: Sequence[Any]) -> Array:
        return probabilities(info.problem, runner.decide(texts).logits)

    return Predictor(name, info.labels, info.problem, score)


def transformers_model(name: str, folder: Path, runtime: RuntimeOptions) -> Predictor:
    from dataclasses import replace

    import torch

    from offramp.model_info import read_labels
    from offramp.retrofits.original import load_fine_tuned

    if runtime.threads is not None:
        torch.set_num_threads(runtime.threads)
    model = load_fine_tuned(folder)
    if runtime.max_length is not None:
        model = replace(model, max_length=min(runtime.max_length, model.max_length))
    labels, problem = read_labels(model.model.config.to_dict()), model.problem
    return Predictor(name, labels, problem, lambda texts: probabilities(problem, model.logits(texts)))


def onnx_file(file: Path, runtime: RuntimeOptions) -> Predictor:
    """A classifier in one graph, with config.json and tokenizer.json in its folder or in the one above."""
    from tokenizers import Tokenizer

    from offramp.files import read_json
    from offramp.inference.texts import BatchTokenizer
    from offramp.model_info import problem_in, read_labels
    from offramp.runtimes.onnx import Graph, embedding_inputs, session_options

    places = (file.parent, file.parent.parent)
    folder = next((place for place in places if (place / "tokenizer.json").is_file()), None)
    if not file.is_file() or folder is None or not (folder / "config.json").is_file():
        raise CannotLoad(
            f"{file}: expected an ONNX file with config.json and tokenizer.json beside or above it."
        )
    config = read_json(folder / "config.json")
    labels, problem = read_labels(config), problem_in(config)
    length = min(
        runtime.max_length or DEFAULT_LENGTH, config.get("max_position_embeddings") or DEFAULT_LENGTH
    )
    tokenizer = BatchTokenizer(Tokenizer.from_file(str(folder / "tokenizer.json")), length)
    graph = Graph(file, session_options(runtime.threads))
    padding = int(config.get("pad_token_id") or 0)

    def score(texts: Sequence[Any]) -> Array:
        outputs = graph(embedding_inputs(tokenizer(texts), padding))
        return probabilities(problem, outputs.get("logits", next(iter(outputs.values()))))

    return Predictor(str(file), labels, problem, in_batches(score))


def server(address: str) -> Predictor:
    """A server of offramp, by its /predict."""
    base = address.rstrip("/").removesuffix("/predict")
    info = ask(f"{base}/info")
    if not isinstance(info, dict) or info.get("problem") not in PROBLEMS:
        raise BadData(f"{base}/info: expected that of a server of offramp.")
    labels, problem = tuple(info["labels"]), PROBLEMS[info["problem"]]

    def score(texts: Sequence[Any]) -> Array:
        url = f"{base}/predict"
        answer = ask(url, {"texts": list(texts), "probabilities": True})
        try:
            if not problem.has_classes:
                return np.array([[as_number(prediction["score"])] for prediction in answer["predictions"]])
            return np.array(
                [
                    [as_number(prediction["probabilities"][label]) for label in labels]
                    for prediction in answer["predictions"]
                ]
            )
        except (KeyError, TypeError):
            raise BadData(f"{url}: expected the predictions of a server of offramp.") from None

    return Predictor(address, labels, problem, in_batches(score))


def ask(url: str, body: Any = None) -> Any:
    """The JSON at an address, or the answer to a JSON body; waits where a server has no capacity."""
    content = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, content, {"Content-Type": "application/json"})
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            if error.code not in (429, 503) or attempt == ATTEMPTS:
                reason = " ".join(error.read(500).decode("utf-8", "replace").split())
                raise BadData(f"{url} answers {error.code}: {reason}") from None
            wait = error.headers.get("Retry-After", "")
            time.sleep(min(float(wait) if wait.isdigit() else attempt, LONGEST_WAIT))
        except OSError as error:
            raise CannotLoad(f"{url}: no server answers ({getattr(error, 'reason', error)}).") from None
        except ValueError:
            raise BadData(f"{url}: expected the JSON of a server of offramp.") from None
    raise AssertionError("the last attempt returns or raises")


def as_number(value: float | None) -> float:
    """JSON has no NaN."""
    return float("nan") if value is None else value


def in_batches(score: Callable[[Sequence[Any]], Array]) -> Callable[[Sequence[Any]], Array]:
    def score_all(texts: Sequence[Any]) -> Array:
        return np.concatenate([score(texts[start : start + BATCH]) for start in range(0, len(texts), BATCH)])

    return score_all


def probabilities(problem: Problem, logits: Array) -> Array:
    """(texts, labels), or the number of a regression."""
    return problem.probabilities(logits) if problem.has_classes else logits


def match_labels(old: Predictor, new: Predictor) -> list[int]:
    """The position of each label of the old predictor in the scores of the new one."""
    if old.problem != new.problem:
        raise BadData(
            f"{old.name} is for {old.problem} and {new.name} for {new.problem}; compare like with like."
        )
    for one, other in ((old, new), (new, old)):
        unknown = [label for label in one.labels if label not in other.labels]
        if unknown and old.problem.has_classes:
            raise BadData(
                f"{other.name} has no label {unknown[0]!r}, which {one.name} has; rename the labels in config.json."
            )
    return [new.labels.index(label) for label in old.labels] if old.problem.has_classes else [0]
