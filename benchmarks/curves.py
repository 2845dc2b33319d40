"""Tables of real learning curves, for simulated experiments: what any configuration would have
reported, and when.

    python benchmarks/curves.py   # trains all 3,000 models again, about half an hour
    python benchmarks/curves.py --only wine --out /tmp/curves

Small tasks on data that ship with scikit-learn: models of scikit-learn's, and networks in PyTorch
(`networks.py`). Each trains 300 configurations, the first points of a scrambled Sobol sequence in
the unit cube of its space, for 27 steps or as many as it says, and writes two files:

* `<task>.yaml`: the experiment as `regrow` reads it, with the space and the metric
* `<task>.csv.gz`: one row for each configuration and step: the parameters by name, `step` from 1,
  `score` on examples that the model was not trained on, and `seconds`, the mean CPU time of a
  step's training and scoring in one thread: unlike wall-clock time it hardly depends on what else
  the machine is doing

The scores follow from the seeds and the versions of NumPy, scikit-learn and PyTorch; the seconds
never come out the same twice. A model that overflows scores like one that knows nothing from then
on.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

# before NumPy is loaded
os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import numpy as np
import numpy.typing as npt
import yaml
from scipy.stats import qmc
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine
from sklearn.ensemble import GradientBoostingClassifier, GradientBoostingRegressor
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import hinge_loss, log_loss, root_mean_squared_error
from sklearn.model_selection import KFold, StratifiedKFold, train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import StandardScaler

from benchmarks import networks
from regrow.search.space import Space

if TYPE_CHECKING:
    import regrow as rg

Array = npt.NDArray[Any]
Config = Mapping[str, Any]
Split = tuple[Array, Array, Array, Array]
"""Examples to train on, examples to score on, then the targets of both."""

FOLDER = Path(__file__).parent / "curves"
CONFIGURATIONS = 300
STEPS = 27
SEED = 2026
WORST_LOSS = 5.0
"""A log loss is cut off here: one over-confident mistake would make it any number."""


def digits_curve(config: Config) -> Iterator[float]:
    """A network of one layer reads digits; a step is one pass."""
    train_x, valid_x, train_y, valid_y = _digits()
    model = MLPClassifier(
        [config["hidden"]],
        solver="adam",
        activation=config["activation"],
        learning_rate_init=config["lr"],
        alpha=config["alpha"],
        batch_size=config["batch"],
        beta_1=config["beta1"],
        random_state=SEED,
    )
    while True:
        model.partial_fit(train_x, train_y, classes=range(10))
        yield float(model.score(valid_x, valid_y))


def linear_curve(config: Config) -> Iterator[float]:
    """A linear model reads digits; a step is a third of a pass."""
    train_x, valid_x, train_y, valid_y = _digits()
    model = SGDClassifier(
        loss=config["loss"],
        penalty="elasticnet",
        alpha=config["alpha"],
        l1_ratio=config["l1_ratio"],
        learning_rate=config["decay"],
        eta0=config["eta0"],
        power_t=config["power"],
        random_state=SEED,
    )
    rng = np.random.default_rng(SEED)
    while True:
        for part in np.array_split(rng.permutation(len(train_x)), 3):
            model.partial_fit(train_x[part], train_y[part], classes=range(10))
            yield float(model.score(valid_x, valid_y))


def wine_curve(config: Config) -> Iterator[float]:
    """Three networks, one for each fold, tell wines apart; a step is one pass."""
    x, y = load_wine(return_X_y=True)
    folds = list(_folds(x, y, StratifiedKFold(3, shuffle=True, random_state=SEED)))
    models = [
        MLPClassifier(
            [config["hidden"]],
            solver="sgd",
            activation=config["activation"],
            learning_rate_init=config["lr"],
            alpha=config["alpha"],
            batch_size=config["batch"],
            momentum=config["momentum"],
            random_state=SEED,
        )
        for _ in folds
    ]
    while True:
        right = 0
        for model, (train_x, valid_x, train_y, valid_y) in zip(models, folds, strict=True):
            model.partial_fit(train_x, train_y, classes=range(3))
            right += int((model.predict(valid_x) == valid_y).sum())
        yield right / len(x)


def tumour_lines_curve(config: Config) -> Iterator[float]:
    """A linear model tells tumours apart; a step is one pass."""
    x, y = load_breast_cancer(return_X_y=True)
    train_x, valid_x, train_y, valid_y = train_test_split(
        x, y, test_size=0.5, stratify=y, random_state=SEED
    )
    scaler = StandardScaler().fit(train_x)
    train_x, valid_x = scaler.transform(train_x), scaler.transform(valid_x)
    model = SGDClassifier(
        loss=config["loss"],
        penalty="elasticnet",
        alpha=config["alpha"],
        l1_ratio=config["l1_ratio"],
        learning_rate="invscaling",
        eta0=config["eta0"],
        power_t=config["power"],
        random_state=SEED,
    )
    rng = np.random.default_rng(SEED)
    while True:
        order = rng.permutation(len(train_x))
        model.partial_fit(train_x[order], train_y[order], classes=range(2))
        yield float(hinge_loss(valid_y, np.clip(model.decision_function(valid_x), -20, 20)))


def _boosted(
    kind: type, config: Config, folds: Sequence[Split], score: Callable[..., float], trees: int
) -> Iterator[float]:
    """Yield the mean score of boosted trees, a model for each fold, after `trees` more a step."""
    names = {"loss": "loss", "pruning": "ccp_alpha"}
    models = [
        kind(
            n_estimators=0,
            warm_start=True,
            learning_rate=config["lr"],
            max_depth=config["depth"],
            random_state=SEED,
            subsample=config["subsample"],
            max_features=config["features"],
            min_samples_leaf=config["leaf"],
            **{theirs: config[ours] for ours, theirs in names.items() if ours in config},
        )
        for _ in folds
    ]
    while True:
        scores = []
        for model, (train_x, valid_x, train_y, valid_y) in zip(models, folds, strict=True):
            model.n_estimators += trees
            model.fit(train_x, train_y)
            scores.append(score(model, valid_x, valid_y))
        yield float(np.mean(scores))


def _log_loss(model: Any, x: Array, y: Array) -> float:
    return min(float(log_loss(y, model.predict_proba(x))), WORST_LOSS)


def _rmse(model: Any, x: Array, y: Array) -> float:
    return float(root_mean_squared_error(y, model.predict(x)))


def wine_trees_curve(config: Config) -> Iterator[float]:
    """Boosted trees, one model for each of three folds, tell wines apart; a step is one round."""
    x, y = load_wine(return_X_y=True)
    folds = list(_folds(x, y, StratifiedKFold(3, shuffle=True, random_state=SEED)))
    return _boosted(GradientBoostingClassifier, config, folds, _log_loss, 1)


def cancer_curve(config: Config) -> Iterator[float]:
    """Boosted trees tell tumours apart, which overfits; a step is three trees."""
    x, y = load_breast_cancer(return_X_y=True)
    split = train_test_split(x, y, test_size=0.5, stratify=y, random_state=SEED)
    return _boosted(GradientBoostingClassifier, config, [tuple(split)], _log_loss, 3)


def diabetes_curve(config: Config) -> Iterator[float]:
    """Boosted trees, one model for each of three folds, predict how a disease goes on; a step is
    three trees.
    """
    x, y = load_diabetes(return_X_y=True)
    folds = list(_folds(x, y / y.std(), KFold(3, shuffle=True, random_state=SEED)))
    return _boosted(GradientBoostingRegressor, config, folds, _rmse, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A task: how a configuration is trained, step by step; its space; what is measured; the score
    of knowing nothing.
    """

    curve: Callable[[Config], Iterator[float]]
    space: dict[str, Any]
    mode: str
    measured: str
    ignorant: float
    steps: int = STEPS


TASKS = {
    "digits": Task(
        curve=digits_curve,
        mode="max",
        measured="accuracy on 450 images of digits",
        ignorant=0.1,
        space={
            "lr": {"loguniform": [1e-4, 0.3]},
            "hidden": {"logint": [4, 64]},
            "batch": {"choice": [32, 64, 256]},
            "activation": {"choice": ["relu", "tanh", "logistic"]},
            "alpha": {"loguniform": [1e-6, 1.0]},
            "beta1": {"uniform": [0.0, 0.99]},
        },
    ),
    "linear": Task(
        curve=linear_curve,
        mode="max",
        measured="accuracy on 450 images of digits",
        ignorant=0.1,
        space={
            "eta0": {"loguniform": [1e-5, 10.0]},
            "decay": {"choice": ["constant", "invscaling"]},
            "power": {"uniform": [0.1, 0.9]},
            "loss": {"choice": ["hinge", "log_loss", "modified_huber"]},
            "alpha": {"loguniform": [1e-7, 0.1]},
            "l1_ratio": {"uniform": [0.0, 1.0]},
        },
    ),
    "wine": Task(
        curve=wine_curve,
        mode="max",
        measured="accuracy on 178 wines, each left out once",
        ignorant=0.33,
        space={
            "lr": {"loguniform": [1e-5, 1.0]},
            "momentum": {"uniform": [0.0, 0.99]},
            "hidden": {"logint": [2, 32]},
            "batch": {"choice": [8, 16, 32]},
            "activation": {"choice": ["relu", "tanh", "logistic"]},
            "alpha": {"loguniform": [1e-5, 3.0]},
        },
    ),
    "cancer": Task(
        curve=cancer_curve,
        mode="min",
        measured="log loss on 285 tumours",
        ignorant=0.66,
        space={
            "lr": {"loguniform": [0.005, 1.0]},
            "depth": {"int": [1, 6]},
            "subsample": {"uniform": [0.2, 1.0]},
            "features": {"uniform": [0.05, 1.0]},
            "leaf": {"logint": [1, 50]},
            "loss": {"choice": ["log_loss", "exponential"]},
        },
    ),
    "diabetes": Task(
        curve=diabetes_curve,
        mode="min",
        measured="RMSE on 442 patients, in standard deviations",
        ignorant=1.0,
        space={
            "lr": {"loguniform": [0.003, 1.0]},
            "depth": {"int": [1, 6]},
            "subsample": {"uniform": [0.2, 1.0]},
            "features": {"uniform": [0.1, 1.0]},
            "leaf": {"logint": [1, 50]},
            "loss": {"choice": ["squared_error", "huber"]},
        },
    ),
    "warmup": Task(
        curve=networks.warmup_curve,
        steps=50,
        mode="min",
        measured="log loss on 1,197 images of digits",
        ignorant=2.303,
        space={
            "lr": {"loguniform": [1e-4, 2.0]},
            "momentum": {"uniform": [0.0, 0.98]},
            "weight_decay": {"loguniform": [1e-6, 0.1]},
            "dropout": {"uniform": [0.0, 0.7]},
            "batch": {"choice": [16, 64, 256]},
            "width": {"logint": [8, 128]},
            "warmup": {"uniform": [0.0, 0.4]},
            "decay": {"choice": ["constant", "cosine"]},
        },
    ),
    "mislabelled": Task(
        curve=networks.mislabelled_curve,
        steps=40,
        mode="min",
        measured="log loss on 1,297 images of digits, learnt with wrong labels",
        ignorant=2.303,
        space={
            "lr": {"loguniform": [1e-5, 0.3]},
            "beta1": {"uniform": [0.0, 0.99]},
            "weight_decay": {"loguniform": [1e-4, 10.0]},
            "dropout": {"uniform": [0.0, 0.8]},
            "batch": {"choice": [16, 64, 256]},
            "width": {"logint": [8, 128]},
            "layers": {"int": [1, 3]},
        },
    ),
    "patients": Task(
        curve=networks.patients_curve,
        steps=60,
        mode="min",
        measured="RMSE on 222 patients, in standard deviations",
        ignorant=1.0,
        space={
            "lr": {"loguniform": [1e-5, 0.3]},
            "weight_decay": {"loguniform": [1e-4, 10.0]},
            "dropout": {"uniform": [0.0, 0.8]},
            "batch": {"choice": [16, 64, 256]},
            "width": {"logint": [8, 128]},
            "layers": {"int": [1, 3]},
        },
    ),
    "tumour_lines": Task(
        curve=tumour_lines_curve,
        steps=40,
        mode="min",
        measured="hinge loss on 285 tumours",
        ignorant=1.0,
        space={
            "eta0": {"loguniform": [1e-5, 10.0]},
            "power": {"uniform": [0.0, 1.0]},
            "loss": {"choice": ["hinge", "log_loss", "modified_huber"]},
            "alpha": {"loguniform": [1e-7, 1.0]},
            "l1_ratio": {"uniform": [0.0, 1.0]},
        },
    ),
    "wine_trees": Task(
        curve=wine_trees_curve,
        steps=30,
        mode="min",
        measured="log loss on 178 wines, each left out once",
        ignorant=1.09,
        space={
            "lr": {"loguniform": [0.005, 2.0]},
            "depth": {"int": [1, 6]},
            "subsample": {"uniform": [0.2, 1.0]},
            "features": {"uniform": [0.05, 1.0]},
            "leaf": {"logint": [1, 30]},
            "pruning": {"loguniform": [1e-5, 0.3]},
        },
    ),
}


def trainable(name: str) -> Callable[[rg.Trial], None]:
    """The task for `regrow run`, which trains it indeed. Saves nothing: a trial that goes on trains
    its steps again.
    """

    def train(trial: rg.Trial) -> None:
        curve, trained = TASKS[name].curve(trial.config), 0
        for step in trial.steps():
            *_, score = islice(curve, step - trained)
            trained = step
            trial.report({"score": score})

    return train


digits, linear, wine, cancer, diabetes = map(trainable, list(TASKS)[:5])
warmup, mislabelled, patients = map(trainable, list(TASKS)[5:8])
tumour_lines, wine_trees = map(trainable, list(TASKS)[8:])


def _digits() -> Split:
    x, y = load_digits(return_X_y=True)
    train_x, valid_x, train_y, valid_y = train_test_split(
        x / 16, y, test_size=0.25, stratify=y, random_state=SEED
    )
    return train_x, valid_x, train_y, valid_y


def _folds(x: Array, y: Array, folds: KFold | StratifiedKFold) -> Iterator[Split]:
    for train, valid in folds.split(x, y):
        scaler = StandardScaler().fit(x[train])
        yield scaler.transform(x[train]), scaler.transform(x[valid]), y[train], y[valid]


def configurations(space: Space, count: int) -> list[dict[str, Any]]:
    """The first `count` points of the design; real numbers have five significant digits, as in the
    file.
    """
    points = qmc.Sobol(len(space.flat), rng=np.random.default_rng(SEED)).random_base2(
        (count - 1).bit_length()
    )[:count]
    found = []
    for point in points:
        values = {
            p.name: p.domain.quantile(float(u)) for p, u in zip(space.flat, point, strict=True)
        }
        found.append(
            {name: float(f"{v:.5g}") if isinstance(v, float) else v for name, v in values.items()}
        )
    return found


def measured(task: Task, config: Config) -> Iterator[tuple[float, float]]:
    """Score and CPU seconds of each step."""
    curve, overflown, seconds = task.curve(config), False, 0.0
    for _ in range(task.steps):
        score, start = task.ignorant, time.process_time()
        if not overflown:
            try:
                score = next(curve)
            except ValueError:  # how scikit-learn says that weights are no longer finite
                overflown = True
            seconds = time.process_time() - start
        yield score, seconds


def write(name: str, folder: Path, count: int) -> str:
    """Trains a task's configurations and writes its two files; says what came of it."""
    task, start = TASKS[name], time.perf_counter()
    space = Space.parse(task.space)
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow([*(p.name for p in space.flat), "step", "score", "seconds"])
    last = []
    for config in configurations(space, count):
        curve = list(measured(task, config))
        seconds = np.mean([seconds for _, seconds in curve])
        for step, (score, _) in enumerate(curve, start=1):
            table.writerow(
                [*(config[p.name] for p in space.flat), step, f"{score:.4g}", f"{seconds:.3g}"]
            )
        last.append(score)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.csv.gz"
    path.write_bytes(gzip.compress(text.getvalue().encode(), 9, mtime=0))
    (folder / f"{name}.yaml").write_text(specification(name, task))
    low, middle, high = np.quantile(last, [0, 0.5, 1])
    return (
        f"{name:9} {time.perf_counter() - start:5.0f} s, {path.stat().st_size / 1e3:4.0f} KB, "
        f"{task.mode} {task.measured}: last step {low:.4g} to {high:.4g}, median {middle:.4g}"
    )


def specification(name: str, task: Task) -> str:
    """The experiment as `regrow` reads it."""
    space = "".join(
        f"  {key}: {yaml.safe_dump(value, default_flow_style=True).strip()}\n"
        for key, value in task.space.items()
    )
    return (
        f"# {task.measured[0].upper()}{task.measured[1:]}. The curves are in {name}.csv.gz, made by"
        f" benchmarks/curves.py.\nname: {name}\ntrainable: ../curves.py:{name}   # `regrow"
        " simulate` reads the table instead\nmetric: score\nmode:"
        f" {task.mode}\nspace:\n{space}search: tpe\nschedule: {{asha: {{grace_period: 1,"
        f" reduction_factor: 3}}}}\ntrials: 100\nmax_steps: {task.steps}\nseed: 0\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=TASKS, default=list(TASKS), help="these tasks")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the tables")
    parser.add_argument("--configurations", type=int, default=CONFIGURATIONS)
    options = parser.parse_args()
    warnings.filterwarnings("ignore", category=RuntimeWarning)  # overflows are among the results
    for name in options.only:
        print(write(name, options.out, options.configurations), flush=True)


if __name__ == "__main__":
    main()
