"""offramp serve: serve a model over HTTP."""

from offramp.cli.command import Result
from offramp.serve.options import ServerOptions


def serve(options: ServerOptions) -> Result:
    """Serve a model over HTTP.

    POST /predict classifies texts, or POST /tag finds spans in them; / is a page to try it; /docs describes all
    endpoints. The log goes to stderr, one JSON object per line. On SIGTERM the server answers the requests it has
    accepted, then exits with code 0.

    \b
    Examples:
        offramp serve runs/mine
        offramp serve runs/mine --ladder loose.json --ladder looser.json --allow never
        curl --json '{"texts": "a gripping film"}' localhost:8000/predict
    """
    from offramp.serve.server import serve as run

    run(options)
    return Result({"stopped": True}, "stopped")
