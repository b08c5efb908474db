"""Every error that a person can cause. Each message names the cause and the next step."""


class OfframpError(Exception):
    """A mistake in what offramp was given; the message is for the person who gave it."""


class MissingExtra(OfframpError, ImportError):
    """A part of offramp was asked for whose dependencies are not installed."""


class UnknownMetric(OfframpError):
    """A metric was named that does not exist, or that does not fit the labels."""


class BadCost(OfframpError):
    """A cost was asked for that the given sizes or counts cannot tell."""


class BadSweep(OfframpError):
    """A trace, a rule and thresholds that cannot be swept together."""


class BadTarget(OfframpError):
    """A target for calibration that cannot be aimed at on this trace."""


class NoSafeThreshold(OfframpError):
    """No threshold of the rule reaches the target; the message says what would."""

    def __init__(self, message: str, examples_needed: int | None = None, of_class: str | None = None) -> None:
        super().__init__(message)
        self.examples_needed = examples_needed
        """How many examples would have been enough, where more of them help."""
        self.of_class = of_class
        """The class that the examples must be of, where bounds are by class."""


class ReusedData(UserWarning):
    """The data that a threshold is set by also chose the rule, so what it says about the rule is too good."""


class BadData(OfframpError):
    """A file or data set does not hold what the task expects."""


class UnknownTask(OfframpError):
    """A task was named that does not exist."""


class BadPolicy(OfframpError):
    """A policy was written that means nothing: an unknown rule or option, or a value out of range."""


class UnfitRule(OfframpError):
    """A rule was asked to decide for a model or problem that lacks what the rule looks at."""


class AlreadyThere(OfframpError):
    """A folder to be made holds something, which is not written over."""


class BadTrace(OfframpError):
    """A trace whose parts do not fit together, or a file that is not a whole trace."""


class CannotTruncate(OfframpError):
    """The asked depth cannot be cut out of this encoder."""


class UnknownBackbone(OfframpError):
    """No adapter for this type of transformers model."""


class BadHead(OfframpError):
    """Settings of a head that make no sense."""


class BadConfig(OfframpError):
    """A config that this version cannot read, or that contradicts itself."""


class CannotLoad(OfframpError):
    """No encoder that can be loaded at that name or path."""


class BadCheckpoint(OfframpError):
    """A checkpoint that cannot be imported: unreadable, unsafe, unknown, or at odds with its own config."""


class BadRequest(OfframpError):
    """Options of a prediction that make no sense, or none together."""


class BadText(OfframpError):
    """An item that is no text; the message says which."""


class UnfitTokenizer(OfframpError):
    """A tokenizer that predictions cannot use."""


class NotFinite(OfframpError):
    """The model gave NaN or infinity where an answer is needed."""


class UnknownRecipe(OfframpError):
    """A recipe was named that does not exist."""


class UnfitRecipe(OfframpError):
    """A recipe that cannot train this model on this task."""


class CannotTrain(OfframpError):
    """Training cannot start, or cannot go on, with what it was given."""


class CannotDownload(OfframpError):
    """Files that are fetched on demand cannot be had, or are not what they were."""


class CannotExport(OfframpError):
    """A model that cannot be exported as asked."""


class UnknownClass(OfframpError):
    """A class was named that the model does not have, or one class twice."""


class OtherThanProven(UserWarning):
    """A certificate speaks of another policy, model or precision than what runs here."""


class TooLong(OfframpError):
    """A text that the model cannot take whole, from somebody who wants it whole."""


class TooLarge(OfframpError):
    """A request that the limits can never admit, however little else there is."""


class Overloaded(OfframpError):
    """A request for which there is no room now."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        """Seconds that what waits now takes, at the pace measured."""


class Draining(OfframpError):
    """A request that comes while the server is being stopped."""


class Failed(OfframpError):
    """A request that was accepted and whose run failed; the cause is the exception's `__cause__`."""


class BadLadder(OfframpError):
    """Policies that no server may step along: a rung without proof, or rungs in the wrong order."""


class MalformedJson(OfframpError):
    """A body of a request that is not JSON."""


class ClusterFailed(OfframpError):
    """Work on a cluster that came to no end; the message says why, and how to go on."""
