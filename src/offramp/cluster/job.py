"""Batch prediction on Ray Data: files -> tables of texts -> a pool of workers -> Parquet files.

The files are read twice. The first pass checks and counts them, so that a bad row is reported before hours of work,
and so that the number of predictions can be checked at the end.
"""

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.dataset
import ray.data
from ray.exceptions import RayActorError, RayTaskError

from offramp.cluster.input_files import TextFiles, find_texts
from offramp.cluster.ray_session import connect
from offramp.cpus import available_cpus
from offramp.errors import BadData, BadOption, OfframpError, RunFailed
from offramp.files import check_free, write_files
from offramp.folder import is_exported
from offramp.inference import Classifier, Prediction, Runner
from offramp.inference.texts import check_kind
from offramp.policy import Policy
from offramp.wording import count

DONE = "_done.json"
BLOCK = 128 * 2**10
"""Bytes that a worker gets at once, about a thousand sentences; run again if the worker dies."""
ROWS_PER_FILE = 200_000
GPU = "cuda"
TEXTS = ("text", "text_pair")


@dataclass(frozen=True)
class RunSummary:
    """Saved as `_done.json` with the predictions."""

    texts: int
    files: int
    mean_layer: float
    exits: dict[int, int]
    """The number of texts that exited after each layer."""
    policy: str
    model: str
    workers: int
    threads: int
    """Per worker."""
    seconds: float


def predict(
    model: str | os.PathLike[str],
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    policy: Policy | str | None = None,
    max_layer: int | None = None,
    text: str | None = None,
    text_pair: str | None = None,
    id: str | None = None,
    address: str | None = None,
    workers: int | None = None,
    device: str | None = None,
    threads: int = 1,
    max_length: int | None = None,
) -> RunSummary:
    """Predicts all texts of a file or a folder, and writes a folder of Parquet files.

    Each row has `file` and `row` (the line of a text file, the row of a Parquet file, from 1), the id if there is
    one, `label`, `score` and `layer`, and `decision` if the model has an operating point. Rows come in no particular
    order. `_done.json` is written last: a folder without it is unfinished, and cannot be resumed.

    Args:
        model: the folder of a saved or an exported model.
        source: a txt, csv, tsv, jsonl or parquet file, or a folder of them.
        out: a folder that is empty or does not exist.
        policy: such as "entropy:0.3"; by default the model's own.
        max_layer: every text exits at this layer at the latest.
        text: the column of the text; guessed from its name by default, as are the next two.
        text_pair: the column of the second text, for pairs.
        id: a column to copy to the output.
        address: of a Ray cluster, such as "auto" or "10.0.0.1:6379", whose machines all see the three paths above;
            by default a local one is started for this run.
        workers: the number of classifiers; by default as many as the cores, or the GPUs, allow.
        device: where PyTorch runs the model, such as "cuda", which gives each worker a GPU; by default the CPU.
        threads: cores for each worker.
        max_length: the number of tokens at which texts are truncated; by default as in training.
    """
    start = time.perf_counter()
    model, source, out = Path(model).absolute(), Path(source).absolute(), Path(out).absolute()
    if threads < 1 or (workers is not None and workers < 1):
        raise BadOption(f"workers={workers} and threads={threads} must be at least 1.")
    check_free(out)
    texts, files = find_texts(source, text, text_pair, id)
    # fails early on a bad model, policy or kind of text
    runner = Runner.from_pretrained(model, policy, device=device_here(model, device), max_length=max_length)
    check_kind(
        texts.columns.text_pair is not None, runner.runtime.info.trained_on_pairs, f"a row of {source}"
    )
    Classifier(runner)  # refuses a tagger
    policy, used = runner.policy, runner.resolve_policy(runner.policy, max_layer)
    del runner
    local_workers = max(1, available_cpus() // threads)
    with connect(address, cores=threads * (workers or local_workers)), explain_failures(out):
        workers = workers or max_workers(threads, device)
        if device == GPU:
            check_gpus(workers)
        counts = count_texts(texts, files)
        total = sum(counts)
        if not total:
            raise BadData(f"{source}: no texts.")
        full = [file for file, rows in zip(files, counts, strict=True) if rows]
        options = {"model": str(model), "policy": policy, "max_layer": max_layer, "threads": threads}
        options |= {"max_length": max_length, "device": device}
        run_workers(texts, full, out, workers, options)
        exits = count_exits(out)
    if exits.total() != total:
        raise RunFailed(f"{exits.total()} predictions for {total} texts. {unfinished(out)}")
    summary = RunSummary(
        texts=total,
        files=len(files),
        mean_layer=sum(layer * rows for layer, rows in exits.items()) / total,
        exits=dict(sorted(exits.items())),
        policy=str(used),
        model=str(model),
        workers=workers,
        threads=threads,
        seconds=time.perf_counter() - start,
    )
    write_files({out / DONE: json.dumps(asdict(summary), indent=1)})
    return summary


def device_here(model: Path, device: str | None) -> str | None:
    """The device on which the model is loaded for a test: GPUs may be in other machines of the cluster."""
    if device is not None and device.startswith(f"{GPU}:"):
        raise BadOption(f"device={device!r}: Ray chooses the GPU of each worker; use {GPU!r}.")
    return None if device == GPU and not is_exported(model) else device


def max_workers(threads: int, device: str | None) -> int:
    cores = resources("CPU")
    if cores < threads:
        raise BadOption(f"a worker with {threads} threads does not fit a cluster with {cores} cores.")
    return min(cores // threads, max(1, resources("GPU"))) if device == GPU else cores // threads


def check_gpus(workers: int) -> None:
    if (gpus := resources("GPU")) < workers:
        raise BadOption(
            f"device={GPU!r} takes a GPU for each of {count(workers, 'worker')}; the cluster has {gpus}."
        )


def resources(kind: str) -> int:
    return int(ray.cluster_resources().get(kind, 0))  # type: ignore[no-untyped-call]


def count_texts(texts: TextFiles, files: list[Path]) -> list[int]:
    """The number of texts in each file; `BadData` if a file has a bad row."""
    count_rows = ray.remote(TextFiles.count)
    counts: list[int] = ray.get([count_rows.remote(texts, file) for file in files])
    return counts


def run_workers(
    texts: TextFiles, files: list[Path], out: Path, workers: int, options: dict[str, Any]
) -> None:
    paths = ray.data.from_items([{"file": str(file)} for file in files], override_num_blocks=len(files))
    paths.context.target_max_block_size = BLOCK
    paths.context.raise_original_map_exception = True
    paths.context.enable_progress_bars = sys.stderr.isatty()
    # readers and writers reserve no cores: the workers may hold all of them, and would wait for input forever
    helpers = 1 + workers // 64
    tables = paths.map_batches(
        texts.tables_of_batch, batch_size=1, compute=ray.data.TaskPoolStrategy(size=helpers), num_cpus=0
    )
    predictions = tables.map_batches(
        Predictor,
        fn_constructor_kwargs=options,
        batch_format="pyarrow",
        batch_size=None,
        compute=ray.data.ActorPoolStrategy(size=workers),
        num_cpus=options["threads"],
        num_gpus=1 if options["device"] == GPU else 0,
    )
    predictions.write_parquet(
        str(out), min_rows_per_file=ROWS_PER_FILE, concurrency=helpers, ray_remote_args={"num_cpus": 0}
    )


class Predictor:
    """What each worker runs: tables of texts in, tables of predictions out, on no more than its cores."""

    def __init__(self, model: str, max_layer: int | None, threads: int, **options: Any) -> None:
        os.environ["RAYON_NUM_THREADS"] = str(threads)  # for the tokenizer, which reads it when it starts
        self.classifier = Classifier.from_pretrained(model, threads=threads, **options)
        self.max_layer = max_layer

    def __call__(self, table: pyarrow.Table) -> pyarrow.Table:
        names = [name for name in TEXTS if name in table.column_names]
        columns = [table[name].to_pylist() for name in names]
        texts = columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
        predictions = self.classifier.predict(texts, max_layer=self.max_layer)
        multi_label = self.classifier.runner.runtime.info.problem.multi_label
        label = pyarrow.list_(pyarrow.string()) if multi_label else pyarrow.string()
        added: dict[str, tuple[list[Any], Any]] = {
            **self.decisions(predictions),
            "label": ([prediction.label for prediction in predictions], label),
            "score": ([prediction.score for prediction in predictions], pyarrow.float32()),
            "layer": ([prediction.layer for prediction in predictions], pyarrow.int16()),
        }
        table = table.drop_columns(names)
        for name, (values, kind) in added.items():
            table = table.append_column(name, pyarrow.array(values, kind))
        return table

    def decisions(self, predictions: list[Prediction]) -> dict[str, tuple[list[Any], Any]]:
        """A column, if the model has an operating point."""
        thresholds = len(self.classifier.runner.runtime.info.decide.thresholds)
        kind = pyarrow.bool_() if thresholds == 1 else pyarrow.list_(pyarrow.string())
        return {"decision": ([prediction.decision for prediction in predictions], kind)} if thresholds else {}


@contextmanager
def explain_failures(out: Path) -> Iterator[None]:
    """Turns Ray's errors into `BadData`, if a file is at fault, or `RunFailed`."""
    try:
        yield
    except RayTaskError as error:
        if isinstance(error.cause, BadData):
            raise error.cause from None
        raise RunFailed(f"{reason(error.cause)}. {unfinished(out)}") from error
    except OfframpError:
        raise
    except Exception as error:
        raise RunFailed(f"{reason(error)}. {unfinished(out)}") from error


def reason(error: BaseException) -> str:
    """One line: Ray puts advice below a message, and the cause of an actor's death at the end of a traceback."""
    lines = str(error).strip().splitlines() or [""]
    line = lines[-1] if isinstance(error, RayActorError) else lines[0]
    return f"{type(error).__name__}: {line.strip().rstrip('.')}"


def unfinished(out: Path) -> str:
    return f"{out} is unfinished; delete it and start again."


def count_exits(out: Path) -> Counter[int]:
    """The number of predictions by layer, counted in the files written."""
    exits: Counter[int] = Counter()
    for batch in pyarrow.dataset.dataset(out, format="parquet").to_batches(columns=["layer"]):
        for layer in batch["layer"].value_counts().to_pylist():
            exits[layer["values"]] += layer["counts"]
    return exits
