"""Importance of parameters for a good value, by Optuna's PED-ANOVA.

Watanabe, Bansal, Hutter: "PED-ANOVA: Efficiently Quantifying Hyperparameter Importance in Arbitrary
Subspaces", IJCAI 2023. It only uses which trials are among the best tenth, so that the values of
trials that were stopped early do no harm, and it supports conditional parameters. Optuna's own
figure excludes stopped trials, which are most of them with ASHA.
"""

from __future__ import annotations

from regrow.infra.log.rows import LogRows
from regrow.search.history import History
from regrow.show.figures.style import COLOURS, Figure, blank, finished, safe
from regrow.show.views.names import HEADING, shortened

TITLE = "Importance of parameters"
READING = (
    "How much each parameter decides whether a trial is among the best tenth (PED-ANOVA; all shares"
    " together are 1)."
)
ENOUGH = 10
NOTHING = f"It takes {ENOUGH} trials with a value and a parameter that differs between them."
MOST = 20


def enough(history: History) -> bool:
    """Return whether there are enough trials with a value."""
    return sum(trial.best is not None for trial in history.trials) >= ENOUGH


def importances(history: History) -> dict[str, float]:
    """Return shares by parameter, greatest first, with the sum 1; empty if too little is known."""
    if not enough(history):
        return {}
    trials = [trial for trial in history.trials if trial.best is not None]
    import optuna

    from regrow.search.samplers.optuna_study_model import quiet
    from regrow.show.exports.optuna_study import study

    with quiet():
        in_optuna = study(history).get_trials(deepcopy=False)
        judged = optuna.create_study(
            direction="minimize" if history.objective.mode == "min" else "maximize"
        )
        values: dict[str, set[str]] = {}
        for trial in trials:
            params = in_optuna[trial.number].params
            if trial.best is None or not params:
                continue
            distributions = in_optuna[trial.number].distributions
            judged.add_trial(
                optuna.trial.create_trial(
                    value=trial.best[0], params=params, distributions=distributions
                )
            )
            for name, value in params.items():
                values.setdefault(name, set()).add(str(value))
        varied = [name for name, different in values.items() if len(different) > 1]
        if not varied:
            return {}
        found = optuna.importance.get_param_importances(judged, params=varied)
    return dict(sorted(found.items(), key=lambda one: -one[1]))


def figure(log_rows: LogRows) -> Figure | None:
    history = log_rows.history
    found = importances(history)
    if not found:
        return None
    shown = dict(reversed(list(found.items())[:MOST]))
    made = blank()
    made.add_bar(
        x=list(shown.values()),
        y=list(map(safe, shortened(list(shown), [HEADING] * len(shown)))),
        orientation="h",
        marker={"color": COLOURS["done"]},
        text=[f"{share:.2f}" for share in shown.values()],
        textposition="auto",
        cliponaxis=False,
        hovertemplate="%{y}<br>%{x:.3f}<extra></extra>",
    )
    made.update_layout(
        xaxis={"title": {"text": "share"}, "rangemode": "tozero"},
        yaxis={"type": "category", "showgrid": False},
        bargap=0.35,
    )
    changed = any(trial.changes for trial in history.trials)
    judged = "Judged by the configurations that were proposed; the schedule changed them later."
    with_values = sum(trial.best is not None for trial in history.trials)
    return finished(
        made,
        judged if changed else "",
        f"From {with_values} trials only: take it as a hint." if with_values < 50 else "",
        f"The first {MOST} of {len(found)} are drawn." if len(found) > MOST else "",
        height=max(240, 110 + 34 * len(shown)),
    )
