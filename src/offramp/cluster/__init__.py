"""Batch prediction on Ray Data, on one machine or on a cluster."""

from offramp.errors import MissingExtra, install_hint

try:
    import pyarrow.dataset  # noqa: F401
    import ray.data  # noqa: F401
except ModuleNotFoundError as error:
    raise MissingExtra(f"offramp.cluster {install_hint(str(error.name), 'ray')}") from error

from offramp.cluster.job import RunSummary, predict

__all__ = ["RunSummary", "predict"]
