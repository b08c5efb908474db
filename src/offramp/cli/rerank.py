"""offramp rerank: the best documents of each query in a file."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from offramp.cli.command import Result, log
from offramp.cli.options import ForceOption, RuntimeOptions, SafeCsvOption, check_output
from offramp.cli.progress import with_progress
from offramp.cli.rows import Row, check_format, input_columns, read_lists, rounded, tsv_line, write_records
from offramp.wording import count

if TYPE_CHECKING:
    from offramp.inference.reranker import Reranker

RANKED = ("rank", "score", "layer")
QUERIES_AT_ONCE = 32

QueryOption = Annotated[str, Option(help="Column of the query.")]
DocumentOption = Annotated[str, Option(help="Column of the document.")]


def rerank(
    model: Annotated[str, Argument(help="A cross-encoder with exits, or an exported one.")],
    file: Annotated[Path, Argument(help="A csv, tsv, jsonl or parquet file with a row for each document.")],
    runtime: RuntimeOptions,
    out: Annotated[Path | None, Option(help="A jsonl, csv or tsv file; stdout by default.")] = None,
    force: ForceOption = False,
    safe_csv: SafeCsvOption = False,
    query: QueryOption = "query",
    text: DocumentOption = "text",
    top_k: Annotated[
        int | None, Option(min=1, help="Documents to find for each query; by default as calibrated, or 10.")
    ] = None,
    exact_top: Annotated[
        bool, Option("--exact-top", help="Run the best documents to full depth, for their exact order.")
    ] = False,
) -> Result:
    """Find the best documents of each query.

    Rows with the same query belong together, wherever they are in the file. Prints rank, score, layer, query and
    document separated by tabs, best first, or with --json one object per line. Files and --json also have the other
    columns of the input; if one is called rank, score or layer, it becomes input_rank and so on. Without a policy,
    which `offramp retrofit --rank` stores, every document runs to full depth.

    \b
    Examples:
        offramp rerank fast candidates.csv --top-k 10 --out best.csv
        offramp rerank fast candidates.jsonl --query question --text sentence
    """
    from offramp.folder import find_model
    from offramp.inference.reranker import Reranker
    from offramp.model_info import ModelInfo

    folder = find_model(model)
    ModelInfo.read(folder)  # one without exits is refused before the columns of the file are looked for
    if out is not None:
        check_output(out, force, file)
        check_format(out)
    lists = read_lists(file, query, text)
    reranker = Reranker(runtime.load(folder, None))
    ranked = rank_records(reranker, lists, top_k or reranker.top_k, exact_top)
    if out is not None:
        return write_records((record for _, record in ranked), out, (), safe_csv)
    lines = (
        tsv_line({**{name: record[name] for name in RANKED}, "query": row.text[0], "text": row.text[1]})
        for row, record in ranked
    )
    return Result((record for _, record in ranked), lines)


def rank_records(
    reranker: "Reranker", lists: dict[str, list[Row]], top_k: int, exact_top: bool
) -> Iterator[tuple[Row, dict[str, Any]]]:
    """The best rows of each query with their records; at the end a summary on stderr."""
    documents = layers = 0
    for first in with_progress(range(0, len(lists), QUERIES_AT_ONCE), "ranking"):
        some = [*lists.values()][first : first + QUERIES_AT_ONCE]
        queries = [(rows[0].text[0], [row.text[1] for row in rows]) for rows in some]
        for rows, ranked in zip(some, reranker.rank_all(queries, top_k, exact_top=exact_top), strict=True):
            documents, layers = documents + len(ranked), layers + sum(document.layer for document in ranked)
            for rank, document in enumerate(ranked[:top_k], 1):
                row = rows[document.index]
                ranked_as = {"rank": rank, "score": rounded(document.score), "layer": document.layer}
                yield row, {**ranked_as, **input_columns(row, RANKED)}
    depth = reranker.runner.runtime.info.exits[-1]
    log(
        f"{count(len(lists), 'query')} with {count(documents, 'document')}, mean layer {layers / documents:.2f} of "
        f"{depth}"
    )
