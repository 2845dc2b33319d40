"""What differs from Typer: `--help` lists commands in groups, each with its whole first sentence,
and an option or argument with an empty value is refused.
"""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup

from regrow.tasks.errors import UserError


class Command(TyperCommand):
    """A command that refuses an option or argument with an empty value: where a shell's variable is
    unset, a limit would not hold, and a path would be the current folder, unseen.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments. Raises UserError for such an option or argument."""
        given, _, _ = self.make_parser(ctx).parse_args(args=list(args))
        for parameter in self.params:
            value = given.get(parameter.name or "")
            values = value if isinstance(value, list | tuple) else [value]
            if ctx.ignore_unknown_options and parameter.nargs == -1:
                continue  # another program's arguments
            if any(isinstance(one, str) and not one.strip() for one in values):
                metavar = parameter.metavar or str(parameter.name).upper()
                name = parameter.opts[0] if parameter.param_type_name == "option" else metavar
                raise UserError(f"{name}: is empty; give a value, or leave it out")
        return super().parse_args(ctx, args)


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
