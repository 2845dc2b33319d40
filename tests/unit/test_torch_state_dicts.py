"""The best model as one file that plain PyTorch loads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import regrow as rg
from regrow.infra.stores.local import LocalStore
from regrow.search.events import Saved
from regrow.tasks.checkpoint.saving import save
from tests.unit.exported import regrow
from tests.unit.kept import Kept

torch = pytest.importorskip("torch")


def kept(root: Path, snapshot: Path) -> None:
    """Writes an experiment with one trial, whose checkpoint is the snapshot."""
    experiment = Kept(LocalStore(root / "kept"))
    trial = experiment.trial()
    step = experiment.report(trial, 1.0)
    made = save(experiment.store, snapshot, trial=trial, attempt=1, step=step)
    experiment.say(
        Saved(t=0.0, trial=trial, attempt=1, step=step, manifest=made.manifest, size=made.size)
    )


def parts() -> dict[str, Any]:
    model = torch.nn.Sequential(
        torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1)
    )
    groups = [{"params": model[2].parameters(), "lr": 0.5}, {"params": model[0].parameters()}]
    optimizer = torch.optim.Adam(groups, lr=0.1)
    return {
        "model": model,
        "optimizer": optimizer,
        "schedule": torch.optim.lr_scheduler.StepLR(optimizer, 2),
    }


def step(trained: dict[str, Any]) -> list[float]:
    """One step of a training, and the parameters after it."""
    torch.manual_seed(1)
    trained["model"](torch.randn(8, 3)).square().sum().backward()
    trained["optimizer"].step()
    trained["optimizer"].zero_grad()
    trained["schedule"].step()
    return [float(one) for p in trained["model"].parameters() for one in p.detach().flatten()]


def test_best_save_writes_what_plain_pytorch_continues_from(tmp_path: Path) -> None:
    torch.manual_seed(0)
    trained = parts()
    step(trained)
    rg.torch.State(**trained, chance=torch.Generator()).save(tmp_path / "snapshot")
    kept(tmp_path / "state", tmp_path / "snapshot")
    done = regrow("best", "kept", "--save", tmp_path / "best", "--state", tmp_path / "state")
    assert done.exit_code == 0, done.output
    file = tmp_path / "best" / "state_dicts.pt"
    assert f"for torch.load: {file} (model, optimizer, schedule)" in done.output

    found = torch.load(file, weights_only=True)
    again = parts()
    for name, part in again.items():
        part.load_state_dict(found[name])
    assert step(again) == step(trained)
    assert found["model"].keys() == trained["model"].state_dict().keys()


def test_a_checkpoint_of_another_kind_is_saved_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "snapshot").mkdir()
    (tmp_path / "snapshot" / ".metadata").write_bytes(b"cos\nsystem\n(S'exit 1'\ntR.")
    kept(tmp_path / "state", tmp_path / "snapshot")
    done = regrow("best", "kept", "--save", tmp_path / "best", "--state", tmp_path / "state")
    assert done.exit_code == 0, done.output
    assert [file.name for file in (tmp_path / "best").iterdir()] == [".metadata"]
    assert "state_dicts.pt is not written: rg.torch.State: " in done.output


def test_a_checkpoint_of_another_version_is_neither_loaded_nor_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as later:
        later.setattr("regrow.integrations.torch.state.VERSION", 2)
        rg.torch.State(**parts()).save(tmp_path / "later")
    with pytest.raises(rg.UserError, match="of version 2; this regrow reads 1"):
        rg.torch.State(**parts()).load(tmp_path / "later")
    with pytest.raises(rg.UserError, match="of version 2; this regrow reads 1"):
        rg.torch.export(tmp_path / "later", tmp_path / "model.pt")
