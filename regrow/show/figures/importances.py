"""Importance of parameters for a good value, by Optuna's PED-ANOVA.

Watanabe, Bansal, Hutter: "PED-ANOVA: Efficiently Quantifying Hyperparameter Importance in Arbitrary
Subspaces", IJCAI 2023. It only uses which trials are among the best tenth, so that the values of
trials that were stopped early do no harm, and it supports conditional parameters. Optuna's own
figure excludes stopped trials, which are most of them with ASHA.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from regrow.infra.log.rows import Rows
from regrow.search.history import History
from regrow.show.figures.look import COLOURS, finished, safe

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

TITLE = "Importance of parameters"
READING = (
    "How much each parameter decides whether a trial is among the best tenth (PED-ANOVA; all shares"
    " together are 1)."
)
ENOUGH = 10
NOTHING = f"It takes {ENOUGH} trials with a value and a parameter that differs between them."
MOST = 20


def importances(history: History) -> dict[str, float]:
    """Return shares by parameter, greatest first, with the sum 1. Empty for fewer than ten trials
    with a value.
    """
    trials = [trial for trial in history.trials if trial.best is not None]
    if len(trials) < ENOUGH:
        return {}
    import optuna

    from regrow.search.samplers.optuna_study_model import quiet
    from regrow.show.exports.optuna_study import study

    with quiet():
        told = study(history).get_trials(deepcopy=False)
        judged = optuna.create_study(
            direction="minimize" if history.objective.mode == "min" else "maximize"
        )
        judged.add_trials(
            optuna.trial.create_trial(
                value=trial.best[0],
                params=told[trial.number].params,
                distributions=told[trial.number].distributions,
            )
            for trial in trials
            if trial.best is not None and told[trial.number].params
        )
        varied = [
            name
            for name in {name: None for t in judged.get_trials(deepcopy=False) for name in t.params}
            if len(
                {str(t.params[name]) for t in judged.get_trials(deepcopy=False) if name in t.params}
            )
            > 1
        ]
        if not varied:
            return {}
        found = optuna.importance.get_param_importances(judged, params=varied)
    return dict(sorted(found.items(), key=lambda one: -one[1]))


def figure(told: Rows) -> Figure | None:
    """Make the figure; None if there is too little to compare."""
    history = told.history
    found = importances(history)
    if not found:
        return None
    from plotly import graph_objects as go

    shown = dict(reversed(list(found.items())[:MOST]))
    made = go.Figure(
        go.Bar(
            x=list(shown.values()),
            y=[safe(name) for name in shown],
            orientation="h",
            marker={"color": COLOURS["done"]},
            text=[f"{share:.2f}" for share in shown.values()],
            textposition="auto",
            cliponaxis=False,
            hovertemplate="%{y}<br>%{x:.3f}<extra></extra>",
        )
    )
    made.update_layout(
        xaxis={"title": {"text": "share"}, "rangemode": "tozero"},
        yaxis={"type": "category", "showgrid": False},
        bargap=0.35,
    )
    changed = any(trial.changes for trial in history.trials)
    with_values = sum(trial.best is not None for trial in history.trials)
    return finished(
        made,
        "Judged by the configurations that were proposed; the schedule changed them later."
        if changed
        else "",
        f"From {with_values} trials only: take it as a hint." if with_values < 50 else "",
        f"The first {MOST} of {len(found)} are drawn." if len(found) > MOST else "",
        height=max(240, 110 + 34 * len(shown)),
    )
