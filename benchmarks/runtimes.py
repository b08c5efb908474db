"""Compares runtimes: full depth in transformers, ONNX Runtime and OpenVINO, and early exits in offramp.

    pip install -r benchmarks/requirements-runtimes.txt      # for OpenVINO, which is optional
    python benchmarks/runtimes.py --model FOLDER --texts FILE [--quick] --out runtimes

FOLDER holds a trained ExitModel with its tokenizer, FILE is a .tsv with the columns `sentence` and `label`.
Thresholds are calibrated on every second text, so that at most 2% of predictions change (with 95% confidence), and
everything is measured on the others. Every runtime has its own process; they take turns, so that load on the machine
affects all of them. The same is timed with a random model 768 wide (--width 0 skips it), whose texts leave at about
the same layers. Writes runtimes.json and runtimes.md.
"""

import argparse
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Any

import numpy as np
from shared import about, markdown, read_rows

RULE = "entropy"
CHANGED = 0.02
WIDE = 120  # texts for the random model
ONE_BY_ONE = 100  # texts predicted one at a time in each turn
SLOW = 3  # a runtime this many times slower than plain, such as bf16 without hardware support, runs only once
BATCH = 32  # for runtimes without an engine; their texts are sorted by length
MEASURES = ["one", "one, tokenizing", "window", "window, tokenizing"]
EXITS = {"offramp torch fp32": None, "offramp onnx fp32": "fp32", "offramp onnx int8": "int8"}
FULL = [
    "transformers fp32",
    "transformers bf16",
    "onnx fp32",
    "onnx int8",
    "openvino bf16",
    "openvino int8",
]
NEVER = {"offramp onnx fp32, never": "onnx fp32", "offramp onnx int8, never": "onnx int8"}


def main() -> None:
    args = arguments()
    if args.worker:
        run_worker(args.worker, Path(args.folder), args.threads)
        return
    from offramp.measuring import Budget, Guarantee, MaxLoss

    rows = read_rows(args.texts)[: args.limit]
    target = MaxLoss(100 * CHANGED) if args.quick else Guarantee(CHANGED)  # a guarantee needs more texts
    with TemporaryDirectory() as place:
        trained = measure(prepare(args.model, rows, Path(place) / "trained", target), args)
        results = {
            "machine": about("torch", "transformers", "onnxruntime", threads=args.threads),
            "trained": trained,
        }
        if args.width:
            # its predictions mean nothing, so only the mean layer is set
            budget = Budget(trained["runtimes"]["offramp onnx int8"]["mean layer"])
            wide = random_model(args.width, args.model, Path(place) / "random")
            results["random"] = measure(prepare(wide, rows[:WIDE], Path(place) / "wide", budget), args)
    args.out.with_suffix(".json").write_text(json.dumps(results, indent=1), encoding="utf-8")
    parts = [table(name, results[name]) for name in ("trained", "random") if name in results]
    page = "\n\n".join([*parts, ", ".join(f"{name} {value}" for name, value in results["machine"].items())])
    args.out.with_suffix(".md").write_text(page + "\n", encoding="utf-8")
    print(page)


def arguments() -> argparse.Namespace:
    from offramp.cpus import available_cpus

    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--model", help="folder of a trained ExitModel with its tokenizer")
    parser.add_argument("--texts", type=Path, help="a .tsv with the columns sentence and label")
    parser.add_argument("--out", type=Path, default=Path("runtimes"), help="where to write .json and .md")
    parser.add_argument("--width", type=int, default=768, help="of the random model; 0 for none")
    parser.add_argument("--threads", type=int, default=available_cpus())
    parser.add_argument("--repeats", type=int)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--quick", action="store_true", help="few texts and turns, to check that it runs")
    parser.add_argument("--rival-python", default=sys.executable, help="a Python with OpenVINO installed")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.repeats = args.repeats or (2 if args.quick else 15)
    args.limit = args.limit or (120 if args.quick else None)
    return args


def random_model(width: int, like: str, folder: Path) -> str:
    """An untrained BERT of this width, with the tokenizer and the exits of another model."""
    import torch
    from transformers import AutoTokenizer, BertConfig, BertModel

    from offramp.models.config import ExitConfig
    from offramp.models.exit_model import ExitModel

    torch.manual_seed(0)
    other, tokenizer = ExitConfig.from_pretrained(like), AutoTokenizer.from_pretrained(like)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=4 * width,
        num_attention_heads=width // 64,
        num_hidden_layers=other.num_layers,
    )
    ExitModel.from_encoder(
        BertModel(config, add_pooling_layer=False), num_labels=2, exits=other.exits
    ).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def prepare(model: str, rows: list[dict[str, str]], folder: Path, target: Any) -> Path:
    """A folder with everything that the workers need: models in every form, policies, texts."""
    from datasets import Dataset

    from offramp.inference import Classifier
    from offramp.inference.collect import collect
    from offramp.measuring import calibrate
    from offramp.onnx_export import export

    folder.mkdir(parents=True)
    data = Dataset.from_dict(
        {"text": [row["sentence"] for row in rows], "label": [int(row["label"]) for row in rows]}
    )
    held_back, test = data.select(range(0, len(rows), 2)), data.select(range(1, len(rows), 2))
    sample = held_back["text"][::5]  # for the scales of int8, and not to calibrate on
    held_back = held_back.select([row for row in range(len(held_back)) if row % 5])
    full_depth_graph(model, folder, sample)
    policies = {}
    logits = {}
    for name, precision in EXITS.items():
        options = {} if precision != "int8" else {"texts": sample}
        place = (
            model
            if precision is None
            else export(model, folder / f"stages-{precision}", precision, **options)
        )
        classifier = Classifier.from_pretrained(place, "never")
        trace = collect(classifier, held_back, metrics=("acc",), data="held back", progress=False)
        logits[name] = classifier.runner.engine.trace(classifier.runner.tokenizer(test["text"][:]))[0]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            policy = calibrate(trace, RULE, target).policy
        policies[name] = str(policy)
    (folder / "job.json").write_text(
        json.dumps(
            {
                "model": str(Path(model).resolve()),
                "policies": policies,
                "texts": test["text"][:],
                "labels": test["label"][:],
                "layers": per_layer(logits, np.array(test["label"][:])),
            }
        ),
        encoding="utf-8",
    )
    return folder


def per_layer(logits: dict[str, np.ndarray], labels: np.ndarray) -> dict[str, dict[str, list[float]]]:
    """Per cent of texts at each exit with the right label, and with the label of fp32 in PyTorch."""
    found = {name: each.argmax(-1) for name, each in logits.items()}
    expected = found["offramp torch fp32"]
    return {
        name: {
            "accuracy": (100 * (each == labels[:, None]).mean(0)).tolist(),
            "agreement": (100 * (each == expected).mean(0)).tolist(),
        }
        for name, each in found.items()
    }


def full_depth_graph(model: str, folder: Path, sample: Sequence[str]) -> None:
    """Write full-fp32.onnx and full-int8.onnx: tokens to the logits of the last exit, in one graph."""
    import onnx
    import torch
    from transformers import AutoTokenizer

    from offramp.inference.texts import BatchTokenizer
    from offramp.models.exit_model import ExitModel
    from offramp.onnx_export.exporter import plain_copy, sample_tokens
    from offramp.onnx_export.graphs import capture, optimize, to_onnx
    from offramp.onnx_export.int8 import observe, quantize
    from offramp.runtimes.onnx import embedding_inputs

    whole = plain_copy(ExitModel.from_pretrained(model))
    last = len(whole.config.exits) - 1

    class Full(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = whole

        def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any) -> Any:
            adapter, backbone = self.model.adapter, self.model.backbone
            hidden = adapter.embed(backbone, input_ids, attention_mask, token_type_ids)
            context = adapter.context(backbone, hidden, attention_mask)
            for layer in range(self.model.config.num_layers):
                hidden = adapter.layer(backbone, layer, hidden, context)
            return self.model.heads(last, adapter.norm(backbone, hidden), attention_mask)[0]

    ids = torch.full((3, 9), 2)
    inputs = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "token_type_ids": torch.zeros_like(ids),
    }
    graph = optimize(to_onnx(capture(Full(), inputs), ["logits"]))
    onnx.save(graph, folder / "full-fp32.onnx")
    tokenizer = BatchTokenizer(AutoTokenizer.from_pretrained(model), whole.max_length)
    tokens = sample_tokens(tokenizer, sample)
    activations, _ = observe(graph, [embedding_inputs([text], padding=0) for text in tokens])
    onnx.save(quantize(graph, activations), folder / "full-int8.onnx")


def measure(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Run all workers in turns; returns accuracy and times of each runtime."""
    job = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    workers = {}
    for name in [*FULL, *EXITS, *NEVER]:
        worker = Worker(name, folder, args)
        if worker.ready is None:
            print(f"skipping {name}: {worker.reason}", file=sys.stderr)
        else:
            workers[name] = worker
    names = list(workers)
    warm = {name: {kind: [workers[name].measure(kind)] for kind in MEASURES} for name in names}
    plain = warm["transformers fp32"]["window"][0]
    slow = [name for name in names if warm[name]["window"][0] > SLOW * plain]
    times: dict[str, dict[str, list[Any]]] = {
        name: warm[name] if name in slow else {kind: [] for kind in MEASURES} for name in names
    }
    names = [name for name in names if name not in slow]
    for turn in range(args.repeats):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            for kind in MEASURES:
                times[name][kind].append(workers[name].measure(kind))
        print(f"turn {turn + 1} of {args.repeats}", file=sys.stderr)
    for worker in workers.values():
        worker.stop()
    labels = np.array(job["labels"])
    found = {name: summary(worker.ready, labels, times[name]) for name, worker in workers.items()}
    return {
        "texts": len(labels),
        "policies": job["policies"],
        "layers": job["layers"],
        "runtimes": ratios(found, times),
    }


class Worker:
    """A process with one runtime loaded, which runs the measurement named on each line of its stdin."""

    def __init__(self, name: str, folder: Path, args: argparse.Namespace) -> None:
        python = args.rival_python if name.startswith("openvino") else sys.executable
        command = [python, __file__, "--worker", name, "--folder", folder, "--threads", args.threads]
        environment = {
            "TOKENIZERS_PARALLELISM": "true",
            "OMP_NUM_THREADS": str(args.threads),
            "HF_HUB_OFFLINE": "1",
        }
        self.log = TemporaryFile("w+")  # noqa: SIM115 - stays open while the process runs
        self.process = subprocess.Popen(
            [*map(str, command)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env=os.environ | environment,
        )
        self.ready = self.read_line()
        self.reason = "" if self.ready else self.last_log_line()

    def last_log_line(self) -> str:
        self.process.wait()
        self.log.seek(0)
        return self.log.read().strip().split("\n")[-1]

    def read_line(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        return json.loads(line) if line else None

    def measure(self, kind: str) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(kind + "\n")
        self.process.stdin.flush()
        return self.read_line()

    def stop(self) -> None:
        self.process.communicate()


def summary(ready: dict[str, Any], labels: np.ndarray, times: dict[str, list[Any]]) -> dict[str, Any]:
    """Accuracy, milliseconds for one text, and texts per second in windows."""
    shown: dict[str, Any] = {
        "accuracy": 100 * float((np.array(ready["predictions"]) == labels).mean()),
        "mean layer": ready["mean layer"],
        "seconds to load": ready["seconds to load"],
    }
    for kind in MEASURES:
        if kind.startswith("one"):
            every = 1e3 * np.concatenate(times[kind])
            shown[kind] = {
                "p50 ms": float(np.percentile(every, 50)),
                "p95 ms": float(np.percentile(every, 95)),
            }
        else:
            shown[kind] = {"texts/s": float(len(labels) / np.median(times[kind]))}
    return shown


def ratios(found: dict[str, Any], times: dict[str, dict[str, list[Any]]]) -> dict[str, Any]:
    """Add the speed-up over plain transformers and over the best at full depth, as medians over turns."""

    def seconds(name: str, kind: str) -> np.ndarray:
        return np.array([np.median(turn) for turn in times[name][kind]])

    def against(name: str, other: str, kind: str) -> float:
        return float(np.median(seconds(other, kind) / seconds(name, kind)))

    full = [name for name in FULL if name in found]
    for kind in MEASURES:
        best = min(full, key=lambda name: float(np.median(seconds(name, kind))))
        for name, each in found.items():
            each[kind] |= {"best at full depth": best, "times best": against(name, best, kind)}
            each[kind]["times transformers"] = against(name, "transformers fp32", kind)
            if name in NEVER and NEVER[name] in found:
                each[kind]["never / full"] = 1 / against(name, NEVER[name], kind)
    return found


def table(name: str, results: dict[str, Any]) -> str:
    head = [
        "runtime",
        "accuracy",
        "mean layer",
        "one text p50 / p95, ms",
        "and tokenizing",
        "window, texts/s",
    ]
    head += [
        "and tokenizing",
        "times transformers (one, window)",
        "times best full depth (one, window)",
        "load, s",
    ]
    rows = []
    for runtime, each in results["runtimes"].items():
        one, one_text = each["one"], each["one, tokenizing"]
        window, window_text = each["window"], each["window, tokenizing"]
        cells = [
            runtime,
            f"{each['accuracy']:.1f}",
            f"{each['mean layer']:.2f}",
            f"{one['p50 ms']:.2f} / {one['p95 ms']:.2f}",
            f"{one_text['p50 ms']:.2f} / {one_text['p95 ms']:.2f}",
            f"{window['texts/s']:.0f}",
            f"{window_text['texts/s']:.0f}",
            f"{one_text['times transformers']:.2f}, {window_text['times transformers']:.2f}",
            f"{one_text['times best']:.2f}, {window_text['times best']:.2f}",
            f"{each['seconds to load']:.1f}",
        ]
        rows.append(cells)
    lines = [f"{name}, {results['texts']} texts", "", markdown(head, rows)]
    for runtime, each in results["runtimes"].items():
        if "never / full" in each["one"]:
            one, window = each["one"]["never / full"], each["window"]["never / full"]
            lines.append(
                f"\n{runtime} takes {one:.3f} times one graph for one text, {window:.3f} times in windows."
            )
    best = results["runtimes"]["transformers fp32"]
    lines.append(
        f"\nThe best at full depth is {best['one, tokenizing']['best at full depth']} for one text, "
        f"{best['window, tokenizing']['best at full depth']} in windows."
    )
    for measure in ("accuracy", "agreement"):
        lines += ["", f"{measure} at each exit, per cent:", ""]
        lines += [
            f"{runtime}: {' '.join(f'{value:.1f}' for value in each[measure])}"
            for runtime, each in results["layers"].items()
        ]
    policies = [f"{runtime} {policy}" for runtime, policy in results["policies"].items()]
    lines.append(f"\nPolicies: {', '.join(policies)}.")
    return "\n".join(lines)


# -- the worker processes; each runtime imports only what it needs


Ids = list[int]


def run_worker(name: str, folder: Path, threads: int) -> None:
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not mix with the results

    def send(result: Any) -> None:
        print(json.dumps(result), file=output, flush=True)

    def run_texts(some: Sequence[str]) -> Any:
        return runtime.run(runtime.tokenize(some))

    job = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    start = time.perf_counter()
    runtime = load(name, folder, job, threads)
    loaded = time.perf_counter() - start
    texts: list[str] = job["texts"]
    tokens = runtime.tokenize(texts)
    single = slice(None, None, max(1, len(texts) // ONE_BY_ONE))
    predictions, mean_layer = runtime.run(tokens)
    send({"predictions": predictions, "mean layer": mean_layer, "seconds to load": loaded})
    measurements: dict[str, Callable[[], Any]] = {
        "one": lambda: [timed(runtime.run, [one]) for one in tokens[single]],
        "one, tokenizing": lambda: [timed(run_texts, [text]) for text in texts[single]],
        "window": lambda: timed(runtime.run, tokens),
        "window, tokenizing": lambda: timed(run_texts, texts),
    }
    for line in sys.stdin:
        send(measurements[line.strip()]())


def timed(function: Callable[[Any], Any], argument: Any) -> float:
    start = time.perf_counter()
    function(argument)
    return time.perf_counter() - start


def load(name: str, folder: Path, job: dict[str, Any], threads: int) -> Any:
    kind, *rest = name.split()
    if kind == "offramp":
        return Exits(name, folder, job, threads)
    make = {"transformers": transformers, "onnx": onnx, "openvino": openvino}[kind]
    return FullDepth(make(rest[0], folder, job, threads), job)


class Exits:
    """offramp's engine, with a policy."""

    def __init__(self, name: str, folder: Path, job: dict[str, Any], threads: int) -> None:
        from offramp.inference import Classifier
        from offramp.policy import Policy

        precision = EXITS[name.removesuffix(", never")]
        place = job["model"] if precision is None else folder / f"stages-{precision}"
        self.policy = Policy.parse("never" if name.endswith("never") else job["policies"][name])
        self.classifier = Classifier.from_pretrained(place, self.policy, threads=threads)

    def tokenize(self, texts: Sequence[str]) -> Any:
        return self.classifier.runner.tokenizer(texts)

    def run(self, tokens: Any) -> tuple[list[int], float]:
        decision = self.classifier.runner.engine.run(tokens, self.policy)
        layers = np.array(self.classifier.runner.runtime.info.exits)[decision.exits]
        return decision.logits.argmax(-1).tolist(), float(layers.mean())


class FullDepth:
    """A runtime without an engine: texts sorted by length, in batches."""

    def __init__(self, logits: Callable[..., np.ndarray], job: dict[str, Any]) -> None:
        from tokenizers import Tokenizer

        self.logits = logits
        self.tokenizer = Tokenizer.from_file(str(Path(job["model"]) / "tokenizer.json"))
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(512)
        config = json.loads((Path(job["model"]) / "config.json").read_text(encoding="utf-8"))
        self.layers: int = config["exits"][-1]
        self.padding: int = config["encoder_config"]["pad_token_id"] or 0

    def tokenize(self, texts: Sequence[str]) -> list[Ids]:
        return [encoding.ids for encoding in self.tokenizer.encode_batch_fast(texts)]

    def run(self, tokens: list[Ids]) -> tuple[list[int], float]:
        order = sorted(range(len(tokens)), key=lambda row: len(tokens[row]))
        predictions = [0] * len(tokens)
        for first in range(0, len(order), BATCH):
            rows = order[first : first + BATCH]
            longest = len(tokens[rows[-1]])
            ids = np.full((len(rows), longest), self.padding)
            mask = np.zeros((len(rows), longest), np.int64)
            for place, row in enumerate(rows):
                ids[place, : len(tokens[row])] = tokens[row]
                mask[place, : len(tokens[row])] = 1
            for row, prediction in zip(rows, self.logits(ids, mask).argmax(-1).tolist(), strict=True):
                predictions[row] = prediction
        return predictions, float(self.layers)


def transformers(
    precision: str, folder: Path, job: dict[str, Any], threads: int
) -> Callable[..., np.ndarray]:
    """transformers' own forward, and one head."""
    import torch

    from offramp.models.exit_model import ExitModel

    torch.set_num_threads(threads)
    model = ExitModel.from_pretrained(job["model"])
    model.train(False)
    if precision == "bf16":
        model.bfloat16()
    head = model.heads.head_of(len(model.config.exits) - 1)

    @torch.inference_mode()
    def logits(ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        padded = None if mask.all() else torch.from_numpy(mask)
        hidden = model.backbone(torch.from_numpy(ids), attention_mask=padded).last_hidden_state
        result: np.ndarray = head(hidden, padded)[0].float().numpy()
        return result

    return logits


def onnx(precision: str, folder: Path, job: dict[str, Any], threads: int) -> Callable[..., np.ndarray]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(
        folder / f"full-{precision}.onnx", options, disabled_optimizers=["SkipLayerNormFusion"]
    )
    names = {each.name for each in session.get_inputs()}

    def logits(ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        result: np.ndarray = session.run(None, {name: inputs[name] for name in names})[0]
        return result

    return logits


def openvino(precision: str, folder: Path, job: dict[str, Any], threads: int) -> Callable[..., np.ndarray]:
    """bf16 where the CPU supports it; int8 weights compressed by NNCF, as OpenVINO recommends."""
    import openvino as ov

    core = ov.Core()
    model = core.read_model(folder / "full-fp32.onnx")
    hint = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
    if precision == "int8":
        import nncf

        model = nncf.compress_weights(model)
    else:
        hint["INFERENCE_PRECISION_HINT"] = "bf16"
    compiled = core.compile_model(model, "CPU", hint)
    names = {name for port in compiled.inputs for name in port.get_names()}
    request = compiled.create_infer_request()

    def logits(ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        result: np.ndarray = request.infer({name: inputs[name] for name in names & {*inputs}})[
            compiled.output(0)
        ]
        return result

    return logits


if __name__ == "__main__":
    main()
