"""Retrofit: exits for a fine-tuned classifier, from texts without labels, with a guarantee about its predictions."""

from offramp.retrofits.run import Retrofit, retrofit

__all__ = ["Retrofit", "retrofit"]
