"""The lists of commands in `--help`: in groups, each with its whole first sentence."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

GROUPS: dict[str, tuple[str, ...]] = {
    "Run": ("run", "join", "try", "tune", "resume", "stop", "watch"),
    "Look": (
        "ls",
        "show",
        "agents",
        "trials",
        "trial",
        "best",
        "compare",
        "logs",
        "report",
        "ui",
        "verify",
    ),
    "Keep and pass on": ("note", "cp", "mv", "rm", "export", "serve"),
    "Before a run": ("schema", "simulate", "estimate"),
    "Station": ("up", "down", "status", "schedule", "schedules"),
    "Clusters": ("cluster",),
}
"""The names of the commands, by the heading that they stand under."""


class Grouped(TyperGroup):
    """A group of commands that lists them below headings: those of GROUPS, or one for all."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list. The first sentence of each help is not cut."""
        there = self.list_commands(ctx)
        groups = GROUPS if "run" in there else {"Commands": tuple(there)}
        for title, names in groups.items():
            found = [(name, self.get_command(ctx, name)) for name in names]
            with formatter.section(title):
                formatter.write_dl(
                    [(name, _sentence(command.help or "")) for name, command in found if command],
                    col_max=12,
                )


def _sentence(text: str) -> str:
    """Return the first sentence of a help text."""
    paragraph = " ".join(text.split("\n\n", maxsplit=1)[0].split())
    return paragraph.partition(". ")[0].rstrip(".") + "."
