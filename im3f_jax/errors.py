"""What goes wrong on the caller's side, and what deserves a warning."""

__all__ = ["Im3fWarning", "InputError", "SamplingError"]


class InputError(ValueError):
    """The caller's input cannot be used; the message says where and why."""


class Im3fWarning(UserWarning):
    """The result can be used, with the reservation that the message states."""


class SamplingError(RuntimeError):
    """A run stopped because a draw is not finite; the message names the array."""
