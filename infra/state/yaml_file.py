"""Reading and writing YAML files of people: safe, with errors that name the line or key."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import yaml

from regrow.infra.machine.given_files import checked
from regrow.search.errors import SpecError
from regrow.tasks.errors import UserError

MOST_VALUES = 1_000_000
"""Most values in a file. A few lines of anchors within anchors can expand to billions."""

_MOST_BYTES = 16 << 20
"""Most bytes of a file: the reader takes some 10 s for them."""


class _Loader(yaml.SafeLoader):
    """Safe YAML that refuses a key given twice instead of keeping the last, and reads plain scalars
    as YAML 1.2 does.

    PyYAML implements YAML 1.1, where 1e-4 is text, 010 the number 8, 12:30 the number 750 and
    2024-01-01 a date. `yes`, `no`, `on` and `off` are booleans in 1.1 and text in 1.2. Either
    reading would surprise some users, who would train something else than they wrote, so they are
    refused.
    """

    yaml_implicit_resolvers = {  # noqa: RUF012 - PyYAML expects it as a class attribute
        first: [
            one
            for one in resolvers
            if one[0].rpartition(":")[2] not in ("bool", "int", "float", "timestamp", "value")
        ]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


_PLAIN = {
    "bool": (r"(?i:true|false|yes|no|on|off)", "tTfFyYnNoO"),
    "int": (r"[-+]?(?:0b[01_]+|0o[0-7_]+|0x[0-9a-fA-F_]+|[0-9][0-9_]*)", "-+0123456789"),
    "float": (
        r"[-+]?(?:(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)?|[0-9][0-9_]*[eE][-+]?[0-9]+|\.(?i:inf))|\.(?i:nan)",
        "-+.0123456789",
    ),
}
"""For each type of plain scalar: its form, and the characters it may begin with."""


class _Dumper(yaml.SafeDumper):
    """Quotes text that `_Loader` or another reader would not read as text."""


for _kind, (_form, _first) in _PLAIN.items():
    _scalar = f"tag:yaml.org,2002:{_kind}", re.compile(rf"(?:{_form})\Z"), list(_first)
    _Loader.add_implicit_resolver(*_scalar)
    _Dumper.add_implicit_resolver(*_scalar)


def write_map(data: dict[str, Any]) -> bytes:
    """Return plain data as YAML that `read_map` reads back unchanged."""
    written: bytes = yaml.dump(
        data,
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        width=100,
        default_flow_style=None,
        encoding="utf-8",
    )
    return written


_BOOLEAN, _TEXT = "tag:yaml.org,2002:bool", "tag:yaml.org,2002:str"


class _Unclear(yaml.constructor.ConstructorError):
    """Valid YAML that has two possible meanings."""


def _boolean(_loader: _Loader, node: yaml.ScalarNode) -> bool:
    written = node.value.lower()
    if written in ("true", "false"):
        return bool(written == "true")
    meant = "true" if written in ("yes", "on") else "false"
    hint = f'write {meant}, or "{node.value}" in quotes if the text is meant'
    problem = f"{node.value}: is {meant} to some and text to others; {hint}"
    raise _Unclear(None, None, problem, node.start_mark)


_Loader.add_constructor(_BOOLEAN, _boolean)


def _whole(_loader: _Loader, node: yaml.ScalarNode) -> int:
    digits = node.value.replace("_", "")
    base = _BASES.get(digits.lstrip("+-")[:2], 10)
    try:
        return int(digits, base)
    except ValueError:
        if len(digits) <= _FEW_DIGITS:
            raise
        problem = f"a number of {len(digits):,} digits is longer than any that is read"
        raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from None


_FEW_DIGITS = 4000
"""Digits that Python reads by its default, which is 4,300."""
_BASES = {"0b": 2, "0o": 8, "0x": 16}
_Loader.add_constructor("tag:yaml.org,2002:int", _whole)


def _text(_loader: _Loader, node: yaml.ScalarNode) -> str:
    """Return the text with its surrogate pairs joined, which JSON writes as two halves."""
    written = str(node.value)
    try:
        return written.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        problem = (
            f"{written!r} has half of a surrogate pair, which is no letter; write the whole one"
        )
        raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from None


_Loader.add_constructor(_TEXT, _text)


def _weigh(node: yaml.Node, sizes: dict[yaml.Node, int]) -> int:
    """Return how many values are in a node, counting those of anchors once per reference. Raises
    ConstructorError for more than MOST_VALUES, and for a node within itself.
    """
    if node in sizes:
        if not sizes[node]:
            raise yaml.constructor.ConstructorError(
                None, None, "a value contains itself", node.start_mark
            )
        return sizes[node]
    sizes[node] = 0
    parts = node.value if isinstance(node, yaml.SequenceNode | yaml.MappingNode) else ()
    size = 1 + sum(
        _weigh(one, sizes)
        for part in parts
        for one in (part if isinstance(part, tuple) else (part,))
    )
    if size > MOST_VALUES:
        problem = f"more than {MOST_VALUES:,} values, by anchors within anchors"
        raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
    sizes[node] = size
    return size


def _loaded(text: str) -> Any:
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _weigh(node, {})
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        if key_node.tag == "tag:yaml.org,2002:merge":
            continue
        if key_node.tag == _BOOLEAN and key_node.value.lower() not in ("true", "false"):
            key_node.tag = _TEXT  # as a key, no user means a boolean: `on: aws`
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, Hashable):
            raise yaml.constructor.ConstructorError(
                None, None, "a list or map cannot be a key", key_node.start_mark
            )
        if key in seen:
            raise yaml.constructor.ConstructorError(
                None, None, f"the key {key!r} is given twice", key_node.start_mark
            )
        seen.add(key)
    loader.flatten_mapping(node)
    return loader.construct_mapping(node, deep=True)


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def read_map(path: Path, what: str, see: str) -> dict[str, Any]:
    """Return the map of keys in the YAML file of a `what`; `see` is the command that shows its
    form.

    Raises UserError for a file that cannot be read or is not YAML.
    """
    try:
        data = _loaded(checked(path, _MOST_BYTES).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(
            f"{path}: there is no such file; give the path of the {what}'s YAML file"
        ) from None
    except IsADirectoryError:
        raise UserError(f"{path}: is a folder; give the path of the {what}'s YAML file") from None
    except OSError as error:
        raise UserError(
            f"{path}: cannot be read: {error.strerror}; check its permissions"
        ) from error
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}: is not text in UTF-8 (byte {error.start + 1}); save it as UTF-8"
        ) from error
    except yaml.YAMLError as error:
        raise _invalid(path, error) from error
    except RecursionError:
        raise UserError(f"{path}: is nested too deeply; see `{see}` for its form") from None
    except ValueError as error:  # a date or number of the right form, but not valid
        raise UserError(
            f"{path}: not valid YAML: {error}; put quotes around what is text"
        ) from error
    if not isinstance(data, dict):
        found = _CONTENTS.get(type(data), "holds a single value")
        raise UserError(f"{path}: {found}, not a map of keys; see `{see}`")
    return data


def set_values(given: Sequence[str]) -> dict[str, Any]:
    """Return the values of `--set KEY=VALUE` by key, read as in a file. Raises UserError."""
    found: dict[str, Any] = {}
    for text in given:
        key, equals, written = text.partition("=")
        if not equals or not all(key.split(".")):
            raise UserError(f"--set {text}: write KEY=VALUE, such as trials=40 or space.lr=0.1")
        if not written.strip():  # as of an unset variable of a shell: YAML reads null
            raise UserError(f"--set {text}: has no value; null removes the key, '' is empty text")
        try:
            found[key] = _loaded(written)
        except (yaml.YAMLError, RecursionError, ValueError) as error:
            problem = str(getattr(error, "problem", None) or error)
            raise UserError(f"--set {text}: {written!r} is not valid YAML: {problem}") from None
    return found


def located(error: SpecError, path: Path) -> SpecError:
    """Return the error with its place in a file."""
    return error.at(place(error.key, path))


def place(key: str, path: Path) -> str:
    """Return where a dotted key, or its longest prefix, is in a file: `sweep.yaml:7`."""
    try:
        node = yaml.compose(path.read_text(encoding="utf-8"), Loader=_Loader)
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        node = None
    line = _line(node, key.split("."))
    return str(path) if line is None else f"{path}:{line}"


def _line(node: yaml.Node | None, path: list[str]) -> int | None:
    """Return the line of the key at a path below a node, or of the last existing key on the way to
    it; None if not even the first exists.
    """
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if path and isinstance(key, yaml.ScalarNode) and key.value == path[0]:
                below = _line(value, path[1:])
                return int(key.start_mark.line) + 1 if below is None else below
    if (
        isinstance(node, yaml.SequenceNode)
        and path
        and path[0].isdigit()
        and int(path[0]) < len(node.value)
    ):
        item = node.value[int(path[0])]
        below = _line(item, path[1:])
        return int(item.start_mark.line) + 1 if below is None else below
    return None


_CONTENTS = {type(None): "is empty", list: "holds a list"}


def _invalid(path: Path, error: yaml.YAMLError) -> UserError:
    """Return an error with the line and PyYAML's words; for frequent mistakes, what to do."""
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
    problem = " ".join(problem.split())
    if "'\\t'" in problem:
        problem = "there is a tab; indent with spaces"
    elif problem.startswith("could not determine a constructor for the tag"):
        tag = problem.rpartition(" ")[2].strip("'").replace("tag:yaml.org,2002:", "!!")
        problem = f"the tag {tag} is not taken; write plain values"
    where = f"{path}:{mark.line + 1}" if mark is not None else str(path)
    if isinstance(error, _Unclear):
        return UserError(f"{where}: {problem}")
    return UserError(f"{where}: not valid YAML: {problem}")
