"""Every error that a person can cause. Each message names the cause and the next step."""


class OfframpError(Exception):
    """A mistake in what offramp was given; the message is for the person who gave it."""


class MissingExtra(OfframpError, ImportError):
    """A part of offramp was asked for whose dependencies are not installed."""


class UnknownMetric(OfframpError):
    """A metric was named that does not exist."""
