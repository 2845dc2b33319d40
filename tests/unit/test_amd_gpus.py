"""AMD's GPUs as Slurm names them, and as Ray reads them."""

from __future__ import annotations

import os

import pytest
from ray._private.accelerators.amd_gpu import AMDGPUAcceleratorManager

from regrow.infra.machine import gpus


@pytest.mark.parametrize(
    ("told", "read"),
    [
        ({gpus.ROCR: "2,3"}, ["2", "3"]),
        ({gpus.ROCR: "2,3", gpus.HIP: "1"}, ["1"]),
        ({}, None),
    ],
    ids=["by Slurm", "by the user among those", "not"],
)
def test_ray_finds_the_gpus_that_slurm_names(
    told: dict[str, str], read: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (gpus.ROCR, gpus.HIP):
        monkeypatch.setenv(name, told.get(name, ""))  # which it puts back
        if name not in told:
            monkeypatch.delenv(name)
    gpus.as_ray_reads(os.environ)
    assert AMDGPUAcceleratorManager.get_current_process_visible_accelerator_ids() == read
