"""A language model with Hugging Face's Trainer, on one worker or several; a step is one epoch.

It shows the machinery, not a good model: a GPT-2 of some 30,000 random weights learns the letters
of the descriptions that come with scikit-learn's data sets. Nothing is downloaded.
"""

from __future__ import annotations

import shutil
import tempfile
from functools import cache

import torch
from sklearn import datasets
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

import regrow as rg
from regrow.integrations.transformers import Report, restored

LENGTH = 64


def train(trial: rg.Trial) -> None:
    """Reports the loss on the last tenth of the text after each epoch."""
    torch.set_num_threads(1)
    set_seed(trial.seed)
    samples = text()
    config = GPT2Config(
        vocab_size=128,
        n_positions=LENGTH,
        n_embd=32,
        n_layer=2,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
    )
    output = tempfile.mkdtemp(prefix="trainer-")
    arguments = TrainingArguments(
        output_dir=output,
        num_train_epochs=trial.max_steps,
        learning_rate=trial.config["lr"],
        seed=trial.seed,
        per_device_train_batch_size=16,
        eval_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=1,
        logging_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    held_out = len(samples) // 10
    trainer = Trainer(
        GPT2LMHeadModel(config),
        arguments,
        train_dataset=samples[:-held_out],
        eval_dataset=samples[-held_out:],
        callbacks=[Report(trial, metric="eval_loss")],
    )
    try:
        trainer.train(resume_from_checkpoint=restored(trial))
    finally:
        shutil.rmtree(output, ignore_errors=True)


@cache
def text() -> list[dict[str, torch.Tensor]]:
    """The descriptions, cut into pieces of LENGTH letters."""
    loaders = (
        datasets.load_breast_cancer,
        datasets.load_diabetes,
        datasets.load_digits,
        datasets.load_iris,
        datasets.load_wine,
    )
    letters = "".join(load()["DESCR"] for load in loaders).encode("ascii", errors="replace")
    pieces = torch.tensor(list(letters[: len(letters) // LENGTH * LENGTH])).reshape(-1, LENGTH)
    return [{"input_ids": piece, "labels": piece} for piece in pieces]
