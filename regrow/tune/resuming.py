"""Going on with an experiment from its log alone, as `Tuner.restore` does."""

from __future__ import annotations

from regrow.infra.state.places import Places
from regrow.result import Result


def resume(result: Result, *, retry: bool) -> Result:
    """Runs what is left of it; `retry`: also trials that failed."""
    from regrow.launch import launch, settings_read_again
    from regrow.live import Live
    from regrow.live.output import Terminal

    places = Places.at(result.state)
    live = Live(Terminal(highlight=False))
    try:
        launch(result.name, spec=None, places=places, retry_failed=retry, watch=live.watch, announce=live.announce)
    finally:
        settings_read_again()
    return result.refresh()
