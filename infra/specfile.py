"""Reading a specification from a YAML file: safe YAML only, and errors that name the file and the line or key."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from regrow.search.errors import SpecError
from regrow.search.spec import Spec
from regrow.tasks.errors import UserError


class _Loader(yaml.SafeLoader):
    """Safe YAML that refuses a key given twice instead of keeping the last."""


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        if key_node.tag == "tag:yaml.org,2002:merge":
            continue
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, Hashable):
            raise yaml.constructor.ConstructorError(None, None, "a list or map cannot be a key", key_node.start_mark)
        if key in seen:
            raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} is given twice", key_node.start_mark)
        seen.add(key)
    loader.flatten_mapping(node)
    return loader.construct_mapping(node, deep=True)


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def read_spec(path: Path) -> Spec:
    """The specification in a file; its folder becomes `working_dir` where none is given.

    Raises UserError for a file that cannot be read or is not YAML, SpecError for what it says.
    """
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)  # noqa: S506 - derives from SafeLoader
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file; give the path of the experiment's YAML file") from None
    except IsADirectoryError:
        raise UserError(f"{path}: is a folder; give the path of the experiment's YAML file") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}; check its permissions") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: is not text in UTF-8 (byte {error.start + 1}); save it as UTF-8") from error
    except yaml.YAMLError as error:
        raise _invalid(path, error) from error
    except RecursionError:
        raise UserError(f"{path}: is nested too deeply; see `regrow schema` for its form") from None
    except ValueError as error:  # a date or number that has the form of one, but is none
        raise UserError(f"{path}: not valid YAML: {error}; put quotes around what is text") from error
    if not isinstance(data, dict):
        found = _CONTENTS.get(type(data), "holds a single value")
        raise UserError(f"{path}: {found}, not a map of keys; see `regrow schema`")
    folder = data.get("working_dir")
    if folder is None or isinstance(folder, str):
        data = {**data, "working_dir": str((path.parent / Path(folder or ".").expanduser()).resolve())}
    spec = Spec.parse(data, where=str(path))
    if not Path(spec.working_dir or ".").is_dir():
        raise SpecError(
            key="working_dir", value=folder, problem=f"there is no folder {spec.working_dir}",
            hint="write it relative to the specification's folder",
        ).at(str(path))
    if spec.trainable == "pickled":
        raise SpecError(
            key="trainable", value=spec.trainable, problem="is for experiments from Python", hint="write file.py:function"
        ).at(str(path))
    place = spec.trainable.partition(":")[0]
    if place.endswith(".py") and not Path(spec.working_dir or ".", place).is_file():
        raise SpecError(
            key="trainable", value=spec.trainable, problem=f"there is no file {Path(spec.working_dir or '.', place)}",
            hint="write it relative to the specification's folder",
        ).at(str(path))
    return spec


_CONTENTS = {type(None): "is empty", list: "holds a list"}


def _invalid(path: Path, error: yaml.YAMLError) -> UserError:
    """Its line, and what PyYAML says of it; for what people stumble over, what to do."""
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
    problem = " ".join(problem.split())
    if "'\\t'" in problem:
        problem = "there is a tab; indent with spaces"
    elif problem.startswith("could not determine a constructor for the tag"):
        tag = problem.rpartition(" ")[2].strip("'").replace("tag:yaml.org,2002:", "!!")
        problem = f"the tag {tag} is not taken; write plain values"
    where = f"{path}:{mark.line + 1}" if mark is not None else str(path)
    return UserError(f"{where}: not valid YAML: {problem}")
