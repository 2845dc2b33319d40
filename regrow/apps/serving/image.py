"""`regrow export NAME --image FOLDER`: writes what a container needs to serve the best model."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

from regrow.apps.serving.child import tried
from regrow.apps.serving.choosing import candidates
from regrow.apps.serving.image_server import CODE, KEPT, MODEL, ExportManifest, setup_of
from regrow.apps.serving.messages import Chosen, Refused, Setup
from regrow.apps.serving.needs import ImageNeeds
from regrow.infra.clusters import shipping
from regrow.infra.log.reading import replayed
from regrow.infra.state.places import Places
from regrow.tasks.checkpoint.saving import restore
from regrow.tasks.errors import UserCodeError, UserError

TRY_SECONDS = 600.0
"""Time limit for loading the model and answering its example."""
DOCKERFILE = """\
# Made by `regrow export --image`. Build and run it:
#   docker build -t {name} .
#   docker run -p 8000:8000 -e REGROW_SERVE_TOKEN=$(openssl rand -hex 16) {name}
FROM python:{python}-slim
WORKDIR /served
COPY requirements.txt *.whl ./
# regrow itself without its dependencies: those that answering takes are in requirements.txt.
RUN pip install --no-cache-dir -r requirements.txt && pip install --no-cache-dir --no-deps {wheel}
COPY {kept} ./
COPY {model} ./{model}
COPY {code} ./{code}
RUN useradd --create-home served
USER served
EXPOSE 8000
HEALTHCHECK CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/readyz')"]
ENTRYPOINT ["python", "-m", "regrow.apps.serving.image_server", "/served", "--host", "0.0.0.0"]
"""


def write(places: Places, name: str, *, model: str, trial: int | None, folder: Path) -> Chosen:
    """Write the folder, which must be missing or empty; return the checkpoint that it serves.

    The class is loaded and tried from the written files. Raises UserError, and UserCodeError if the
    class raises; then the folder is not created.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(
            f"--image: {folder} is there already; name a folder that is not, or remove it"
        )
    history = replayed(places.known(name), name).history
    if trial is not None and trial >= len(history.trials):
        raise UserError(f"--trial: {name!r} has no trial {trial} (it has {len(history.trials)})")
    best = candidates(history, trial)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{folder.name[:50]}-", dir=folder.parent))
    except OSError as error:
        raise _refused(folder, error) from error
    try:
        only_class = Setup(experiment=name, model=model, code=str(Path.cwd()))
        if (wrong := tried(only_class, None, None, TRY_SECONDS)) is not None:
            raise wrong.error()
        restored = restore(places.store(name), [one.manifest for one in best], made / MODEL)
        found = next((one for one in best if one.manifest == restored.manifest), None)
        if found is None:
            raise UserError(f"--image: no checkpoint of {name!r} is kept that could be served")
        chosen = found.chosen(history, "main", MODEL)
        kept = ExportManifest(experiment=name, model=model, chosen=chosen)
        (made / KEPT).write_bytes(msgspec.json.format(msgspec.json.encode(kept)))
        _write_code(made, _needed(made, Path.cwd()), Path.cwd())
        _try(made, kept)
        (made / "Dockerfile").write_text(
            DOCKERFILE.format(
                name=name.lower(),
                python=f"{sys.version_info.major}.{sys.version_info.minor}",
                wheel=shipping.wheel_name(),
                kept=KEPT,
                model=MODEL,
                code=CODE,
            )
        )
        (made / shipping.wheel_name()).write_bytes(shipping.wheel())
        made.chmod(0o755)
        made.replace(folder)
    except OSError as error:
        raise _refused(folder, error) from error
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return chosen


def _refused(folder: Path, error: OSError) -> UserError:
    why = error.strerror or error
    return UserError(f"--image: {folder} cannot be written ({why}); name another folder")


def _needed(made: Path, code: Path) -> ImageNeeds:
    """Find what the user's class imports, in a process that loads it from this folder."""
    with tempfile.TemporaryDirectory() as folder:
        needs_file = Path(folder) / "needs.json"
        places = map(str, (made, code, needs_file))
        typed = [sys.executable, "-P", "-m", "regrow.apps.serving.needs", *places]
        try:
            done = subprocess.run(
                typed,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=TRY_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise UserError(
                f"--model: the class did not load the checkpoint within {TRY_SECONDS:g} s"
            ) from None
        if done.returncode == 0 and needs_file.exists():
            return msgspec.json.decode(needs_file.read_bytes(), type=ImageNeeds)
    last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
    raise UserCodeError(f"--model: the class does not load the checkpoint: {last[0]}", done.stderr)


def _write_code(made: Path, needed: ImageNeeds, code: Path) -> None:
    for file in needed.files:
        target = made / CODE / file
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(code / file, target)
    # A build for one kind of machine ("+cpu") is on no index.
    pinned = [
        f"{name}=={version.partition('+')[0]}" for name, version in needed.distributions.items()
    ]
    (made / "requirements.txt").write_text("".join(f"{line}\n" for line in pinned))


def _try(made: Path, kept: ExportManifest) -> None:
    """Try the class and the checkpoint using the written files only."""
    chosen = msgspec.structs.replace(kept.chosen, folder=str(made / MODEL))
    wrong = tried(setup_of(kept, made), chosen, None, TRY_SECONDS)
    if wrong is not None:
        what = "the exported class" if isinstance(wrong, Refused) else "--model"
        raise wrong.error(f"{what}: ")
