"""Resumes an experiment from its log alone, for `Tuner.restore`."""

from __future__ import annotations

from regrow.infra.state.places import Places
from regrow.result import Result


def resume(result: Result, *, retry: bool) -> Result:
    """Run what is left of it; `retry`: also retry failed trials."""
    from regrow.flows.launch import launch, settings_read_again
    from regrow.flows.session import Session
    from regrow.show.live import Live
    from regrow.show.live.output import Terminal

    places = Places.at(result.state)
    live = Live(Terminal())
    try:
        launch(
            Session(
                name=result.name,
                places=places,
                retry_failed=retry,
                watch=live.watch,
                announce=live.announce,
            )
        )
    finally:
        settings_read_again()
    return result.refresh()
