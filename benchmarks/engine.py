"""Measures the time that early exits save, against the fastest plain run of the same model.

    python benchmarks/engine.py --model FOLDER --texts FILE [--quick] > engine.json

FOLDER holds a trained ExitModel with its tokenizer; FILE has one text per line, or is a .tsv with a column
`sentence` or `text`. A table goes to stderr and JSON to stdout. The contenders of a comparison take turns, so that
load on the machine affects all of them. Figures are medians with quartiles; ratios are taken within a turn.
"""

import argparse
import copy
import gc
import json
import resource
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any, cast
from unittest import mock

import numpy as np
import torch
import transformers
from shared import about, last_exit_only, read_texts

from offramp.engine import Engine
from offramp.inference import Classifier
from offramp.models.exit_model import ExitModel
from offramp.policy import Decider, Policy
from offramp.runtimes import Tokens, pad
from offramp.runtimes.torch import TorchRuntime

NEVER = Policy.parse("never")
PADDED = 128  # what the older systems pad every text to


def main() -> None:
    args = arguments()
    torch.set_num_threads(args.threads)
    bench = Bench(args.model, read_texts(args.texts)[: args.limit], args.speedup, args.repeats)
    parts: dict[str, Callable[[], Any]] = {
        "windows": lambda: {str(window): bench.window(window) for window in (32, 256, 1024)},
        "one text at a time": lambda: bench.one_text(50 if args.quick else 200),
        "pipeline": bench.pipeline,
        "older way": lambda: bench.older_way(10 if args.quick else 100),
        "shares": lambda: {"window": bench.shares(1024), "one text": bench.shares(1)},
        "sizes": lambda: bench.sizes([512, 1024, 2048, 4096], [0, 16, 64]),
        "growth": lambda: bench.growth([100, 1000] if args.quick else [100, 1000, 10_000, 100_000]),
    }
    report = {
        "machine": about("torch", "transformers", threads=torch.get_num_threads()),
        "workload": bench.workload(),
    }
    for name, part in parts.items():
        if not args.only or name.split()[0] in args.only:
            print(f"{name} ...", file=sys.stderr)
            report[name] = part()
    show(report)
    print(json.dumps(report, indent=2))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--model", required=True, help="folder of a trained ExitModel with its tokenizer")
    parser.add_argument("--texts", type=Path, required=True, help="one text per line, or a .tsv")
    parser.add_argument("--speedup", type=float, default=2.5, help="target for layers / mean exit layer")
    parser.add_argument("--repeats", type=int, help="turns of each comparison")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--limit", type=int, help="use only this many texts")
    parser.add_argument("--only", nargs="+", metavar="PART", help="windows, one, pipeline, older, ...")
    parser.add_argument("--quick", action="store_true", help="a minute or two, to check that it runs")
    args = parser.parse_args()
    args.repeats = args.repeats or (2 if args.quick else 9)
    args.limit = args.limit or (100 if args.quick else None)
    return args


class Bench:
    def __init__(self, model: str, texts: list[str], speedup: float, repeats: int) -> None:
        self.classifier = Classifier.from_pretrained(model)
        self.model = ExitModel.from_pretrained(model)
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(model)
        self.runtime: TorchRuntime = self.classifier.runner.runtime  # type: ignore[assignment]
        self.texts, self.repeats = texts, repeats
        self.tokens = self.classifier.runner.tokenizer(texts)
        self.depth = self.runtime.info.exits[-1]
        self.logits, _ = Engine(self.runtime).trace(self.tokens)
        self.policy = policy_for(speedup, self.logits, self.runtime.info.exits)

    def workload(self) -> dict[str, Any]:
        lengths = [len(tokens.ids) for tokens in self.tokens]
        never = Engine(self.runtime).run(self.tokens, NEVER).logits
        plain = np.concatenate([self.forward([tokens]) for tokens in self.tokens[:50]])
        early = Engine(self.runtime).run(self.tokens, self.policy)
        same = early.logits.argmax(-1) == never.argmax(-1)
        return {
            "texts": len(self.texts),
            "tokens": {"mean": float(np.mean(lengths)), "longest": max(lengths)},
            "layers": self.depth,
            "exits": len(self.runtime.info.exits),
            "width": int(self.model.config.encoder_config.hidden_size),
            "policy": str(self.policy),
            "mean exit layer": self.mean_layer(self.tokens),
            "ideal speed-up": self.depth / self.mean_layer(self.tokens),
            "same prediction as full depth": float(same.mean()),
            "largest difference between never and plain logits": float(np.abs(never[:50] - plain).max()),
        }

    def window(self, size: int) -> dict[str, Any]:
        """The engine against the plain model in the same windows and micro-batches, without and with tokenizing."""
        engine, classifier = Engine(self.runtime, size), self.with_engine(self.runtime, size)
        seconds = self.compare(
            {
                "plain": lambda: self.plain(engine, self.tokens),
                "never": lambda: engine.run(self.tokens, NEVER),
                "early": lambda: engine.run(self.tokens, self.policy),
                "plain, tokenizing": lambda: self.plain(engine, classifier.runner.tokenizer(self.texts)),
                "early, tokenizing": lambda: classifier.predict(self.texts, policy=self.policy),
            }
        )
        return self.summarize(seconds, self.tokens)

    def one_text(self, count: int) -> dict[str, Any]:
        engine, tokens, texts = Engine(self.runtime), self.tokens[:count], self.texts[:count]
        tokenize, predict = self.classifier.runner.tokenizer, self.classifier.predict
        seconds = self.compare(
            {
                "plain": lambda: [self.forward([one]) for one in tokens],
                "never": lambda: [engine.run([one], NEVER) for one in tokens],
                "early": lambda: [engine.run([one], self.policy) for one in tokens],
                "plain, tokenizing": lambda: [self.forward(tokenize([text])) for text in texts],
                "early, tokenizing": lambda: [predict(text, policy=self.policy) for text in texts],
            }
        )
        return self.summarize(seconds, tokens)

    def summarize(self, seconds: dict[str, list[float]], tokens: Sequence[Tokens]) -> dict[str, Any]:
        ideal = self.depth / self.mean_layer(tokens)
        speedup = ratio(seconds["plain"], seconds["early"])
        return {
            "ms per text": {name: summary(np.array(s) / len(tokens) * 1e3) for name, s in seconds.items()},
            "ideal speed-up": ideal,
            "speed-up": summary(speedup),
            "speed-up / ideal": summary(speedup / ideal),
            "never / plain": summary(ratio(seconds["never"], seconds["plain"])),
            "speed-up with tokenizing": summary(
                ratio(seconds["plain, tokenizing"], seconds["early, tokenizing"])
            ),
        }

    def pipeline(self) -> dict[str, Any]:
        """Against transformers' pipeline at full depth, with texts in the given order and tokenizing included."""
        pipe = transformers.pipeline(
            "text-classification", model=last_exit_only(self.model), tokenizer=self.tokenizer, batch_size=32
        )
        seconds = self.compare(
            {
                "pipeline": lambda: pipe(self.texts, truncation=True),
                "never": lambda: self.classifier.predict(self.texts, policy=NEVER),
                "early": lambda: self.classifier.predict(self.texts, policy=self.policy),
            }
        )
        return {
            "pipeline / never": summary(ratio(seconds["pipeline"], seconds["never"])),
            "pipeline / early": summary(ratio(seconds["pipeline"], seconds["early"])),
        }

    def older_way(self, count: int) -> dict[str, Any]:
        """Against one padded example at a time, with a decision in Python at every layer."""
        tokens, engine = self.tokens[:count], Engine(self.runtime)
        seconds = self.compare(
            {
                "older": lambda: [self.padded_forward(one) for one in tokens],
                "one": lambda: [engine.run([one], self.policy) for one in tokens],
                "window": lambda: engine.run(tokens, self.policy),
            }
        )
        return {
            "older / one text at a time": summary(ratio(seconds["older"], seconds["one"])),
            "older / window": summary(ratio(seconds["older"], seconds["window"])),
        }

    def shares(self, size: int) -> dict[str, float]:
        """The fraction of `predict`'s time that each part takes."""
        spent: dict[str, float] = defaultdict(float)

        def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any) -> Any:
                start = time.perf_counter()
                result = function(*args)
                spent[name] += time.perf_counter() - start
                return result

            return call

        runtime = copy.copy(self.runtime)
        runtime.adapter = copy.copy(runtime.adapter)
        runtime.adapter.layer = timed("layers", runtime.adapter.layer)  # type: ignore[method-assign]
        runtime.heads = [timed("heads", head) for head in runtime.heads]  # type: ignore[misc, arg-type]
        runtime.embed = timed("embedding", runtime.embed)  # type: ignore[method-assign]
        runtime.keep = timed("packing", runtime.keep)  # type: ignore[method-assign]
        runtime.merge = timed("packing", runtime.merge)  # type: ignore[method-assign]
        classifier = self.with_engine(runtime, size)
        classifier.runner.tokenizer = timed("tokenizing", classifier.runner.tokenizer)  # type: ignore[assignment]
        texts = self.texts if size > 1 else self.texts[:100]
        step = timed("decisions", Decider.step)
        with mock.patch.object(Decider, "step", lambda *args: step(*args)):
            start = time.perf_counter()
            for chunk in [texts] if size > 1 else [[text] for text in texts]:
                classifier.predict(chunk, policy=self.policy)
            total = time.perf_counter() - start
        spent["rest"] = total - sum(spent.values())
        return {name: seconds / total for name, seconds in spent.items()}

    def sizes(self, budgets: list[int], overheads: list[int]) -> dict[str, Any]:
        """Times for several micro-batch settings, from which the defaults were chosen."""
        runs: dict[str, Callable[[], Any]] = {}
        for budget in budgets:
            for overhead in overheads:
                runtime = copy.copy(self.runtime)
                runtime.overhead = overhead
                engine = Engine(runtime, batch_tokens=budget)
                runs[f"budget {budget}, overhead {overhead}"] = partial(engine.run, self.tokens, self.policy)
        seconds = self.compare(runs)
        return {name: summary(np.array(s) / len(self.tokens) * 1e3) for name, s in seconds.items()}

    def growth(self, counts: list[int]) -> list[dict[str, float]]:
        """Streams of growing length: time per text, and peak memory so far."""
        rows = []
        for count in counts:
            start = time.perf_counter()
            for _ in self.classifier.predict(islice(cycle(self.texts), count), policy=self.policy):
                pass
            seconds = time.perf_counter() - start
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            rows.append({"texts": count, "ms per text": seconds / count * 1e3, "peak memory in MB": peak})
        return rows

    def compare(self, contenders: dict[str, Callable[[], Any]]) -> dict[str, list[float]]:
        """Seconds of each contender in each turn, after a warm-up turn."""
        seconds: dict[str, list[float]] = {name: [] for name in contenders}
        names = list(contenders)
        for turn in range(-1, self.repeats):
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                gc.collect()
                start = time.perf_counter()
                contenders[name]()
                if turn >= 0:
                    seconds[name].append(time.perf_counter() - start)
        return seconds

    def mean_layer(self, tokens: Sequence[Tokens]) -> float:
        exits = self.policy.exits(self.logits[: len(tokens)], layers=self.runtime.info.exits)
        return float(np.mean(np.array(self.runtime.info.exits)[exits]))

    def with_engine(self, runtime: TorchRuntime, window: int) -> Classifier:
        classifier = copy.copy(self.classifier)
        classifier.runner.runtime, classifier.runner.engine = runtime, Engine(runtime, window)
        return classifier

    def plain(self, engine: Engine, examples: Sequence[Tokens]) -> None:
        """Full depth in the engine's windows and micro-batches."""
        for rows in engine.windows(examples):
            order = sorted(rows, key=lambda row: len(examples[row].ids))
            for part in engine.partition((1, len(examples[row].ids)) for row in order):
                self.forward([examples[row] for row in order[part]])

    @torch.inference_mode()
    def forward(self, tokens: Sequence[Tokens]) -> np.ndarray:
        """transformers' own forward and one head, without a mask where nothing is padded."""
        lengths = np.array([len(one.ids) for one in tokens])
        inputs = {"input_ids": torch.from_numpy(pad([one.ids for one in tokens], self.runtime.padding))}
        if tokens[0].types is not None:
            inputs["token_type_ids"] = torch.from_numpy(pad([one.types or [] for one in tokens], 0))
        mask = self.runtime.mask(lengths)
        hidden = self.runtime.backbone(attention_mask=mask, **inputs).last_hidden_state
        logits: np.ndarray = self.runtime.heads[-1](hidden, mask)[0].numpy()
        return logits

    @torch.inference_mode()
    def padded_forward(self, tokens: Tokens) -> int:
        """The loop of the older systems: entropy as a tensor, compared in Python at each exit."""
        runtime, adapter = self.runtime, self.runtime.adapter
        ids = [*tokens.ids[:PADDED], *[runtime.padding] * (PADDED - len(tokens.ids))]
        mask = torch.tensor([[int(place < len(tokens.ids)) for place in range(PADDED)]])
        hidden = adapter.embed(runtime.backbone, torch.tensor([ids]), mask, None)
        context = adapter.context(runtime.backbone, hidden, mask)
        for layer in range(self.depth):
            hidden = adapter.layer(runtime.backbone, layer, hidden, context)
            if layer + 1 in runtime.info.exits:
                exit = runtime.info.exits.index(layer + 1)
                logits = runtime.heads[exit](adapter.norm(runtime.backbone, hidden), mask)[0]
                odds = torch.exp(logits)
                entropy = torch.log(odds.sum(1)) - (logits * odds).sum(1) / odds.sum(1)
                if entropy.item() < cast(float, self.policy.threshold):
                    break
        return layer + 1


def policy_for(speedup: float, logits: np.ndarray, layers: tuple[int, ...]) -> Policy:
    """The entropy threshold that comes closest to a speed-up in layers."""

    def layer_ratio(threshold: float) -> float:
        exits = Policy.parse(f"entropy:{threshold}").exits(logits, layers=layers)
        return float(layers[-1] / np.mean(np.array(layers)[exits]))

    thresholds = np.geomspace(1e-3, np.log(logits.shape[-1]), 200)
    best = min(thresholds, key=lambda threshold: abs(layer_ratio(threshold) - speedup))
    return Policy.parse(f"entropy:{best:.4g}")


def ratio(left: list[float], right: list[float]) -> np.ndarray:
    return np.asarray(np.array(left) / np.array(right))


def summary(values: np.ndarray) -> dict[str, float]:
    low, middle, high = np.percentile(values, [25, 50, 75])
    return {"median": float(middle), "low": float(low), "high": float(high)}


def show(report: dict[str, Any], indent: str = "") -> None:
    for name, value in report.items():
        if isinstance(value, dict) and "median" in value:
            line = f"{value['median']:.4g}  ({value['low']:.4g} to {value['high']:.4g})"
        elif isinstance(value, dict):
            print(f"{indent}{name}", file=sys.stderr)
            show(value, indent + "  ")
            continue
        elif isinstance(value, list):
            print(f"{indent}{name}", file=sys.stderr)
            for row in value:
                cells = (f"{key} {cell:.4g}" for key, cell in row.items())
                print(f"{indent}  {', '.join(cells)}", file=sys.stderr)
            continue
        else:
            line = f"{value:.4g}" if isinstance(value, float) else str(value)
        print(f"{indent}{name:<{44 - len(indent)}} {line}", file=sys.stderr)


if __name__ == "__main__":
    main()
