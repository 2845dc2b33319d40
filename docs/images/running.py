# ruff: noqa: T201  # a script: it writes a picture
"""Makes docs/images/running.svg from the log of a real experiment: what its terminal showed at a
moment.

    python docs/images/running.py STATE NAME SECONDS > docs/images/running.svg

SECONDS: how long after the experiment began.
"""

from __future__ import annotations

import io
import sys

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from regrow.infra.log.reading import read_events
from regrow.infra.state.places import Places
from regrow.show.live.board import Board
from regrow.show.live.grid import Signs
from regrow.show.live.sections import compose

WIDTH, HEIGHT = 118, 36
DULL = "484f58 ff7b72 3fb950 d29922 58a6ff bc8cff 39c5cf b1bac4"
BRIGHT = "6e7681 ffa198 56d364 e3b341 79c0ff d2a8ff 56d4dd ffffff"
BACKGROUND, FOREGROUND = "161b22", "c9d1d9"


def main(state: str, name: str, seconds: float) -> None:
    """Prints the picture."""
    board, now = Board(), 0.0
    for event in read_events(Places.at(state).known(name)):
        now = now or event.t + seconds
        if event.t > now:
            break
        board.apply(event)
    console = Console(
        record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    console.print(Text.assemble(("$ ", "dim"), f"regrow run {name}.yaml"))
    for line in compose(board, width=WIDTH - 1, height=HEIGHT, now=now, signs=Signs()):
        console.print(line, no_wrap=True, overflow="crop")
    console.print()
    dull, bright = ([_rgb(code) for code in codes.split()] for codes in (DULL, BRIGHT))
    theme = TerminalTheme(_rgb(BACKGROUND), _rgb(FOREGROUND), dull, bright)
    print(console.export_svg(title=f"regrow run {name}.yaml", theme=theme, code_format=_format()))


def _rgb(code: str) -> tuple[int, int, int]:
    return int(code[:2], 16), int(code[2:4], 16), int(code[4:], 16)


def _format() -> str:
    """Rich's own, without the font that it would fetch from the network."""
    from rich._export_format import CONSOLE_SVG_FORMAT

    begin, mark = CONSOLE_SVG_FORMAT.index("    @font-face"), "    .{unique_id}-matrix"
    kept = CONSOLE_SVG_FORMAT[:begin] + CONSOLE_SVG_FORMAT[CONSOLE_SVG_FORMAT.index(mark) :]
    return kept.replace(
        "font-family: Fira Code, monospace", "font-family: ui-monospace, Menlo, Consolas, monospace"
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
