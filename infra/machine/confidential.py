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
from pathlib import Path

INCLUDE = "REGROW_INCLUDE"
"""Variable with patterns, separated as in PATH, of files that are sent nevertheless. `--include`
sets it.
"""
FOLDERS = {
    ".aws": "credentials of AWS",
    ".azure": "tokens of az",
    ".docker": "passwords of registries",
    ".gcloud": "tokens of gcloud",
    ".gnupg": "private keys",
    ".kube": "credentials of clusters",
    ".oci": "keys of Oracle's cloud",
    ".ssh": "private keys",
    ".huggingface": "a token",
}
"""Confidential folders by name, with the reason."""
FILES = {
    ".env": "variables with secrets among them",
    ".env.*": "the same",
    "*.env": "the same",
    ".envrc": "the same",
    ".netrc": "passwords",
    "_netrc": "passwords",
    ".git-credentials": "passwords",
    ".pgpass": "passwords",
    ".my.cnf": "passwords",
    ".dockercfg": "passwords",
    ".dockerconfigjson": "passwords",
    ".htpasswd": "passwords",
    ".vault_pass*": "a password",
    ".pypirc": "a token",
    ".npmrc": "a token",
    ".yarnrc.yml": "a token",
    ".vault-token": "a token",
    ".boto": "keys of a cloud",
    ".s3cfg": "keys of a cloud",
    "rclone.conf": "keys of a cloud",
    "credentials": "keys of a cloud",
    "credentials.json": "keys of a cloud",
    "credentials.csv": "keys of a cloud",
    "service[-_]account*.json": "keys of a cloud",
    "application_default_credentials.json": "keys of a cloud",
    "client_secret*.json": "a secret of OAuth",
    "token.json": "a token of OAuth",
    "token.pickle": "a token of OAuth",
    "kaggle.json": "a key of Kaggle",
    "kubeconfig": "credentials of clusters",
    "kubeconfig.*": "the same",
    "*.kubeconfig": "the same",
    "secrets.toml": "secrets",
    "secrets.yaml": "secrets",
    "secrets.yml": "secrets",
    "secrets.json": "secrets",
    "*.tfstate": "secrets of Terraform",
    "*.tfstate.backup": "the same",
    "*.tfvars": "the same",
    "id_rsa": "a private key",
    "id_dsa": "a private key",
    "id_ecdsa*": "a private key",
    "id_ed25519*": "a private key",
    "*.pem": "a private key, or a certificate",
    "*.key": "a private key",
    "*.ppk": "a private key",
    "*.p12": "a private key",
    "*.pfx": "a private key",
    "*.jks": "private keys",
    "*.keystore": "private keys",
    "*.kdbx": "passwords",
}
"""Confidential files by patterns of their lower-case names, with the reason."""
HARMLESS = ("*.example", "*.sample", "*.template", "*.dist", "*.pub")
NEVER = frozenset(
    {
        ".git",
        ".venv",
        ".regrow",
        "__pycache__",
        ".mypy_cache",
        ".ruff_cache",
        ".pytest_cache",
        ".ipynb_checkpoints",
    }
)
"""Folders that are never sent, as each machine makes its own."""
_LOOKED_BYTES = 32_768
"""Files with more bytes are not searched for keys: a key is shorter."""
_KEY = re.compile(rb"\s*-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----")
_ACCOUNT = re.compile(rb'"type"\s*:\s*"(service_account|authorized_user|external_account)"')
_TOLD = 5


def included() -> list[str]:
    """Return the patterns of files that are sent nevertheless."""
    return [pattern for pattern in os.environ.get(INCLUDE, "").split(os.pathsep) if pattern]


def confidential(folder: Path) -> list[str]:
    """Return what is not to be sent of a folder: paths relative to it; those of folders end with
    `/`.
    """
    wanted = included()

    def asked_for(path: Path) -> bool:
        name = path.relative_to(folder).as_posix()
        return any(
            fnmatchcase(name, pattern.rstrip("/")) or fnmatchcase(path.name, pattern.rstrip("/"))
            for pattern in wanted
        )

    return sorted(
        path.relative_to(folder).as_posix() + "/" * path.is_dir()
        for path in _found(folder)
        if not asked_for(path)
    )


def told(left_out: Sequence[str]) -> str:
    """Return the message about what was left out."""
    more = f" and {len(left_out) - _TOLD} more" if len(left_out) > _TOLD else ""
    return (
        f"not sent, as they may hold keys or passwords: {', '.join(left_out[:_TOLD])}{more}; "
        f"--include PATTERN (or {INCLUDE}) sends them"
    )


def excludes(left_out: Sequence[str]) -> list[str]:
    """Return the left-out paths as patterns in .gitignore syntax, for Ray."""
    return ["/" + re.sub(r"([\\*?\[\]!# ])", r"\\\1", path) for path in left_out]


def _found(folder: Path) -> Iterator[Path]:
    for here, folders, names in os.walk(folder):
        private = {
            name
            for name in folders
            if {name.lower(), _target(Path(here, name)).name.lower()} & FOLDERS.keys()
        }
        yield from (Path(here, name) for name in private)
        folders[:] = sorted({*folders} - private - NEVER)
        yield from (path for name in names if _is_private(path := Path(here, name)))


def _target(path: Path) -> Path:
    """Return where a link leads, or the path itself."""
    return path.resolve() if path.is_symlink() else path


def _is_private(path: Path) -> bool:
    for name in {path.name.lower(), _target(path).name.lower()}:
        if any(fnmatchcase(name, pattern) for pattern in FILES) and not any(
            fnmatchcase(name, pattern) for pattern in HARMLESS
        ):
            return True
    try:
        if not path.is_file() or path.stat().st_size > _LOOKED_BYTES:
            return False
        content = path.read_bytes()
    except OSError:  # the code that packs the file reports it
        return False
    return _KEY.match(content) is not None or (
        path.suffix.lower() == ".json" and _ACCOUNT.search(content) is not None
    )
