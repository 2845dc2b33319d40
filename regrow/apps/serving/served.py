"""The base class of users' models for `regrow serve`. The serving code is elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar


class Served:
    """A model that `regrow serve NAME --model FILE.py:CLASS` answers with.

    A subclass has the pydantic model `Input`, and the methods `load` and `predict`. An instance is
    made, without arguments, for each checkpoint that is served. Its `load` and `predict` run in one
    thread, so never two calls at a time.
    """

    Input: ClassVar[Any]
    """Pydantic model of one input, a class with fields. An input that does not fit is answered with
    422, naming the field.
    """

    Output: ClassVar[Any] = None
    """Type of one output, any that pydantic supports. None: whatever `predict` returns that can be
    written as JSON, including NumPy's numbers and arrays.
    """

    example: ClassVar[Any] = None
    """An input, as a dict or an instance of `Input`, with which each checkpoint is tried before it
    is served. None: the last input that a model has answered is used; if there is none yet, a
    checkpoint is loaded and not tried.
    """

    max_batch: ClassVar[int] = 16
    """Maximum number of inputs of one call of `predict`."""

    max_wait: ClassVar[float] = 0.005
    """Maximum seconds for which an input waits for others. It does not wait if no other requests
    came recently.
    """

    max_inputs: ClassVar[int] = 1024
    """Maximum number of inputs of one request."""

    max_body: ClassVar[int] = 16 * 1024 * 1024
    """Maximum bytes of a request's body."""

    max_items: ClassVar[int] = 250_000
    """Maximum values of a request's body: a number, text or list counts for one, an object for 20,
    each of its fields for 5.
    """

    max_answer: ClassVar[int] = 64 * 1024 * 1024
    """Maximum bytes of an answer's body; a larger one is answered with 500, as an error of the
    model.
    """

    max_waiting: ClassVar[int] = 4096
    """Maximum number of inputs that wait in one process; more are answered with 503 immediately."""

    max_seconds: ClassVar[float] = 300.0
    """Maximum seconds for a batch. After that its requests are answered with 504, and the process,
    whose `predict` hangs, is replaced.
    """

    cpus: ClassVar[float] = 1
    """CPUs that a replica holds, with --ray."""

    gpus: ClassVar[float] = 0
    """GPUs that a replica holds, with --ray."""

    def load(self, folder: Path, config: dict[str, Any]) -> None:
        """Make the model from a checkpoint's files.

        Args:
            folder: what the trial saved, every byte verified; it stays until another checkpoint has
                replaced this one.
            config: the trial's configuration at the checkpoint's step, nested as the trainable sees
                it.

        An exception here refuses the checkpoint: the one that was served before stays.

        """
        raise NotImplementedError

    def predict(self, inputs: list[Any]) -> Sequence[Any]:
        """Return one output for each input, in order. `inputs` are 1 to `max_batch` instances of
        `Input`, of several requests.

        If it raises for several inputs, it is called again with each one alone, so that one bad
        input fails only its own request.
        """
        raise NotImplementedError
