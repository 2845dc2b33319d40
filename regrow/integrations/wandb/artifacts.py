"""A program's artifacts, whose files are kept."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from regrow.integrations.wandb.messages import WAY_OUT, print_once
from regrow.tasks.process import temporary


class Artifact:
    def __init__(self, name: str, type: str = "", *_: Any, metadata: Any = None, **__: Any) -> None:  # noqa: A002 - W&B's parameter
        self.name, self.type, self.metadata = name, type, dict(metadata or {})
        self.files: dict[str, Path] = {}

    @classmethod
    def of(cls, path: Path) -> Artifact:
        """Make an artifact from a file, or from a folder's files."""
        made = cls(path.name)
        (made.add_dir if path.is_dir() else made.add_file)(path)
        return made

    def add_file(self, local_path: Any, name: str | None = None, *_: Any, **__: Any) -> None:
        """Add a file. Raises ValueError if it does not exist."""
        if not Path(local_path).is_file():
            raise ValueError(f"Artifact.add_file: there is no file {local_path}")
        self.files[name or Path(local_path).name] = Path(local_path)

    def add_dir(self, local_path: Any, name: str | None = None, *_: Any, **__: Any) -> None:
        for file in sorted(Path(local_path).rglob("*")):
            if file.is_file():
                self.files[str(Path(name or "") / file.relative_to(local_path))] = file

    @contextmanager
    def new_file(
        self, name: str, mode: str = "w", encoding: str | None = None
    ) -> Iterator[IO[Any]]:
        """Yield a new file to write, which is added."""
        folder = tempfile.mkdtemp(prefix="artifact-", dir=temporary.process_temp_dir())
        path = Path(folder, Path(name).name)
        with path.open(mode, encoding=encoding) as file:
            yield file
        self.files[name] = path

    def add_reference(self, uri: Any, *_: Any, **__: Any) -> None:
        """Do nothing: references are not kept."""
        print_once(f"Artifact.add_reference: {uri} is not kept")

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"an Artifact has no {name} in regrow's stand-in for wandb; {WAY_OUT}")

    def wait(self, *_: Any, **__: Any) -> Artifact:
        """Return immediately: the artifact is complete."""
        return self
