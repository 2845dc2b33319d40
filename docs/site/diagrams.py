"""Mermaid diagrams as pictures: a theme would fetch Mermaid from a CDN in the reader's browser.

GitHub draws them itself, so they stay text in the pages. Their pictures are in
docs/images/diagrams, by a hash of the text; `python docs/site/diagrams.py MERMAID.JS` draws those
that are missing, with Chromium and the file dist/mermaid.min.js of the npm package `mermaid`.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1]
DRAWN = DOCS / "images" / "diagrams"
THEMES = {"light": "neutral", "dark": "dark"}
FENCE = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def name(text: str) -> str:
    """The name of a diagram's pictures, which changes with its text."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def as_pictures(markdown: str, page: str) -> str:
    """The page with a picture for each diagram. Raises FileNotFoundError for one that was not
    drawn.
    """
    up = "../" * page.count("/")

    def picture(fence: re.Match[str]) -> str:
        drawn = name(fence[1])
        for theme in THEMES:
            if not (DRAWN / f"{drawn}-{theme}.svg").is_file():
                raise FileNotFoundError(
                    f"{page}: a diagram was not drawn yet; python docs/site/diagrams.py MERMAID.JS"
                    " does it"
                )
        return "\n".join(
            f"![Diagram]({up}images/diagrams/{drawn}-{theme}.svg#only-{theme})" for theme in THEMES
        )

    return FENCE.sub(picture, markdown)


def draw(mermaid: Path) -> None:
    """Draws what is missing and deletes what no page has any more."""
    from playwright.sync_api import sync_playwright

    texts = {
        name(m[1]): m[1] for page in DOCS.rglob("*.md") for m in FENCE.finditer(page.read_text())
    }
    DRAWN.mkdir(parents=True, exist_ok=True)
    for old in DRAWN.glob("*.svg"):
        if old.stem.partition("-")[0] not in texts:
            old.unlink()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        for key, text in texts.items():
            for shade, theme in THEMES.items():
                drawn = DRAWN / f"{key}-{shade}.svg"
                if drawn.exists():
                    continue
                page = browser.new_page()
                page.set_content("<body></body>")
                page.add_script_tag(path=str(mermaid))
                # Labels as SVG text: HTML inside of an SVG is not shown where the SVG is an image.
                settings = {
                    "startOnLoad": False,
                    "theme": theme,
                    "htmlLabels": False,
                    "flowchart": {"htmlLabels": False},
                    "state": {"htmlLabels": False},
                    "deterministicIds": True,
                    "fontFamily": "sans-serif",
                }
                svg = page.evaluate(
                    "async ([text, settings]) => { mermaid.initialize(settings);"
                    " return (await mermaid.render('diagram', text)).svg; }",
                    [text, settings],
                )
                drawn.write_text(svg + "\n")
                page.close()
        browser.close()


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
