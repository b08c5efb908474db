"""Batch prediction on Ray Data, on one machine or on a cluster."""

from offramp.errors import explain_missing

with explain_missing("offramp.cluster"):
    import pyarrow.dataset  # noqa: F401
    import ray.data  # noqa: F401

from offramp.cluster.job import RunSummary, predict

__all__ = ["RunSummary", "predict"]
