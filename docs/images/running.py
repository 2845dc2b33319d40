# ruff: noqa: T201  # a script: it writes a picture
"""Makes docs/images/running.svg from the log of a real experiment: what its terminal showed at a moment.

    python docs/images/running.py STATE NAME SECONDS > docs/images/running.svg

SECONDS: how long after the experiment began.
"""

from __future__ import annotations

import io
import sys

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from regrow.cli.live.board import Board
from regrow.cli.live.grid import Signs
from regrow.cli.live.layout import compose
from regrow.infra.places import Places, read_events

WIDTH, HEIGHT = 118, 36
THEME = TerminalTheme(
    (22, 27, 34), (201, 209, 217),
    [(72, 79, 88), (255, 123, 114), (63, 185, 80), (210, 153, 34), (88, 166, 255), (188, 140, 255), (57, 197, 207), (177, 186, 196)],
    [(110, 118, 129), (255, 161, 152), (86, 211, 100), (227, 179, 65), (121, 192, 255), (210, 168, 255), (86, 212, 221), (255, 255, 255)],
)


def main(state: str, name: str, seconds: float) -> None:
    """Prints the picture."""
    board, now = Board(), 0.0
    for event in read_events(Places.at(state).known(name)):
        now = now or event.t + seconds
        if event.t > now:
            break
        board.apply(event)
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text.assemble(("$ ", "dim"), f"regrow run {name}.yaml"))
    for line in compose(board, width=WIDTH - 1, height=HEIGHT, now=now, signs=Signs()):
        console.print(line, no_wrap=True, overflow="crop")
    console.print()
    print(console.export_svg(title=f"regrow run {name}.yaml", theme=THEME, code_format=_format()))


def _format() -> str:
    """Rich's own, without the font that it would fetch from the network."""
    from rich._export_format import CONSOLE_SVG_FORMAT

    begin, mark = CONSOLE_SVG_FORMAT.index("    @font-face"), "    .{unique_id}-matrix"
    kept = CONSOLE_SVG_FORMAT[:begin] + CONSOLE_SVG_FORMAT[CONSOLE_SVG_FORMAT.index(mark) :]
    return kept.replace("font-family: Fira Code, monospace", "font-family: ui-monospace, Menlo, Consolas, monospace")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
