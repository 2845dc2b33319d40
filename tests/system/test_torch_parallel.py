"""`rg.torch` on real groups of processes: a training that was saved continues with the same losses on
any number of workers.
"""

from __future__ import annotations

import errno
import json
import pickle
import random
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import regrow as rg
from regrow import UserError
from tests.conftest import disk_of

torch = pytest.importorskip("torch", reason="PyTorch is not installed; `make test` installs it")
from torch import nn  # noqa: E402 - after it is known to be there

from tests.system import parallel, torch_cases  # noqa: E402 - the same

NO_MODEL: Any = "net"
MODES = ["ddp", "fsdp", "ddp-bf16", "fsdp-bf16"]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "TORCHELASTIC_RUN_ID",
    ):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def groups() -> Iterator[None]:
    with parallel.server():
        yield


@pytest.fixture(scope="module")
def trained(
    groups: None, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, list[float]], Path]:
    """The losses of 20 steps on two workers, and a folder with the checkpoint of step 10, for each
    mode.
    """
    folder = tmp_path_factory.mktemp("trained")
    first, second = parallel.run(2, parallel.trainings, MODES, 20, None, folder / "parts")
    assert first == second
    for mode in MODES:
        files = parallel.joined(folder / "parts" / mode, folder / "whole" / mode)
        assert files == [".metadata", "__0_0.distcp", "__1_0.distcp"]
    return first, folder / "whole"


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_training_of_two_workers_goes_on_with_the_same_losses_on(size: int, trained: Any) -> None:
    whole, folder = trained
    found = parallel.run(size, parallel.trainings, MODES, 20, folder, None)
    assert found == [found[0]] * size
    for mode in MODES:
        # In bfloat16 a batch of 8 and one of 12 give gradients that are rounded elsewhere.
        tolerance = 2e-3 if "bf16" in mode and size == 3 else 0.0 if size == 2 else 1e-6
        assert found[0][mode] == pytest.approx(whole[mode][10:], abs=tolerance), mode
        assert whole[mode][-1] < whole[mode][0] / 2, "it learned nothing"


def test_sharded_or_not_and_with_autocast_it_is_the_same_training(trained: Any) -> None:
    whole, _ = trained
    assert whole["fsdp"] == pytest.approx(whole["ddp"], abs=1e-6)
    assert whole["ddp-bf16"] == pytest.approx(whole["ddp"], abs=0.05)
    assert whole["ddp-bf16"] != pytest.approx(whole["ddp"], abs=1e-6), (
        "autocast computed in 32 bits"
    )


def test_what_four_workers_save_one_and_eight_load(groups: None, tmp_path: Path) -> None:
    modes = ["ddp", "fsdp"]
    whole = parallel.run(4, parallel.trainings, modes, 6, None, tmp_path / "parts", 4)[0]
    for mode in modes:
        assert len(parallel.joined(tmp_path / "parts" / mode, tmp_path / "whole" / mode)) == 5
    for size in (1, 8):
        found = parallel.run(size, parallel.trainings, modes, 6, tmp_path / "whole", None)[0]
        for mode in modes:
            assert found[mode] == pytest.approx(whole[mode][4:], abs=1e-6), (mode, size)


def test_a_replicated_checkpoint_loads_into_shards_and_a_sharded_one_into_replicas(
    trained: Any,
) -> None:
    whole, folder = trained
    for mode, other in (("ddp", "fsdp"), ("fsdp", "ddp")):
        found = parallel.run(2, torch_cases.of_another_kind, mode, folder / other)
        assert found[0] == pytest.approx(whole[mode][10:], abs=1e-6)


def test_everything_that_chance_and_time_decide_goes_on_where_it_was(
    groups: None, tmp_path: Path
) -> None:
    """Dropout, running means, a tied weight, a scaler, schedules, each rank's own generators; two
    processes, exactly.
    """
    whole = parallel.run(2, torch_cases.full, None, tmp_path / "parts")
    parallel.joined(tmp_path / "parts", tmp_path / "whole")
    again = parallel.run(2, torch_cases.full, tmp_path / "whole", None)
    assert [rank[3:] for rank in whole] == again
    assert whole[0][0]["drawn"] != whole[1][0]["drawn"], "each rank has generators of its own"
    assert whole[0][0]["mean"] == whole[1][0]["mean"]
    (alone,) = parallel.run(1, torch_cases.full, tmp_path / "whole", None)
    assert alone[0]["mean"] == whole[0][3]["mean"], "running means are those of rank 0"
    drawn = [
        rank[0]["drawn"] for rank in parallel.run(3, torch_cases.full, tmp_path / "whole", None)
    ]
    assert drawn[:2] == [rank[0]["drawn"] for rank in again]
    assert drawn[2] not in drawn[:2]
    assert drawn[2]["shared"] == drawn[0]["shared"], (
        "what all ranks had alike, the new one has, too"
    )


def test_a_group_is_made_for_each_attempt_and_faults_are_told_to_all(
    groups: None, tmp_path: Path
) -> None:
    first, second = parallel.run(2, torch_cases.group, tmp_path, parallel.free_port())
    assert (
        first
        == second
        == {
            "again": 2,
            "threads": 1,
            "left": False,
            "prepared twice": "UserError: rg.torch.prepare: this model is a DistributedDataParallel already; prepare it once",
            "frozen": "Linear",
            "shared": 1,
            "no folder": f"NotADirectoryError: [Errno 20] Not a directory (rank 1): '{tmp_path / 'file' / '1'}'",
            "not loadable": "UserError: rg.torch.State: the state_dict of 'odd' could not be loaded again: it holds more than tensors,"
            " numbers, text, lists and maps (pathlib.PosixPath)",
            "fsdp1": "UserError: rg.torch.State: 'model' is sharded by FSDP1; use FSDP2: rg.torch.prepare(model, fsdp=True)",
            "units": ["0", "2.0", "2.1", ""],
            "linear": ["head", "body.0", "body.1.inner", ""],
        }
    )


SCRIPT = """
import json, os, sys
import torch
import regrow as rg
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader

torch.manual_seed(0)
model = rg.torch.prepare(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
numbers = torch.randn(32, 4)
state = rg.torch.State(model=model, optimizer=optimizer)
for epoch in range(3):
    for parts in rg.torch.shard(DataLoader(numbers, batch_size=4, shuffle=True), epoch=epoch, workers=2):
        optimizer.zero_grad()
        rg.torch.accumulate(model, parts, lambda part: mse_loss(model(part), part.sum(1, keepdim=True)))
        optimizer.step()
state.save(sys.argv[1])
line = json.dumps([parameter.tolist() for parameter in model.parameters()]) + os.linesep
sys.stdout.write(line)  # `print` writes the end of the line separately, and two ranks share the pipe
sys.stdout.flush()
if "RANK" in os.environ:  # PyTorch 2.13 aborts now and then as a process ends on a busy machine, in a script of its own alone as well
    os._exit(0)
"""


def test_a_script_runs_under_torchrun_and_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    command: list[str | Path] = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        script,
        tmp_path / "two",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    first, second = map(json.loads, done.stdout.splitlines())
    assert first == second
    monkeypatch.setattr(sys, "argv", [script, tmp_path / "one"])
    runpy.run_path(str(script))
    for one, other in zip(first, json.loads(capsys.readouterr().out), strict=True):
        torch.testing.assert_close(torch.tensor(one), torch.tensor(other))
    for saved_by in ("one", "two"):
        model = nn.Linear(4, 1)
        rg.torch.State(model=model).load(tmp_path / saved_by)
        torch.testing.assert_close(model.weight.tolist(), first[0])


def saved(folder: Path) -> tuple[Any, Any]:
    model = parallel.net()
    optimizer = torch.optim.AdamW(model.parameters())
    rg.torch.State(model=model, optimizer=optimizer).save(folder)
    return model, optimizer


def test_saving_changes_nothing_and_what_has_no_state_yet_has_none_afterwards(
    tmp_path: Path,
) -> None:
    model = parallel.net()
    before = [parameter._version for parameter in model.parameters()]
    optimizer = torch.optim.AdamW(model.parameters())
    rg.torch.State(model=model, optimizer=optimizer).save(tmp_path)
    assert not optimizer.state
    assert [parameter._version for parameter in model.parameters()] == before, (
        "a step was taken, to see what state there would be"
    )
    assert all(parameter.grad is None for parameter in model.parameters())
    used = torch.optim.AdamW(model.parameters())
    model[2](model[1](model[0](torch.ones(1, 64)))).sum().backward()
    used.step()
    rg.torch.State(model=model, optimizer=used).load(tmp_path)
    assert not used.state


def test_parameters_that_were_never_used_numbers_of_numpys_and_optimizers_of_several_models_are_saved(
    tmp_path: Path,
) -> None:
    def parts(seed: int) -> dict[str, Any]:
        first, second = torch.compile(parallel.net(seed)), nn.Linear(2, 2)
        optimizer = torch.optim.Adam([*second.parameters(), *first.parameters()], lr=0.5)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        return {"first": first, "second": second, "optimizer": optimizer, "plateau": plateau}

    old, new = parts(0), parts(1)
    old["second"](torch.ones(1, 2)).sum().backward()
    old["optimizer"].step()
    old["plateau"].step(np.float64(0.25))
    old["optimizer"].param_groups[0]["lr"] = 0.125
    rg.torch.State(**old).save(tmp_path)
    rg.torch.State(**new).load(tmp_path)
    for one, other in zip(
        old["optimizer"].state_dict()["state"].items(),
        new["optimizer"].state_dict()["state"].items(),
        strict=True,
    ):
        torch.testing.assert_close(one, other)
    assert len(new["optimizer"].state) == 2, "of the second model alone"
    assert new["optimizer"].param_groups[0]["lr"] == 0.125
    assert new["plateau"].best == 0.25
    torch.testing.assert_close(new["first"].state_dict(), old["first"].state_dict())
    alone = parallel.net(2)
    rg.torch.State(first=alone).load(tmp_path)
    torch.testing.assert_close(
        alone.state_dict(),
        {name.removeprefix("_orig_mod."): one for name, one in old["first"].state_dict().items()},
    )


def test_generators_of_ones_own_are_saved(tmp_path: Path) -> None:
    own = {
        "a": torch.Generator(),
        "b": np.random.default_rng(3),
        "c": random.Random(4),
        "d": np.random.Generator(np.random.Philox(5)),
    }
    state = rg.torch.State(**own)
    state.save(tmp_path)

    def draw() -> list[float]:
        a = torch.rand(1, generator=own["a"]).item()
        return [
            a,
            own["b"].random(),
            own["c"].random(),
            own["d"].random(),
            torch.rand(1).item(),
            random.random(),
            np.random.rand(),  # noqa: NPY002
        ]

    before = draw()
    assert draw() != before
    state.load(tmp_path)
    assert draw() == before


class Holder:
    """Has something as its state."""

    def __init__(self, what: object) -> None:
        self.what = what

    def state_dict(self) -> dict[str, Any]:
        return {"what": self.what}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.what = state["what"]


class Evil:
    """Would make a file if it was unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.file,)


def test_nothing_in_a_checkpoint_is_run(tmp_path: Path) -> None:
    model, _ = saved(tmp_path)
    made, index = tmp_path / "made", tmp_path / ".metadata"
    whole = index.read_bytes()
    for written, said in (
        (pickle.dumps(Evil(made)), "it names pathlib.Path"),
        (whole[:99], "truncated"),
        (b"N.", "is no index"),
    ):
        index.write_bytes(written)
        with pytest.raises(UserError, match=said):
            rg.torch.State(model=model).load(tmp_path)
    index.write_bytes(whole)
    state = rg.torch.State(part=Holder(Evil(made)))
    state._checked = True
    state.save(tmp_path / "evil")
    with pytest.raises(UserError, match="cannot be read: UnpicklingError"):
        state.load(tmp_path / "evil")
    assert not made.exists()


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        (lambda model: {"other": model}, "has no other; it has model, optimizer"),
        (
            lambda model: {"model": nn.Linear(64, 128)},
            "has no model.weight, model.bias; the model is another one",
        ),
        (
            lambda model: {"model": model[:2]},
            "the model has no model.2.bias, model.2.weight, which the checkpoint",
        ),
        (
            lambda model: {"model": nn.Sequential(nn.Linear(64, 99), nn.ReLU(), nn.Linear(99, 10))},
            "model.0.weight is (99, 64) here, and (128, 64) in the checkpoint",
        ),
        (
            lambda model: {"model": model, "optimizer": torch.optim.AdamW(model[0].parameters())},
            "'optimizer' has other parameters, or groups of them, than when it was saved",
        ),
    ],
)
def test_what_does_not_fit_is_told_in_one_line_and_changes_nothing(
    parts: Any, said: str, tmp_path: Path
) -> None:
    saved(tmp_path)
    model = parallel.net(seed=1)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(UserError) as caught:
        rg.torch.State(**parts(model)).load(tmp_path)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    torch.testing.assert_close(model.state_dict(), before)


def test_a_checkpoint_that_is_none_or_lacks_a_ranks_files_is_told_in_one_line(
    tmp_path: Path,
) -> None:
    model = nn.Linear(2, 2)
    state = rg.torch.State(model=model)
    with pytest.raises(
        UserError, match=r"there is no checkpoint of rg.torch.State in .*: .metadata is missing"
    ):
        state.load(tmp_path)
    state.save(tmp_path)
    data = tmp_path / "__0_0.distcp"
    data.write_bytes(data.read_bytes()[:-100])
    with pytest.raises(UserError, match="cannot be read: "):
        state.load(tmp_path)
    data.unlink()
    with pytest.raises(UserError, match=r"is not whole: __0_0.distcp is missing"):
        state.load(tmp_path)


def test_a_full_disk_is_told_as_one(tmp_path: Path) -> None:
    # 1.4 MB: PyTorch would speak of an unexpected position
    state = rg.torch.State(model=nn.Linear(600, 600))
    with (
        disk_of(1, tmp_path / "small") as small,
        pytest.raises(OSError, match=r"No space left on device \(rank 0\)") as caught,
    ):
        state.save(small)
    assert caught.value.errno == errno.ENOSPC


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda: rg.torch.prepare(NO_MODEL), "rg.torch.prepare takes a model (nn.Module), not str"),
        (
            lambda: rg.torch.prepare(nn.Linear(1, 1), find=True),
            "DistributedDataParallel has no option 'find'; it has ",
        ),
        (
            lambda: rg.torch.prepare(nn.Linear(1, 1), fsdp=True, find=True),
            "fully_shard has no option 'find'; it has mesh, ",
        ),
        (
            lambda: rg.torch.prepare(nn.Linear(1, 1, device="meta")),
            'the model is on the device "meta", without memory',
        ),
        (rg.torch.State, "name what to save, such as State(model=model"),
        (lambda: rg.torch.State(x=3), "'x' is a int, which has no state_dict and load_state_dict"),
        (lambda: rg.torch.State(**{"a.b": 3}), "'a.b' is no name"),
        (
            lambda: rg.torch.State(o=torch.optim.SGD(nn.Linear(1, 1).parameters())),
            "'o' has parameters of no model that is given",
        ),
    ],
)
def test_a_mistake_is_told_in_one_line(function: Any, said: str) -> None:
    with pytest.raises(UserError) as caught:
        function()
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        (
            {"WORLD_SIZE": "2"},
            "RANK is not set; WORLD_SIZE, RANK, MASTER_ADDR and MASTER_PORT belong together",
        ),
        ({"WORLD_SIZE": "2", "RANK": "2"}, "RANK is 2, WORLD_SIZE 2; ranks count from 0 to 1"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE is 'two', not a number"),
        (
            {"WORLD_SIZE": "2", "RANK": "1"},
            "rank 1 of 2 could not join the others at None:None (MASTER_ADDR, MASTER_PORT): ",
        ),
    ],
)
def test_variables_that_make_no_group_are_told_in_one_line(
    variables: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError) as caught:
        rg.torch.prepare(nn.Linear(1, 1))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_one_worker_has_its_model_as_it_is_and_no_group() -> None:
    model = nn.Linear(1, 1)
    assert rg.torch.prepare(model) is model
    assert rg.torch.prepare(model, fsdp=True) is model
    assert not torch.distributed.is_initialized()
    assert (
        rg.torch.device() == torch.device("cuda", 0)
        if torch.cuda.is_available()
        else torch.device("cpu")
    )


def test_torch_is_imported_when_it_is_used_and_its_absence_told_in_one_line() -> None:
    code = (
        "import sys, regrow as rg\nassert 'torch' not in sys.modules\nimport importlib.util as u\nfound = u.find_spec\n"
        "u.find_spec = lambda name: None if name == 'torch' else found(name)\n"
        "try: rg.torch\nexcept rg.UserError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (
        done.stdout.strip()
        == "rg.torch needs PyTorch, which is not installed; pip install 'regrow[torch]'"
    ), done.stderr
