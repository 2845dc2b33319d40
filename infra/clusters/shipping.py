"""What each machine needs to run regrow: a wheel, exact versions, and their environment."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import re
import shlex
import sys
import zipfile
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from pathlib import Path

from regrow.infra.clusters.description import WithEnvironment
from regrow.tasks.errors import UserError

_EPOCH = (1980, 1, 1, 0, 0, 0)
"""Time of all files in the wheel, so that the same files give the same bytes."""
_TOOLS = frozenset({"pip", "regrow", "setuptools", "wheel"})


def wheel_name() -> str:
    """Return the name of the wheel's file."""
    return f"regrow-{metadata.version('regrow')}-py3-none-any.whl"


@cache
def wheel() -> bytes:
    """Return a wheel of the running regrow."""
    info = f"regrow-{metadata.version('regrow')}.dist-info"
    files = {
        **dict(_package()),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    for name in ("METADATA", "entry_points.txt"):
        files[f"{info}/{name}"] = (metadata.distribution("regrow").read_text(name) or "").encode()
    record = io.StringIO()
    rows = csv.writer(record, lineterminator="\n")
    for name, content in sorted(files.items()):
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        rows.writerow((name, f"sha256={digest}", len(content)))
    rows.writerow((f"{info}/RECORD", "", ""))
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in [
            *sorted(files.items()),
            (f"{info}/RECORD", record.getvalue().encode()),
        ]:
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), content, zipfile.ZIP_DEFLATED)
    return packed.getvalue()


def _package() -> Iterator[tuple[str, bytes]]:
    """Yield the files of the package by their names in a wheel. Folders may be links."""
    root = Path(sys.modules["regrow"].__file__ or "").parent
    folders = [root]
    while folders:
        for file in sorted(folders.pop().iterdir()):
            if file.is_dir() and file.name != "__pycache__":
                folders.append(file)
            elif file.is_file():
                yield f"regrow/{file.relative_to(root)}", file.read_bytes()


def requirements(lock: Path | None) -> bytes:
    """Return the content of `lock`, or exact versions of what is installed here. Raises UserError
    for a package that other machines cannot install.
    """
    if lock is not None:
        return lock.read_bytes()
    found: dict[str, str] = {}
    for one in metadata.distributions():
        name = re.sub(r"[-_.]+", "-", one.metadata["Name"]).lower()
        if name in _TOOLS:
            continue
        place = json.loads(one.read_text("direct_url.json") or "{}")
        if place.get("url", "").startswith("file:"):
            hint = "publish it, or name the packages that the cluster needs in a file, at `lock`"
            raise UserError(
                f"{name} was installed from {place['url']}, which the cluster's machines do not"
                f" have; {hint}"
            )
        found[name] = f"{name}=={one.version}"
        if vcs := place.get("vcs_info"):
            found[name] = f"{name} @ {vcs['vcs']}+{place['url']}@{vcs['commit_id']}"
    return "".join(f"{line}\n" for _, line in sorted(found.items())).encode()


def shipped(cluster: WithEnvironment) -> dict[str, bytes]:
    """Return the files from which machines make their environment; none if they have one."""
    if cluster.python is not None:
        return {}
    lock = Path(cluster.lock) if cluster.lock else None
    return {wheel_name(): wheel(), "requirements.txt": requirements(lock)}


def environment_script(folder: str, stamp: str) -> str:
    """Return a shell command that makes the environment `folder`/env from the wheel and
    requirements.txt there, once per stamp.

    uv installs the Python version in use here if a machine has another one.
    """
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    place, wheel_file = f'"$HOME"/{shlex.quote(folder)}', shlex.quote(wheel_name())
    return (
        f'cd {place} && [ "$(cat env/.made 2>/dev/null)" = {stamp} ] || {{ '
        'export PATH="$HOME/.local/bin:$PATH" && '
        "{ command -v uv >/dev/null || python3 -m pip install --user --quiet uv "
        "|| python3 -m pip install --user --quiet --break-system-packages uv; } && "
        f"uv venv --quiet --clear --python {version} env && "
        "uv pip install --quiet --python env/bin/python --requirement requirements.txt && "
        f"uv pip install --quiet --python env/bin/python --no-deps {wheel_file} && "
        f"echo {stamp} > env/.made; }}"
    )
