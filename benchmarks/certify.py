"""Verdicts of `offramp certify` about pairs of models, beside what is true; and how many rows a verdict takes.

    python benchmarks/certify.py pairs RUN GLUE
    python benchmarks/certify.py rows
    python benchmarks/certify.py edge --streams 2000

`pairs` compares a classifier of SST-2 with itself in int8, in int8 with dynamic scales (ONNX Runtime's
`quantize_dynamic`), retrained with 6 and 8 layers, with a smaller model, and with what `offramp retrofit` makes of it
and 12,000 phrases: exits, and with --tune. RUN is the folder of `benchmarks/retrofit.py`; what can be made is made in
RUN/certify, other models that are not there are left out. Each pair is certified on phrases of the train file that no
model has seen, and the true rate is counted on other such phrases. `rows` simulates streams of independent rows, and
`edge` counts false proofs in streams whose true rate is the bound. All print Markdown.
"""

import argparse
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from recipes import SST2
from scipy.stats import binom, binomtest
from shared import export_full_depth, log, markdown, read_sst2

from offramp import NoSafeThreshold, Policy, certify, retrofit
from offramp.cli.options import RuntimeOptions
from offramp.cli.predictors import load_predictor, match_labels
from offramp.guarantees.certify import Certification
from offramp.guarantees.sequential import PROVEN
from offramp.retrofits.original import load_original

ORIGINAL = "gte-sst2"
BOUNDS = 0.05, 0.02, 0.01
POWER = 0.9
LONGEST = 12_000
"""Rows of a stream."""
CHUNK = 1000
"""Texts that are scored at once."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", choices=["pairs", "rows", "edge"])
    parser.add_argument("run", type=Path, nargs="?", help="folder of benchmarks/retrofit.py")
    parser.add_argument("glue", type=Path, nargs="?", help="folder of the GLUE tasks")
    parser.add_argument("--guarantee", type=float, default=0.02)
    parser.add_argument("--rows", type=int, default=4000, help="phrases to certify on")
    parser.add_argument("--others", type=int, default=20_000, help="phrases that tell the true rate")
    parser.add_argument("--texts", type=int, default=12_000, help="phrases for offramp retrofit")
    parser.add_argument("--streams", type=int, default=500)
    options = parser.parse_args()
    if options.study in ("rows", "edge"):
        print(study_rows(options.streams) if options.study == "rows" else study_edge(options.streams))
        return
    learned, unseen = split_phrases(options.glue, options.texts)
    models = find_models(options.run, learned)
    print(study_pairs(options.run, models, unseen[: options.rows + options.others], options))


def split_phrases(glue: Path, learned: int) -> tuple[list[str], list[str]]:
    """Phrases for `offramp retrofit`, and those that no model has seen: distinct, and in random order."""
    phrases = read_sst2(glue / "SST-2" / "train.tsv")["text"]
    order = [phrases[row] for row in np.random.default_rng(0).permutation(len(phrases))]
    seen = {*order[: SST2["train"]], *order[-learned:]}
    return order[-learned:], [*dict.fromkeys(phrase for phrase in order if phrase not in seen)]


def study_pairs(
    run: Path, models: Iterable[tuple[str, Path]], texts: list[str], options: argparse.Namespace
) -> str:
    rows, guarantee, runtime = options.rows, options.guarantee, RuntimeOptions()
    original = load_predictor(str(run / ORIGINAL), runtime)
    old, table = scores(original, ORIGINAL, texts), []
    for name, path in models:
        predictor = load_predictor(str(path), runtime)
        new = scores(predictor, name, texts)[:, match_labels(original, predictor)]
        facts: dict[str, Any] = {"label_names": original.labels, "texts": texts[:rows]}
        made, early = (
            certify(old[:rows], new[:rows], guarantee, stop_early=early, **facts) for early in (False, True)
        )
        changed = old.argmax(-1)[rows:] != new.argmax(-1)[rows:]
        table.append(
            [name, *verdict(made), f"{early.verdict}, {early.claims[0].evidence[0].examples}", rate(changed)]
        )
    header = (
        f"{guarantee:.0%} on {rows} phrases, observed, smallest provable bound, with --stop-early after rows, "
        f"rate on {len(texts) - rows} others"
    )
    return markdown([f"{ORIGINAL} in fp32 to", *header.split(", ")], table)


def find_models(run: Path, texts: list[str]) -> Iterator[tuple[str, Path]]:
    """Name and path of what may replace the original; texts are those of the retrofits."""
    original, home = load_original(run / ORIGINAL), run / "certify"
    home.mkdir(exist_ok=True)
    sample = texts[:400]
    yield "int8", export_full_depth(original, home / "int8", "int8", sample)
    plain = export_full_depth(original, home / "fp32", "fp32", sample)
    yield "int8, dynamic scales", dynamic(plain, run / ORIGINAL, home / "dynamic")
    others = {"6 layers, retrained": "cut-6", "8 layers, retrained": "cut-8", "all-MiniLM-L6-v2": "small"}
    for name, folder in others.items():
        if (run / folder / "config.json").exists():
            yield name, run / folder
        else:
            log(f"{run / folder} is not there; left out")
    for name, bound, tune in (("exits", 0.02, False), ("exits, tuned", 0.05, True)):
        try:
            done = retrofit(run / ORIGINAL, texts, home / name, bound, tune=tune, precision="int8", log=log)
            yield f"{name}, certified at {bound:.0%}", done.folder
        except NoSafeThreshold as refusal:
            log(f"{name}: {refusal}")


def dynamic(plain: Path, original: Path, folder: Path) -> Path:
    """The original in int8 as ONNX Runtime quantizes it by default, in one file."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    from offramp.onnx_export.one_file import one_file

    file = folder / "model.onnx"
    if not file.exists():
        folder.mkdir(exist_ok=True)
        for name in ("config.json", "tokenizer.json"):
            shutil.copyfile(original / name, folder / name)
        draft = folder / "draft.onnx"
        graph = one_file(plain, Policy.parse("never"))
        del graph.graph.value_info[:]  # shapes of matrices that the quantizer transposes
        quantize_dynamic(graph, draft, weight_type=QuantType.QInt8)
        draft.rename(file)
    return file


def scores(predictor: Any, name: str, texts: list[str]) -> Any:
    """(texts, labels)"""
    log(f"{name}: {len(texts)} phrases")
    parts = [predictor.score(texts[start : start + CHUNK]) for start in range(0, len(texts), CHUNK)]
    return np.concatenate(parts)


def verdict(made: Certification) -> list[str]:
    (claim,) = made.claims
    evidence = claim.evidence[0]
    return [claim.verdict, f"{100 * evidence.observed:.2f}%", f"{100 * claim.provable:.2f}%"]


def rate(changed: Any) -> str:
    found: Any = binomtest(int(changed.sum()), len(changed)).proportion_ci()
    return f"{100 * changed.mean():.2f}% ({100 * found.low:.2f} to {100 * found.high:.2f})"


def study_edge(streams: int) -> str:
    """How often `stop_early` proves a claim that is just false."""
    table = []
    for bound in BOUNDS:
        draws = np.random.default_rng(1).random
        proofs = [one_stream(draws(LONGEST) < bound, bound)[1] == PROVEN for _ in range(streams)]
        table.append([f"{bound:.0%}", rate(np.array(proofs))])
        log(" | ".join(table[-1]))
    return markdown(["bound, and true rate", f"false proofs in {streams} streams"], table)


def study_rows(streams: int) -> str:
    """The rows of a verdict with `stop_early`, and those of a sample of a fixed size."""
    table = []
    for bound in BOUNDS:
        for share in (0.0, 0.25, 0.5, 1.0, 2.0):
            rates = np.random.default_rng(0).random((streams, LONGEST))
            found = [one_stream(losses, bound) for losses in rates < share * bound]
            used = np.array([rows for rows, _ in found])
            verdicts = [name for _, name in found]
            fixed = rows_needed(bound, share * bound) if share < 1 else None
            table.append(
                [
                    f"{bound:.0%}",
                    f"{100 * share * bound:g}%",
                    *(f"{value:.0f}" for value in (np.median(used), used.mean(), np.quantile(used, 0.9))),
                    *(f"{100 * verdicts.count(name) / streams:.1f}%" for name in ("proven", "refuted")),
                    str(fixed or ""),
                ]
            )
    columns = "bound, true rate, rows: median, mean, 90%, proven, refuted, rows without --stop-early"
    return markdown(columns.split(", "), table)


def one_stream(changed: Any, bound: float) -> tuple[int, str]:
    """The rows examined, and the verdict."""
    old = np.zeros(len(changed))
    made = certify(old, changed.astype(float), bound, tolerance=0.5, stop_early=True)  # numbers are fastest
    return made.claims[0].evidence[0].examples, made.verdict


def rows_needed(bound: float, rate: float, delta: float = 0.05) -> int:
    """The smallest sample that proves the bound with the probability POWER."""
    rows = np.arange(1, 20_000)
    allowed = binom.ppf(delta, rows, bound)
    allowed -= binom.cdf(allowed, rows, bound) > delta  # the most changes that prove it, or -1
    enough = binom.cdf(allowed, rows, rate) >= POWER
    return int(rows[np.flatnonzero(~enough)[-1] + 1])


if __name__ == "__main__":
    main()
