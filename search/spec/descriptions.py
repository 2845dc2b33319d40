"""Descriptions for a model's JSON schema: the texts below its fields in the source.

Pydantic can do this itself (`use_attribute_docstrings`), but reads the source when a class is made:
70 ms for each process that imports the specification. Here it is read only when the schema is
requested.
"""

from __future__ import annotations

import ast
import inspect
import textwrap


def descriptions(model: type) -> dict[str, str]:
    """Return the text below each field that has one, as one line."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(model))).body[0]
    assert isinstance(tree, ast.ClassDef)
    found: dict[str, str] = {}
    for field, below in zip(tree.body, tree.body[1:], strict=False):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(
                value=ast.Constant(value=str(text))
            ):
                found[name] = " ".join(text.split())
    return found
