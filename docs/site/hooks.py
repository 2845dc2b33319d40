"""What MkDocs does to each page of the site: the generated references, diagrams as pictures, no
marks of the tests.

Only the joints are here; the texts are made in the modules beside this one.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # MkDocs loads a hook by its path

from docs.site import command_line, diagrams, events, specification

GENERATED = {
    "specification": specification.page,
    "command line": command_line.page,
    "domains": specification.domains,
    "events": events.page,
    "prefect_events": events.of_prefect,
}
_GENERATED = re.compile(r"^<!-- generated: ([a-z ]+) -->$", re.MULTILINE)
_MARK = re.compile(r"^ *<!-- test: .*?-->\n", re.MULTILINE | re.DOTALL)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The page as it is to be rendered. Raises for a diagram that was not drawn, and for an unknown
    generated part.
    """
    markdown = _GENERATED.sub(lambda mark: GENERATED[mark[1]](), _MARK.sub("", markdown))
    return diagrams.as_pictures(markdown, page.file.src_uri)
