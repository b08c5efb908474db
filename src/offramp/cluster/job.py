"""Many texts at once: files -> pieces of texts -> a pool of workers -> Parquet files, by Ray Data.

The files are read twice. The first time they are checked and counted, so that a bad row shows before hours of
work and not after them, and so that at the end as many answers are there as texts were.
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

import pyarrow.dataset
import ray.data
from ray.exceptions import RayActorError, RayTaskError

from offramp.atomic import write_files
from offramp.classifier import Classifier
from offramp.cluster.input_files import Texts, find_texts
from offramp.cluster.ray_session import joined
from offramp.cluster.worker import Answering
from offramp.cpus import available_cpus
from offramp.errors import BadData, BadOption, OfframpError, RunFailed
from offramp.policy import Policy

DONE = "_done.json"
PIECE = 128 * 2**10
"""Bytes that a worker gets at once, about a thousand sentences: what is done again if it dies."""
ROWS_PER_FILE = 200_000


@dataclass(frozen=True)
class Done:
    """What was done; stands as `_done.json` in the folder of the answers."""

    texts: int
    files: int
    """Files that were read."""
    mean_layer: float
    exits: dict[int, int]
    """How many texts left behind each layer."""
    policy: str
    model: str
    workers: int
    threads: int
    """Of each worker."""
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
    threads: int = 1,
) -> Done:
    """Answers all texts of a file, or of the files in a folder, into a folder of Parquet files.

    A row of the answers has `file` and `row` (the line of a text file, the row of a Parquet file, from 1), the id
    if there is one, `label`, `score` and `layer`. Rows come in no particular order. `_done.json` is written last:
    a folder without it is not finished, and nothing goes on with it.

    Args:
        model: a folder, of a saved model or of an exported one.
        source: csv, tsv, jsonl or parquet; a file, or a folder of them.
        out: a folder that is empty or not there.
        policy: instead of the model's own, such as "entropy:0.3".
        max_layer: everybody leaves here at the latest.
        text: the column of the text; guessed from its name by default, as are the next two.
        text_pair: the column of the second text, for pairs.
        id: a column to copy to the answers.
        address: of a Ray cluster, such as "auto" or "10.0.0.1:6379", all of whose machines see the three paths
            above; by default one is started here, and stopped again.
        workers: how many classifiers, by default as many as there are cores for.
        threads: cores for each of them.
    """
    begin = time.perf_counter()
    model, source, out = Path(model).absolute(), Path(source).absolute(), Path(out).absolute()
    check_counts(workers, threads)
    check_empty(out)
    texts, files = find_texts(source, text, text_pair, id)
    asked = Classifier.from_pretrained(model, policy)  # a mistake shows here, before anything is started
    used, policy = asked.resolve_policy(asked.policy, max_layer), asked.policy
    del asked
    here = max(1, available_cpus() // threads)
    with joined(address, cores=threads * (workers or here)), failures(out):
        workers = workers or as_many_as_fit(threads)
        counts = counted(texts, files)
        total = sum(counts)
        if not total:
            raise BadData(f"{source}: no texts there.")
        full = [file for file, count in zip(files, counts, strict=True) if count]
        work = {"model": str(model), "policy": policy, "max_layer": max_layer, "threads": threads}
        answer(texts, full, out, workers, work)
        exits = leaving(out)
    if exits.total() != total:
        raise RunFailed(f"{exits.total()} answers to {total} texts. {again(out)}")
    done = Done(
        texts=total,
        files=len(files),
        mean_layer=sum(layer * count for layer, count in exits.items()) / total,
        exits=dict(sorted(exits.items())),
        policy=str(used),
        model=str(model),
        workers=workers,
        threads=threads,
        seconds=time.perf_counter() - begin,
    )
    write_files({out / DONE: json.dumps(asdict(done), indent=1)})
    return done


def check_counts(workers: int | None, threads: int) -> None:
    if threads < 1 or (workers is not None and workers < 1):
        raise BadOption(f"workers={workers} and threads={threads} must be at least 1.")


def check_empty(out: Path) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        state = (
            "holds answers"
            if (out / DONE).is_file()
            else f"is not empty, and no run was finished in it (no {DONE})"
        )
        raise BadOption(f"{out} {state}; choose another folder, or remove it.")


def as_many_as_fit(threads: int) -> int:
    cores = int(ray.cluster_resources().get("CPU", 0))  # type: ignore[no-untyped-call]
    if cores < threads:
        raise BadOption(f"a worker of {threads} threads does not fit into a cluster of {cores} cores.")
    return cores // threads


def counted(texts: Texts, files: list[Path]) -> list[int]:
    """How many texts each file has. One with a bad row is an error."""
    count = ray.remote(Texts.count)
    counts: list[int] = ray.get([count.remote(texts, file) for file in files])
    return counts


def answer(texts: Texts, files: list[Path], out: Path, workers: int, work: dict[str, Any]) -> None:
    """Runs the workers until every text has its answer in a file."""
    paths = ray.data.from_items([{"file": str(file)} for file in files], override_num_blocks=len(files))
    paths.context.target_max_block_size = PIECE
    paths.context.raise_original_map_exception = True
    paths.context.enable_progress_bars = sys.stderr.isatty()
    # reading and writing reserve no cores, or workers that have them all would wait for ever for something to do
    helpers = 1 + workers // 64
    pieces = paths.map_batches(
        texts.pieces_of, batch_size=1, compute=ray.data.TaskPoolStrategy(size=helpers), num_cpus=0
    )
    answers = pieces.map_batches(
        Answering,
        fn_constructor_kwargs=work,
        batch_format="pyarrow",
        batch_size=None,
        compute=ray.data.ActorPoolStrategy(size=workers),
        num_cpus=work["threads"],
    )
    answers.write_parquet(
        str(out), min_rows_per_file=ROWS_PER_FILE, concurrency=helpers, ray_remote_args={"num_cpus": 0}
    )


@contextmanager
def failures(out: Path) -> Iterator[None]:
    """What is wrong with a file as its own error; all else with what it leaves behind."""
    try:
        yield
    except RayTaskError as error:
        if isinstance(error.cause, BadData):
            raise error.cause from None
        raise RunFailed(f"{reason(error.cause)}. {again(out)}") from error
    except OfframpError:
        raise
    except Exception as error:
        raise RunFailed(f"{reason(error)}. {again(out)}") from error


def reason(error: BaseException) -> str:
    """In one line. Ray adds advice below a message, and tells the end of an actor by a traceback."""
    lines = str(error).strip().splitlines() or [""]
    line = lines[-1] if isinstance(error, RayActorError) else lines[0]
    return f"{type(error).__name__}: {line.strip().rstrip('.')}"


def again(out: Path) -> str:
    return f"{out} is not finished; remove it and start again."


def leaving(out: Path) -> Counter[int]:
    """How many answers come from each layer, counted in the files that were written."""
    found: Counter[int] = Counter()
    for batch in pyarrow.dataset.dataset(out, format="parquet").to_batches(columns=["layer"]):
        for each in batch["layer"].value_counts().to_pylist():
            found[each["values"]] += each["counts"]
    return found
