"""Loggers of training frameworks, which call `wandb`: with the stand-in, their logs are reports."""

from __future__ import annotations

import importlib.util

import pytest

from regrow.search.events import Reported
from tests.unit.programs import Programs


@pytest.fixture(autouse=True)
def _sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGROW_WANDB_PACKAGE", "standin")


def test_what_frameworks_import_of_wandb_is_there(programs: Programs) -> None:
    office = programs.office(
        """
        import importlib.metadata, importlib.util
        import wandb
        from wandb import Artifact
        from wandb.sdk.lib import RunDisabled
        from wandb.sdk.lib.config_util import ConfigError
        from wandb.wandb_run import Run
        assert importlib.metadata.version("wandb").startswith("0.")
        assert importlib.util.find_spec("wandb") is not None and hasattr(wandb, "run")
        run = wandb.init(resume="allow", id="x", anonymous=None)
        assert isinstance(run, (Run, RunDisabled))
        run._label(repo="a_framework")
        run.define_metric("*", step_metric="trainer/global_step", step_sync=True)
        run.config.update({"a": 1}, allow_val_change=True)
        try:
            import wandb.sdk.other
        except ModuleNotFoundError:
            wandb.log({"score": 1.0})
    """
    )
    ended = programs.attempt(office).ended
    assert ended.outcome == "done", ended.message


def needs(module: str) -> pytest.MarkDecorator:
    """Skips a test without a framework."""
    there = importlib.util.find_spec(module) is not None
    return pytest.mark.skipif(not there, reason=f"{module} is not installed")


def scores(programs: Programs, source: str, metric: str) -> list[float]:
    """The values that a program's framework logged."""
    office = programs.office(source, metric=metric, max_steps=None)
    ended = programs.attempt(office).ended
    assert ended.outcome == "done", ended.message
    rows = [r for event in office.events if isinstance(event, Reported) for r in event.rows]
    return [value for row in rows if (value := row.metrics.get(metric)) is not None]


@needs("pytorch_lightning")
def test_lightnings_logger_reports(programs: Programs) -> None:
    found = scores(
        programs,
        """
        import torch, pytorch_lightning as pl
        from pytorch_lightning.loggers import WandbLogger
        class Model(pl.LightningModule):
            def __init__(self):
                super().__init__()
                self.save_hyperparameters()
                self.layer = torch.nn.Linear(1, 1)
            def training_step(self, batch, _):
                loss = self.layer(batch[0]).pow(2).mean()
                self.log("loss", loss, on_step=False, on_epoch=True)
                return loss
            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), lr=0.1)
        data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(4, 1)))
        trainer = pl.Trainer(max_epochs=3, logger=WandbLogger(project="p", log_model=True),
                             accelerator="cpu", enable_progress_bar=False)
        trainer.fit(Model(), data)
    """,
        "loss",
    )
    assert len(found) >= 3


@needs("transformers")
def test_the_trainer_of_hugging_face_reports(programs: Programs) -> None:
    found = scores(
        programs,
        """
        import torch
        from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainingArguments
        class Net(PreTrainedModel):
            config_class = PretrainedConfig
            def __init__(self, config):
                super().__init__(config)
                self.layer = torch.nn.Linear(1, 1)
            def forward(self, x, labels=None):
                out = self.layer(x)
                return {"loss": (out - labels).pow(2).mean(), "logits": out}
        data = [{"x": torch.ones(1), "labels": torch.ones(1)}] * 8
        args = TrainingArguments("out", report_to=["wandb"], logging_steps=1, num_train_epochs=2,
                                 per_device_train_batch_size=4, save_strategy="no", use_cpu=True,
                                 disable_tqdm=True)
        Trainer(Net(PretrainedConfig()), args, train_dataset=data).train()
    """,
        "train/loss",
    )
    assert len(found) >= 4


@needs("keras")
def test_the_callbacks_for_keras_report(
    programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    found = scores(
        programs,
        """
        import keras, numpy as np, wandb
        from wandb.integration.keras import WandbMetricsLogger, WandbModelCheckpoint
        wandb.init(config={"epochs": 3})
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        x = np.ones((8, 1))
        model.fit(x, x, epochs=3, verbose=0, callbacks=[
            WandbMetricsLogger(), WandbModelCheckpoint("model.keras", monitor="loss", save_best_only=True)])
        wandb.finish()
    """,
        "epoch/loss",
    )
    assert len(found) >= 3
