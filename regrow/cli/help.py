"""The lists of commands in `--help`: in groups, each with its whole first sentence."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup


class GroupedCommands(TyperGroup):
    """A group of commands that lists them below headings: their own, or one for all."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list. The first sentence of each help is not cut."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command: Any = self.get_command(ctx, name)
            paragraph = " ".join((command.help or "").split("\n\n", maxsplit=1)[0].split())
            sentence = paragraph.partition(". ")[0].rstrip(".") + "."
            heading = command.rich_help_panel or "Commands"
            groups.setdefault(heading, []).append((name, sentence))
        for title, listed in groups.items():
            with formatter.section(title):
                formatter.write_dl(listed, col_max=12)
