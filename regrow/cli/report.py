"""`report`: writes an experiment as one HTML file, or its figures as pictures."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

from regrow.cli import options
from regrow.cli.console import opened
from regrow.cli.options import option
from regrow.infra.log.rows import LogRows
from regrow.show.exports import destination
from regrow.show.live.terminal import echo
from regrow.tasks.errors import UserError

OURS = b'<meta name="generator" content="regrow'
"""Marks files that an earlier `report` wrote, which may be replaced."""


def report(
    name: options.Name,
    state: options.State = None,
    output: Annotated[
        Path | None, option("The file to write [default: NAME.html]", "--output", "-o")
    ] = None,
    png: Annotated[
        Path | None, option("Write the figures into this folder instead, as PNG")
    ] = None,
    share: Annotated[
        str | None,
        option(
            "Write a folder to hand on instead: the report, the best configuration, the"
            " specification and the trials; an earlier one is updated",
            metavar="FOLDER|s3://BUCKET/PREFIX",
        ),
    ] = None,
    checkpoint: Annotated[
        bool, option("With --share: also the files of the best checkpoint", "--checkpoint")
    ] = False,
    browser: Annotated[bool, option("Open the report in a browser", "--open")] = False,
) -> None:
    """Write an experiment's report: one HTML file with all figures, that needs no network. Also
    possible while it runs.
    """
    if share is not None and (output is not None or png is not None):
        raise UserError("--share: goes without --output and --png, it writes a folder of its own")
    if checkpoint and share is None:
        raise UserError("--checkpoint: goes with --share; alone: regrow best NAME --save FOLDER")
    if png is not None and (output is not None or browser):
        raise UserError("--png: goes without --output and --open, it writes pictures and no page")
    file = Path(f"{name}.html") if output is None else output
    stream = png is None and share is None and destination.is_stream(file)
    if stream and browser:
        raise UserError(f"--open: {file} is no file that a browser could open")
    with opened(name, state) as found:
        rows, places = found.rows, found.places
        if png is not None:
            _pictures(rows, png)
            return
        state_now: dict[str, Any] = {"alive": found.alive, "now": time.time(), "notes": found.notes}
        if share is not None:
            from regrow.show.report.share import share as share_it

            shared = share_it(rows, found.store, places, share, checkpoint=checkpoint, **state_now)
            echo(f"{shared.url}: {', '.join(shared.files)}")
            echo(f"open it: {shared.link}")
            link = shared.link
        else:
            from regrow.show.report.report import html

            if not stream:
                check_page(file, "--output")
            page = html(rows, places, **state_now).encode()
            destination.put(file, [page])
            destination.print_message(file, f"{file} ({len(page) / 1e6:.1f} MB)")
            link = file.resolve().as_uri()
        if browser:
            import webbrowser

            webbrowser.open(link)


def _pictures(rows: LogRows, folder: Path) -> None:
    from regrow.show import figures
    from regrow.show.figures.images import write

    made = {
        name: figure for name in figures.KINDS if (figure := figures.figure(rows, name)) is not None
    }
    if not made:
        raise UserError(
            f"there is nothing to draw of {rows.history.spec.name!r} yet: no attempt has begun"
        )
    for file in write(made, folder):
        echo(file)


def check_page(file: Path, option: str) -> None:
    """Raise UserError if a page must not be written there. `option`: the one that names it."""
    try:
        with file.open("rb") as page_file:
            begin = page_file.read(4096)
    except FileNotFoundError:
        return
    except OSError as error:
        raise UserError(f"{option}: {file} cannot be read: {error.strerror}") from None
    if begin and OURS not in begin:
        raise UserError(
            f"{option}: {file} is there already and is no report of regrow's; name another file"
        )
