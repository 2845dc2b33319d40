"""A checkpoint's files, written and read with torch.distributed.checkpoint. Reading never runs code
from the files.

Each rank writes `__RANK_0.distcp` into its own folder, rank 0 also `.metadata`; all files together
are the checkpoint.
"""

from __future__ import annotations

import errno
import os
import pickle
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from pathlib import Path, PurePosixPath
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from regrow.tasks.errors import RegrowError, UserError
from regrow.tasks.process.disk import is_full

INDEX = ".metadata"
_DAMAGED = (pickle.UnpicklingError, EOFError, ValueError, TypeError, AttributeError, LookupError)
_DESCRIPTIONS = ("torch.distributed.checkpoint.metadata", "torch.distributed.checkpoint.filesystem")
"""Modules of the classes in an index, which are only records and enumerations."""


class NotWritten(RegrowError):
    """A rank could not write its part of a checkpoint."""


def write(state: Mapping[str, Any], folder: Path) -> None:
    """Write this rank's part, as all ranks do together; an error of one is raised on all."""
    alone = not (dist.is_available() and dist.is_initialized())
    try:
        with _quiet():
            # Not synced: durable files are copies, whose writer syncs them.
            save(dict(state), storage_writer=_Writer(folder, sync_files=False), no_dist=alone)
    except CheckpointException as error:  # not an Exception, and its text has many lines
        rank, (cause, _) = min(error.failures.items())
        if isinstance(cause, OSError) and cause.errno is not None:
            raise OSError(cause.errno, f"{cause.strerror} (rank {rank})", cause.filename) from None
        raise NotWritten(
            f"rg.torch.State: rank {rank} could not write its part of the checkpoint:"
            f" {_line(cause)}"
        ) from None


class CheckpointFolder:
    """A checkpoint's folder with the files of all ranks. Raises UserError if it is not whole."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._reader = _Reader(folder)
        try:
            index = self._reader.read_metadata()
        except FileNotFoundError:
            raise UserError(
                f"rg.torch.State: there is no checkpoint of rg.torch.State in {folder}: {INDEX} is"
                " missing"
            ) from None
        self._entries = index.state_dict_metadata
        files = {info.relative_path for info in (index.storage_data or {}).values()}
        if missing := sorted(name for name in files if not (folder / name).is_file()):
            raise UserError(
                f"rg.torch.State: the checkpoint in {folder} is not whole: {', '.join(missing)} is"
                " missing"
            )

        self.keys: Collection[str] = self._entries.keys()
        """Names of its entries, with dots."""

    def tensor(self, key: str) -> tuple[torch.Size, torch.dtype]:
        """Return the full size and type of a tensor. Raises UserError if there is none."""
        entry = self._entries.get(key)
        if not isinstance(entry, TensorStorageMetadata):
            raise UserError(f"rg.torch.State: the checkpoint in {self.folder} has no tensor {key}")
        return entry.size, entry.properties.dtype

    def objects(self, *keys: str) -> list[Any]:
        """Return the entries that are not tensors, by their keys."""
        found = self._read(dict.fromkeys(keys))
        return [found[key][0] for key in keys]

    def fill(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Read into tensors, by their keys; for a sharded tensor, only this worker's part."""
        self._read(dict(tensors))

    def _read(self, wanted: dict[str, Any]) -> dict[str, Any]:
        try:
            with _quiet():
                # Without the other ranks: each reads what it needs, and raises its errors
                # unchanged.
                load(wanted, storage_reader=self._reader, planner=_Planner(), no_dist=True)
        except CheckpointException as error:
            _, (cause, _) = min(error.failures.items())
            raise UserError(
                f"rg.torch.State: the checkpoint in {self.folder} cannot be read: {_line(cause)}"
            ) from None
        return wanted


class _Writer(FileSystemWriter):
    """Reports a full disk, where PyTorch reports an unexpected position, to all ranks."""

    def write_data(self, plan: Any, planner: Any) -> Any:
        with _full(Path(self.path)):
            return super().write_data(plan, planner)

    def finish(self, metadata: Any, results: Any) -> None:
        with _full(Path(self.path)):
            super().finish(metadata, results)


class _Planner(DefaultLoadPlanner):
    """Uses keys unchanged, and reads only data from files."""

    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def load_bytes(self, read_item: Any, value: Any) -> None:
        self.state_dict[read_item.dest_index.fqn] = torch.load(
            value, weights_only=True, map_location="cpu"
        )


class _Reader(FileSystemReader):
    """Reads the index once, and only records in it: PyTorch would unpickle anything."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._folder = folder
        self._index: Metadata | None = None

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        if self._index is None:
            with (self._folder / INDEX).open("rb") as file:
                try:
                    found = _Unpickler(file).load()
                except _DAMAGED as error:
                    raise UserError(
                        f"rg.torch.State: {self._folder / INDEX} is damaged: {_line(error)}"
                    ) from None
            if not isinstance(found, Metadata):
                raise UserError(
                    f"rg.torch.State: {self._folder / INDEX} is no index of a checkpoint"
                )
            found.storage_meta = found.storage_meta or StorageMeta()
            self._index = found
        return self._index


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module.startswith("pathlib") and name in ("PosixPath", "WindowsPath"):
            return PurePosixPath  # where it was saved, which is never used
        if module == "torch" and (
            name == "Size" or isinstance(getattr(torch, name, None), torch.dtype)
        ):
            return getattr(torch, name)
        # Takes a string: this is how PyTorch pickles torch.strided.
        if (module, name) == ("torch.serialization", "_get_layout"):
            return super().find_class(module, name)
        # Python before 3.11.4 pickles an enumeration's member with it
        if (module, name) == ("builtins", "getattr"):
            return _member
        if module in _DESCRIPTIONS:
            found = super().find_class(module, name)
            if isinstance(found, type) and (
                issubclass(found, Enum) or hasattr(found, "__dataclass_fields__")
            ):
                return found
        raise pickle.UnpicklingError(f"it names {module}.{name}, which no checkpoint does")


def _member(kind: Any, name: Any) -> Any:
    """Return a member of an enumeration. Raises UnpicklingError for anything else."""
    if isinstance(kind, type) and issubclass(kind, Enum) and name in kind.__members__:
        return kind[name]
    raise pickle.UnpicklingError(f"it names an attribute of {kind!r}, which no checkpoint does")


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress PyTorch's warnings about a single worker, and about overwriting a checkpoint."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        warnings.filterwarnings("ignore", message="Detected an existing checkpoint")
        yield


@contextmanager
def _full(folder: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError) as error:
        if not is_full(error, folder):
            raise
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder)) from error


def _line(error: BaseException) -> str:
    """Return an error's first sentence: PyTorch appends general explanations."""
    return f"{type(error).__name__}: {' '.join(str(error).split()).partition('. ')[0]}"
