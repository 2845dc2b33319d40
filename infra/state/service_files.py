"""Where the files of a state root's embedded services are.

`<state>/.services/` has them where the state is in a folder of this machine's. With the state in a
bucket, and on cluster machines, which share the state's folder, they are in a local folder:
$REGROW_HOME/<bucket>-<hash of the URL>/, by default below $XDG_DATA_HOME/regrow
(~/.local/share/regrow). The same holds for a user of a state root whose `.services` belongs to
another user.

The folder is readable by its owner only, always.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from regrow.infra.machine import private_files
from regrow.infra.state import hosts
from regrow.infra.stores import Root
from regrow.infra.stores.local import unusable


def common(root: Root, beside: Path | None) -> Path:
    """Return the folder for the services of a root on all hosts. One folder per state root, even if
    two servers have buckets of the same name.

    `beside`: the folder of the state, whose `.services` is used unless it is another user's. None:
    other machines see the state too.
    """
    if beside is not None and not _is_anothers(inside := beside / ".services"):
        return inside
    name = root.url.partition("://")[2].partition("/")[0].partition("?")[0] or "folder"
    digest = hashlib.sha256(f"{root.url}\n{root.endpoint}".encode()).hexdigest()[:12]
    return home() / f"{name}-{digest}"


def make(root: Root, beside: Path | None) -> None:
    """Create the root and the folder for this host's services. Raises UserError if either cannot be
    written.
    """
    root.prove()
    services = common(root, beside)
    try:
        private_files.folder(services)
        services = private_files.folder(common(root, beside))  # another user's may have come first
        # This host's folder, if the file system is shared and another host owns the outer one.
        hosts.settle(services)
        services = hosts.folder(services)
        probe = services / f".probe-{os.getpid()}"
        probe.touch(mode=0o600)
        probe.unlink()
    except OSError as error:
        is_inside = beside is not None and services.parent == beside
        raise unusable(root.url if is_inside else services, "written", error) from error


def home() -> Path:
    """Return where this user's services keep their files if the state is not local: $REGROW_HOME,
    else in the XDG data folder.
    """
    if chosen := os.environ.get("REGROW_HOME"):
        return Path(chosen).expanduser().resolve()
    data = os.environ.get("XDG_DATA_HOME", "")
    # A relative XDG_DATA_HOME is ignored, as the XDG rules demand.
    base = Path(data) if os.path.isabs(data) else Path("~/.local/share").expanduser()
    return base / "regrow"


def _is_anothers(folder: Path) -> bool:
    """Return whether the folder belongs to another user, who may have written anything there."""
    try:
        return folder.stat().st_uid != os.getuid()
    except OSError:
        return False
