"""Errors whose text is meant for users. No logic and no imports live here."""


class RegrowError(Exception):
    """Base of all errors that regrow reports; the message says what is wrong, where, what to do."""


class UserError(RegrowError):
    """The user's input or environment is wrong: printed as one line, exit code 2, no traceback.

    Survives pickling as long as a subclass passes only its message to `Exception`.
    """


class UserCodeError(RegrowError):
    """The user's code raised outside of a trial: on import, in a sampler. `trace`: traceback."""

    def __init__(self, message: str, trace: str) -> None:
        super().__init__(message, trace)
        self.trace = trace

    def __str__(self) -> str:
        return str(self.args[0])


class ReportError(RegrowError):
    """The trainable reported what cannot be recorded: its metric is missing or not finite."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C at the terminal. The user's code raises a KeyboardInterrupt of another class."""
