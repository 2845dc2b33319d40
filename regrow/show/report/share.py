"""A folder to hand on: the report, the best configuration, the specification, the table of trials
and, if wanted, the best checkpoint. A browser reads it without a server, from a disk or a bucket.

A share is updated in an order in which a reader never meets a link to nothing: first what the page
refers to, then the page, then what the older page referred to is deleted. `share.json` names the
experiment, so that no other folder is written into.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from regrow.infra.log.rows import LogRows
from regrow.infra.state.notes import Notes
from regrow.infra.state.places import Places
from regrow.infra.state.spec_file import published_spec
from regrow.infra.stores.pages import Pages, open_pages
from regrow.search.history import History
from regrow.show.exports import files, frames
from regrow.show.report import report
from regrow.show.views import summaries
from regrow.show.web import as_yaml
from regrow.tasks.checkpoint.manifests import CorruptCheckpoint, Manifest, unseal
from regrow.tasks.checkpoint.saving import restore_one
from regrow.tasks.errors import UserError
from regrow.tasks.output.traces import one_line
from regrow.tasks.ports.store import Missing, Store
from regrow.tasks.process import disk

INDEX, BEST, SPECIFICATION, TRIALS = "index.html", "best.yaml", "specification.yaml", "trials.csv"
RECORD = "share.json"
LISTED = 100
"""Maximum files of a checkpoint that the page lists."""
_FOLDER = re.compile(r"checkpoint/trial-\d{1,9}-attempt-\d{1,9}-step-\d{1,12}")
_TYPES = {
    ".html": "text/html; charset=utf-8",
    # As text, so that a browser shows it; it would save application/yaml.
    ".yaml": "text/plain; charset=utf-8",
    ".csv": "text/csv; charset=utf-8",
    ".json": "application/json",
}


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """What `share.json` holds.

    Attributes:
        experiment: its name.
        id: its identity, which a new experiment of the same name does not have.
        checkpoints: folders of checkpoints that may be there.

    """

    experiment: str
    id: str
    checkpoints: list[str] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedReport:
    """A written share: its address, the one that a browser opens, and its files and folders."""

    url: str
    link: str
    files: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint to be shared: the key of its manifest, and its folder in the share."""

    key: str
    manifest: Manifest

    @property
    def folder(self) -> str:
        found = self.manifest
        return f"checkpoint/trial-{found.trial}-attempt-{found.attempt}-step-{found.step}"


def share(
    found: LogRows,
    store: Store,
    places: Places,
    where: str,
    *,
    alive: bool,
    now: float,
    notes: Notes,
    checkpoint: bool,
) -> SharedReport:
    """Write the share, or update an earlier one of the same experiment.

    Args:
        found: the experiment.
        store: its store.
        places: its state root.
        where: a folder, or s3://BUCKET/PREFIX.
        alive: whether the experiment runs.
        now: seconds since the epoch.
        notes: its notes.
        checkpoint: also write the files of the best trial's checkpoint.

    Raises UserError for a place that holds anything but such a share, and for a best trial without
    a checkpoint if one is wanted.

    """
    history, pages = found.history, open_pages(where)
    earlier = _earlier(pages, history)
    best = _checkpoint(store, history) if checkpoint else None
    own = [] if best is None else [best.folder]
    small = _small(found)
    record = Record(experiment=history.spec.name, id=history.id, checkpoints=own)
    before = [*dict.fromkeys((*earlier, *own))]
    # First of all, so that a share that was cut off is known as one.
    _put(pages, RECORD, msgspec.json.encode(msgspec.structs.replace(record, checkpoints=before)))
    if best is not None:
        _send(pages, store, best)
    for name, (_, data) in small.items():
        _put(pages, name, data)
    listed = [(name, what) for name, (what, _) in small.items()] + _listed(best)
    page = report.html(found, places, alive=alive, now=now, notes=notes, files=listed)
    _put(pages, INDEX, page.encode())
    if BEST not in small:
        pages.delete([BEST])
    for folder in before:
        if folder not in own:
            pages.delete(pages.list(f"{folder}/"))
    if before != own:
        _put(pages, RECORD, msgspec.json.encode(record))
    return SharedReport(url=pages.url, link=pages.link(INDEX), files=[INDEX, *small, *own])


def _earlier(pages: Pages, history: History) -> list[str]:
    """Return the folders of checkpoints of an earlier share. Raises UserError for other files."""
    try:
        record = msgspec.json.decode(pages.read(RECORD), type=Record)
    except Missing:
        if others := pages.list(most=1):
            raise UserError(
                f"{pages.url} is no earlier share, it holds {one_line(others[0])}; name"
                " an empty or a new folder"
            ) from None
        return []
    except msgspec.DecodeError:
        raise UserError(
            f"{RECORD} in {pages.url} is not regrow's; name an empty or a new folder"
        ) from None
    name = history.spec.name
    if record.id != history.id or not (record.id or record.experiment == name):
        other = "another experiment" if record.experiment == name else "experiment"
        raise UserError(
            f"{pages.url} is the share of {other} {one_line(record.experiment)!r}; name"
            f" another folder for {name!r}"
        )
    # What is deleted afterwards is only what a share may have written.
    return [one for one in record.checkpoints if _FOLDER.fullmatch(one)]


def _small(found: LogRows) -> dict[str, tuple[str, bytes]]:
    """Return the small files: what each is, for the page, and its content."""
    history = found.history
    view = summaries.best(history)
    # Without the state root, whose address tells a reader nothing.
    table = b"".join(files.csv_bytes([frames.trials(found)]))
    made = {
        SPECIFICATION: (
            "the specification, for regrow run, without the values of environment variables",
            published_spec(history.spec.to_json()),
        ),
        TRIALS: ("all trials, a line each", table),
    }
    if view is None:
        return made
    reached = f"trial {view['trial']}, {history.objective.name} {summaries.reached(view)}"
    head = one_line(f"# {history.spec.name}: {reached}, step {view['step']}")
    configuration = f"{head}\n{as_yaml(view['config'])}\n".encode()
    return {BEST: (f"the best configuration ({reached})", configuration), **made}


def _checkpoint(store: Store, history: History) -> Checkpoint:
    """Return the checkpoint of the best trial. Raises UserError if there is none."""
    view = summaries.best(history)
    if view is None or (key := view["checkpoint"]) is None:
        raise UserError(
            f"the best trial of {history.spec.name!r} has no checkpoint; report with"
            " checkpoint=... in the trainable"
        )
    try:
        return Checkpoint(key=key, manifest=unseal(key, store.read(key)))
    except (Missing, CorruptCheckpoint) as error:
        raise UserError(f"the best checkpoint cannot be shared: {error}") from None


def _send(pages: Pages, store: Store, best: Checkpoint) -> None:
    """Write the checkpoint's files, unless an earlier share has them all: they never change."""
    wanted = {f"{best.folder}/{file.path}" for file in best.manifest.files}
    if wanted <= set(pages.list(f"{best.folder}/")):
        return
    with tempfile.TemporaryDirectory(prefix="regrow-share-") as made:
        folder = restore_one(store, best.key, Path(made, "checkpoint"))
        for file in best.manifest.files:
            try:
                # whatever its name: a browser saves it and runs nothing of it
                pages.put(
                    f"{best.folder}/{file.path}", folder / file.path, "application/octet-stream"
                )
            except ValueError as error:
                raise UserError(
                    f"the file {file.path!r} of the checkpoint cannot be shared: {error}"
                ) from None


def _listed(best: Checkpoint | None) -> list[tuple[str, str]]:
    """Return the checkpoint's files for the page: their paths, and what they are."""
    if best is None:
        return []
    found = [
        (f"{best.folder}/{file.path}", f"the best checkpoint, {disk.size(file.size)}")
        for file in best.manifest.files[:LISTED]
    ]
    if (more := len(best.manifest.files) - LISTED) > 0:
        path, what = found[-1]
        found[-1] = (path, f"{what}; and {more} more files of it")
    return found


def _put(pages: Pages, name: str, data: bytes) -> None:
    pages.put(name, data, _TYPES[Path(name).suffix])
