"""What a ranking loses against that of full depth, for each list from 0 to 1.

Calibration bounds the mean loss, and the server's audit checks it.
"""

import numpy as np

from offramp.problems import Array


def ranks(scores: Array) -> Array:
    """(queries, longest) ranks from 0, best first; of equal scores, the first document is better."""
    return np.argsort(np.argsort(-scores, axis=1, kind="stable"), axis=1, kind="stable")


def overlap_loss(found: Array, full: Array, top_k: Array, sizes: Array) -> Array:
    """The share of the reference's top k that is not in the top k that was found."""
    wanted = np.minimum(top_k, sizes)
    both = (found < wanted[:, None]) & (full < wanted[:, None])
    return np.asarray(1 - both.sum(1) / wanted)


def ndcg_loss(found: Array, full: Array, top_k: Array, sizes: Array) -> Array:
    """1 - nDCG@k, with gains from k for the reference's best document to 1 for its k-th."""
    wanted = np.minimum(top_k, sizes)[:, None]
    gains = np.maximum(wanted - full, 0)

    def dcg(order: Array) -> Array:
        return np.asarray((gains * (order < wanted) / np.log2(order + 2)).sum(1))

    return np.asarray(1 - dcg(found) / dcg(full)).clip(0, 1)


LOSSES = {"overlap": overlap_loss, "ndcg": ndcg_loss}
