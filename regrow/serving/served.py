"""The class from which a user's model for `regrow serve` is derived. Nothing of the serving itself lives here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar


class Served:
    """A model that `regrow serve NAME --model FILE.py:CLASS` answers with.

    A subclass has the pydantic model `Input`, and the methods `load` and `predict`. An instance is made, without arguments, for
    each checkpoint that is served. Its `load` and `predict` run in one thread, so never two calls at a time.
    """

    Input: ClassVar[Any]
    """Pydantic's model of one input, a class with fields. What does not fit it is answered with 422, naming the field."""

    Output: ClassVar[Any] = None
    """The type of one output, any that pydantic knows. None: whatever `predict` returns that can be written as JSON, NumPy's
    numbers and arrays included.
    """

    example: ClassVar[Any] = None
    """An input, as a dict or an instance of `Input`, with which each checkpoint is tried before it answers anybody. None: the
    last valid input that came is taken; where none came yet, a checkpoint is loaded and not tried.
    """

    max_batch: ClassVar[int] = 16
    """Inputs of one call of `predict` at most."""

    max_wait: ClassVar[float] = 0.005
    """Seconds for which an input waits for others at most. It does not wait where nobody else has been asking."""

    max_inputs: ClassVar[int] = 1024
    """Inputs of one request at most."""

    max_body: ClassVar[int] = 16 * 1024 * 1024
    """Bytes of a request's body at most."""

    max_waiting: ClassVar[int] = 4096
    """Inputs that may wait in one process; what comes beyond is answered with 503 at once."""

    cpus: ClassVar[float] = 1
    """CPUs that a replica holds, with --ray."""

    gpus: ClassVar[float] = 0
    """GPUs that a replica holds, with --ray."""

    def load(self, folder: Path, config: dict[str, Any]) -> None:
        """Makes the model from a checkpoint's files.

        `folder` holds what the trial saved, every byte verified, and stays until another checkpoint has taken this one's place.
        `config` is the trial's configuration at the checkpoint's step, nested as the trainable sees it. What is raised here
        refuses the checkpoint: the one that was served before stays.
        """
        raise NotImplementedError

    def predict(self, inputs: list[Any]) -> Sequence[Any]:
        """One output for each input, in order. `inputs` are 1 to `max_batch` instances of `Input`, of several requests.

        If it raises for several inputs, it is called again with each alone, so that one bad input fails its own request only.
        """
        raise NotImplementedError
