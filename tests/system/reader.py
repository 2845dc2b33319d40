"""A reader who follows a page of the documentation: writes the files that it shows, types its
commands, compares what is printed.

How a page is written, so that it can be followed:

* a fenced block with `title="FILE"` is a file, written when it is met; `text` blocks after commands
  are what they print;
* `sh` blocks are typed, `python` blocks without a title are scripts, `pycon` is not used; the shell
  keeps folder and variables, to the end of the page and for pages that continue from it;
* `yaml` blocks without a title are parts of a specification, not files
  (tests/unit/test_docs_pages.py reads these).

What a page prints is compared line by line: each line shown has to be printed, in this order; runs
of blanks are the same, a number is any number, `...` is anything. Marks that a reader of the site
does not see, each on a line before its block:

* `<!-- test: skip: WHY -->`: not done here, and why
* `<!-- test: exit 3 -->`: the exit code that the block ends with, 0 if not given
* `<!-- test: background until reported 5 of NAME -->`: continues in the other terminal; this many
  such events are awaited
* `<!-- test: ctrl-c at reported 5 of NAME -->`: Ctrl-C is pressed once there are so many
* `<!-- test: ctrl-c at printed TEXT -->`: Ctrl-C is pressed once this is printed
* `<!-- test: join -->`: the background's end and output come here, before the next block
* `<!-- test: instead TEXT => TEXT -->`: less of it, or another address: said so in the page where
  it matters
* `<!-- test: copy PATH -->`: a file of the repository that the reader has already
* `<!-- test: after PAGE -->`: the page continues in the folder of that one
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.system.conftest import kill_all

ROOT = Path(__file__).resolve().parents[2]
_TOKEN = re.compile(
    r"^(?P<indent> *)(?P<fence>`{3,})(?P<language>\w*)(?P<head>[^\n]*)\n(?P<body>.*?)^(?P=indent)(?P=fence) *$"
    r"|^ *<!-- test: (?P<mark>.*?) ?-->$",
    re.MULTILINE | re.DOTALL,
)
_TITLE = re.compile(r'title="([^"]+)"')
_NUMBER = re.compile(r"(?<![A-Za-z0-9_.-])[+-]?\d[\d.:]*(?:e[+-]?\d+)?")
SECONDS = 240.0
"""For one block; a page that waits longer than a reader would is a failure."""


@dataclass(frozen=True, kw_only=True)
class Block:
    """A fenced block with its marks; `line` is where it stands in the page."""

    language: str
    title: str | None
    body: str
    marks: tuple[str, ...]
    line: int

    def mark(self, word: str) -> str | None:
        """What follows a mark's first word, None where the block has no such mark."""
        return next(
            (
                m.removeprefix(word).strip(" :")
                for m in self.marks
                if m.split(":")[0].split()[0] == word
            ),
            None,
        )


@dataclass(frozen=True, kw_only=True)
class Page:
    """A page of the documentation, as blocks; `after` names the page in whose folder it continues."""

    path: Path
    blocks: tuple[Block, ...]
    after: str | None

    @property
    def name(self) -> str:
        """The path below the repository."""
        return self.path.relative_to(ROOT).as_posix()

    @property
    def has_commands(self) -> bool:
        """Whether there is anything to type."""
        return any(b.mark("skip") is None and is_typed(b) for b in self.blocks)


def is_typed(block: Block) -> bool:
    """Whether a reader would run it."""
    return block.language == "sh" or (block.language == "python" and block.title is None)


def read(path: Path) -> Page:
    """The blocks of a page. Marks belong to the next block."""
    text, blocks, marks, after = path.read_text(), [], list[str](), None
    for token in _TOKEN.finditer(text):
        if (mark := token["mark"]) is not None:
            if mark.startswith("after "):
                after = mark.removeprefix("after ").strip()
            else:
                marks.append(" ".join(mark.split()))
            continue
        title = _TITLE.search(token["head"])
        body = re.sub(rf"^{token['indent']}", "", token["body"], flags=re.MULTILINE)
        blocks.append(
            Block(
                language=token["language"],
                title=title[1] if title else None,
                body=body,
                marks=tuple(marks),
                line=text.count("\n", 0, token.start()) + 1,
            )
        )
        marks = []
    return Page(path=path, blocks=tuple(blocks), after=after)


def pages() -> list[Page]:
    """README and the site's pages, each behind the one that it continues from."""
    folder = ROOT / "docs"
    found = {
        p.name: p
        for p in map(read, [ROOT / "README.md", folder / "index.md", *sorted(folder.rglob("*.md"))])
    }
    ordered: dict[str, Page] = {}

    def take(page: Page) -> None:
        if page.after is not None:
            take(found[page.after])
        ordered.setdefault(page.name, page)

    for page in found.values():
        take(page)
    return list(ordered.values())


@dataclass
class Reader:
    """Somebody at a terminal, in an empty folder with an empty home."""

    folder: Path
    environment: dict[str, str]
    second: subprocess.Popen[bytes] | None = None
    """What runs in the other terminal."""
    printed: str = ""
    """What the last block printed, on both streams."""
    expected: int = 0
    """The exit code that the second terminal's command is to end with."""
    _left: dict[str, dict[Path, str]] = field(default_factory=dict)
    """By page, the shell's variables and folder at its end: those of one page are no business of
    the next.
    """

    @classmethod
    def at(cls, folder: Path) -> Reader:
        """With the installed command and `pgrep`, which sees the reader's own processes only: this
        machine has others.
        """
        for name in ("work", "home", "bin", "shell"):
            (folder / name).mkdir()
        work, tools = folder / "work", folder / "bin"
        mark = f"REGROW_TEST_MARK={work}"
        (tools / "pgrep").write_text(
            f'#!/bin/sh\n/usr/bin/pgrep "$@" | while read -r pid rest; do\n'
            # pgrep itself, as the real one leaves itself out
            '  grep -qzxF "$0" /proc/$pid/cmdline 2>/dev/null && continue\n'
            f"  grep -qzxF '{mark}' /proc/$pid/environ 2>/dev/null && echo $pid $rest\ndone\n"
        )
        (tools / "pgrep").chmod(0o755)
        environment = {
            "HOME": str(folder / "home"),
            "PATH": f"{tools}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "LANG": "C.UTF-8",
            "REGROW_TEST_MARK": str(work),
            "COLUMNS": "160",
            "VIRTUAL_ENV": sys.prefix,
            "PYTHONWARNINGS": "ignore",
            # its runners of jobs are three processes that no page needs
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        }
        return cls(folder=folder, environment=environment)

    def follow(self, page: Page) -> None:
        """Does what the page says. Raises AssertionError with the page, the line and what was
        printed.
        """
        shell = self.folder / "shell"
        before = self._left.get(page.after or "", {})
        for file in (shell / "variables", shell / "cwd"):
            file.unlink(missing_ok=True)
            if file in before:
                file.write_text(before[file])
        try:
            self._follow(page)
        finally:
            self._left[page.name] = {
                f: f.read_text() for f in (shell / "variables", shell / "cwd") if f.exists()
            }

    def _follow(self, page: Page) -> None:
        for block in page.blocks:
            where = f"{page.name}:{block.line}"
            for source in (
                m.removeprefix("copy").strip() for m in block.marks if m.startswith("copy ")
            ):
                (self.folder / "work" / Path(source).name).write_bytes((ROOT / source).read_bytes())
            if block.mark("skip") is not None:
                continue
            if block.mark("join") is not None:
                self._join(where)
            if block.title is not None:
                file = self.folder / "work" / block.title
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(_as_tested(block))
            elif is_typed(block):
                self._type(block, where)
            elif block.language == "text":
                compare(block.body, self.printed, where)
        self._join(page.name)

    def _type(self, block: Block, where: str) -> None:
        body = _as_tested(block)
        if block.language == "python":
            body = f"python - <<'END_OF_SCRIPT'\n{body}\nEND_OF_SCRIPT"
        out = (
            self.folder / "shell" / ("second" if block.mark("background") is not None else "first")
        )
        process = self._shell(body, out)
        if (background := block.mark("background")) is not None:
            assert self.second is None, f"{where}: the second terminal is busy"
            self.second, self.expected = process, int(block.mark("exit") or 0)
            self._await(background.removeprefix("until"), process, where, out)
            return
        if (interrupt := block.mark("ctrl-c")) is not None:
            self._await(interrupt.removeprefix("at"), process, where, out)
            os.killpg(process.pid, signal.SIGINT)
        self._end(process, out, int(block.mark("exit") or 0), where)

    def _shell(self, body: str, out: Path) -> subprocess.Popen[bytes]:
        """Bash in the folder and with the variables that the block before it left; the second
        terminal leaves none.
        """
        shell = self.folder / "shell"
        saved, cwd = shell / "variables", shell / "cwd"
        leave = (
            f"export -p > {saved}.new && mv {saved}.new {saved}; pwd > {cwd}; "
            if out.name == "first"
            else ""
        )
        script = (
            f'[ -f {saved} ] && . {saved}; cd "$(cat {cwd} 2>/dev/null || echo {self.folder / "work"})"\n'
            f"trap 'code=$?; {leave}exit $code' EXIT\n"
            # A shell at a terminal is not ended by the Ctrl-C that ends the command.
            f"trap : INT\nset -e -o pipefail\n{body}"
        )
        # From a file, as a shell at a terminal does not hold what is typed in its own command line,
        # where `pgrep -f` would find it.
        typed = shell / f"{out.name}.sh"
        typed.write_text(script)
        with out.open("wb") as file:
            return subprocess.Popen(
                ["bash", typed],
                cwd=self.folder / "work",
                env=self.environment,
                stdout=file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                process_group=0,
            )

    def _end(self, process: subprocess.Popen[bytes], out: Path, code: int, where: str) -> None:
        try:
            process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise AssertionError(
                f"{where}: still running after {SECONDS:g} s\n{out.read_text()}"
            ) from None
        self.printed = out.read_text()
        # pytest shows it where the page is not followed to its end
        print(f"--- {where}\n{self.printed}")
        assert process.returncode == code, (
            f"{where}: exit {process.returncode}, not {code}\n{self.printed}"
        )

    def _join(self, where: str) -> None:
        if self.second is not None:
            process, self.second = self.second, None
            self._end(process, self.folder / "shell" / "second", self.expected, where)

    def _await(self, what: str, process: subprocess.Popen[bytes], where: str, out: Path) -> None:
        """Returns once the log of an experiment holds so many events of a kind: `reported 5 of
        digits`.
        """
        kind, _, rest = what.strip().partition(" ")
        deadline = time.monotonic() + SECONDS

        def there() -> bool:
            if kind == "printed":
                return rest in out.read_text()
            count, _, name = rest.split()
            return self._events(name, kind) >= int(count)

        while not there():
            assert process.poll() is None, (
                f"{where}: ended before there were {what}\n{out.read_text()}"
            )
            assert time.monotonic() < deadline, (
                f"{where}: there were never {what}\n{out.read_text()}"
            )
            time.sleep(0.05)

    def _events(self, name: str, kind: str) -> int:
        """Lines in the log that hold the event; segments may be merged away while they are read."""
        found = 0
        for segment in (self.folder / "work" / ".regrow" / name / "log").glob("*.jsonl"):
            try:
                found += segment.read_bytes().count(f'"event":"{kind}"'.encode())
            except FileNotFoundError:
                continue
        return found

    def leave(self) -> None:
        """Ends whatever the pages started, and nothing else."""
        kill_all(self.folder / "work")
        if self.second is not None:
            self.second.wait()


def _as_tested(block: Block) -> str:
    body = block.body
    for mark in block.marks:
        if mark.startswith("instead "):
            before, after = mark.removeprefix("instead ").split(" => ")
            assert before in body, f"line {block.line}: {before!r} is not in the block"
            body = body.replace(before, after)
    return body


def compare(shown: str, printed: str, where: str) -> None:
    """Each line that a page shows has to be printed, in this order."""
    lines = iter(_plain(printed))
    for line in shown.splitlines():
        if line.strip() in ("", "..."):
            continue
        wanted = re.compile(pattern(line))
        assert any(wanted.fullmatch(found) for found in lines), (
            f"{where}: not printed (in this order): {line!r}\n{printed}"
        )


def pattern(line: str) -> str:
    """A line of a page as a regular expression: any number for a number, anything for `...`, blanks
    for blanks.
    """
    parts = []
    for piece in re.split(r"(\.\.\.)", " ".join(line.split())):
        if piece == "...":
            parts.append(".*")
            continue
        place = 0
        for number in _NUMBER.finditer(piece):
            parts += [re.escape(piece[place : number.start()]), _NUMBER.pattern]
            place = number.end()
        parts.append(re.escape(piece[place:]))
    return "".join(parts)


def _plain(printed: str) -> Iterator[str]:
    for line in printed.splitlines():
        yield " ".join(line.split())
