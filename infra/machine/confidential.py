"""Files of a project that are sent to other machines only on request: keys, passwords and tokens.

A cluster's machines have their own credentials, from the cluster file's `env`, from secrets or from
a role. Credentials in a project's folder are personal. The names are those that the programs in
question document for their files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path

from regrow.tasks.errors import UserError
from regrow.tasks.process.disk import leads_above

INCLUDE = "REGROW_INCLUDE"
"""Variable with patterns, as in PATH, of files to send anyway. `--include` sets it."""
FOLDERS = frozenset(
    (".aws", ".azure", ".docker", ".gcloud", ".gnupg", ".huggingface", ".kube", ".oci", ".ssh")
)
"""Names of folders with credentials, tokens or private keys."""
_FILES_BY_REASON = {
    "variables with secrets among them": ".env .env.* *.env .envrc",
    "passwords": ".netrc _netrc .git-credentials .pgpass .my.cnf .dockercfg .dockerconfigjson"
    " .htpasswd .vault_pass* *.kdbx",
    "tokens": ".pypirc .npmrc .yarnrc.yml .vault-token client_secret*.json token.json token.pickle",
    "keys of a cloud": ".boto .s3cfg rclone.conf credentials credentials.json credentials.csv"
    " service[-_]account*.json application_default_credentials.json kaggle.json",
    "credentials of clusters": "kubeconfig kubeconfig.* *.kubeconfig",
    "secrets": "secrets.toml secrets.yaml secrets.yml secrets.json",
    "secrets of Terraform": "*.tfstate *.tfstate.backup *.tfvars",
    "private keys": "id_rsa id_dsa id_ecdsa* id_ed25519* *.pem *.key *.ppk *.p12 *.pfx *.jks"
    " *.keystore",
}
FILES = [pattern for patterns in _FILES_BY_REASON.values() for pattern in patterns.split()]
"""Patterns of the lower-case names of confidential files."""
HARMLESS = ("*.example", "*.sample", "*.template", "*.dist", "*.pub")
NEVER = {".git", ".venv", ".regrow", "__pycache__", ".ipynb_checkpoints"} | {
    f".{tool}_cache" for tool in ("mypy", "ruff", "pytest")
}
"""Folders that are never sent, as each machine makes its own."""
_KEY = re.compile(rb"\s*-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----")
_ACCOUNT = re.compile(rb'"type"\s*:\s*"(service_account|authorized_user|external_account)"')
MOST_LINKED = 10_000
"""Most files of a folder that a link leads to."""
_TOLD = 5


def included() -> list[str]:
    """Return the patterns of files that are sent nevertheless."""
    return [pattern for pattern in os.environ.get(INCLUDE, "").split(os.pathsep) if pattern]


def confidential(folder: Path, *, packed: bool = True) -> list[str]:
    """Return what not to send of a folder, and what this user may not read: relative paths; those
    of folders end with `/`.

    `packed`: for packers, which follow links: also of the folders that links in it lead to; the
    links that lead to a folder above, which they would follow again and again; and those that lead
    to more than MOST_LINKED files. Raises UserError then for a folder that this user may not read:
    Ray's packer cannot leave it out.

    What the user includes is left out of the result, but for links to a folder above.
    """
    wanted = included()

    def asked_for(path: Path) -> bool:
        name = path.relative_to(folder).as_posix()
        return any(
            fnmatchcase(name, pattern.rstrip("/")) or fnmatchcase(path.name, pattern.rstrip("/"))
            for pattern in wanted
        )

    return sorted(
        path.relative_to(folder).as_posix() + "/" * os.path.isdir(path)
        for path in _found(folder, packed)
        if leads_above(path) or not asked_for(path)
    )


def warning(left_out: Sequence[str]) -> str:
    """Return the message about what was left out."""
    more = f" and {len(left_out) - _TOLD} more" if len(left_out) > _TOLD else ""
    return (
        "not sent, as they may hold keys or passwords, cannot be read, or lead to a folder above"
        " (never sent) or to much data:"
        f" {', '.join(left_out[:_TOLD])}{more}; --include PATTERN (or {INCLUDE}) sends them"
    )


def excludes(left_out: Sequence[str]) -> list[str]:
    """Return the left-out paths as patterns in .gitignore syntax, for Ray."""
    return ["/" + re.sub(r"([\\*?\[\]!# ])", r"\\\1", path) for path in left_out]


def _found(folder: Path, packed: bool) -> Iterator[Path]:
    for here, folders, names in os.walk(folder):
        paths = [Path(here, name) for name in folders]
        unreadable = {
            path.name
            for path in paths
            if not path.is_symlink() and not os.access(path, os.R_OK | os.X_OK)
        }
        for path in (Path(here, name) for name in sorted(unreadable)):
            if packed:
                raise UserError(
                    f"{path}: this user may not read the folder, and what lies beside the code is"
                    " sent with it; change its permissions, move it, or name a folder with nothing"
                    " but the code in the specification's `working_dir`"
                )
        private = unreadable | {
            path.name for path in paths if {path.name.lower(), _target(path).name.lower()} & FOLDERS
        }
        yield from (Path(here, name) for name in private)
        folders[:] = sorted({*folders} - private - NEVER)
        for path in (Path(here, name) for name in folders):
            if packed and path.is_symlink():
                if leads_above(path) or _has_many(path):
                    yield path
                else:
                    yield from _found(path, packed)
        yield from (path for name in names if _is_private(path := Path(here, name)))


def _has_many(folder: Path) -> bool:
    """Return whether it has more files than anybody sends: data, which would take long to read."""
    files = (name for _, _, names in os.walk(folder) for name in names)
    return next(islice(files, MOST_LINKED, None), None) is not None


def _target(path: Path) -> Path:
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def _is_private(path: Path) -> bool:
    for name in {path.name.lower(), _target(path).name.lower()}:
        if any(fnmatchcase(name, pattern) for pattern in FILES) and not any(
            fnmatchcase(name, pattern) for pattern in HARMLESS
        ):
            return True
    try:
        if not path.is_file():
            return False
        if path.stat().st_size > 32_768:  # a key is shorter
            return not os.access(path, os.R_OK)
        content = path.read_bytes()
    except OSError:  # another user's; packing would fail
        return True
    return _KEY.match(content) is not None or (
        path.suffix.lower() == ".json" and _ACCOUNT.search(content) is not None
    )
