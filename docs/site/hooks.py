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

from docs.site import diagrams, reference

_MARK = re.compile(r"^ *<!-- test: .*?-->\n", re.MULTILINE | re.DOTALL)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The page as it is to be rendered. Raises for a diagram that was not drawn, and for an unknown
    generated part.
    """
    markdown = reference.for_the_site(_MARK.sub("", markdown))
    return diagrams.as_pictures(markdown, page.file.src_uri)
