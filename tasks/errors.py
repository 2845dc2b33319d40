"""Errors whose text is meant for the person at the keyboard. No logic and no imports live here."""


class RegrowError(Exception):
    """Anything that regrow itself reports; the message alone tells what was wrong, where, and what to do."""


class UserError(RegrowError):
    """The user's input or environment is wrong: printed as one line, exit code 2, no traceback.

    Survives pickling as long as a subclass passes only its message to `Exception`.
    """


class UserCodeError(RegrowError):
    """The user's own code raised where it is not a trial's: on import, or in a sampler or scheduler. `trace` is its traceback."""

    def __init__(self, message: str, trace: str) -> None:
        super().__init__(message, trace)
        self.trace = trace

    def __str__(self) -> str:
        return str(self.args[0])


class ReportError(RegrowError):
    """The trainable reported something that cannot be recorded: its metric is missing, or is not a finite number."""
