"""YAML read into plain data together with the line each key stands on, and written again.

The scalars are YAML 1.2's: `1e-4` is a number, while `yes`, `010` and `1:30` are not what YAML 1.1
makes of them.
"""

import re
from collections.abc import Mapping
from typing import Any

import yaml

from groupwise.errors import UserError

KeyPath = tuple[str | int, ...]

_TAG = "tag:yaml.org,2002:"
_SCALARS = (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", "-+.0123456789"),
    ("float", r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", "-+."),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("merge", r"<<", "<"),
)


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers = {}  # noqa: RUF012 (PyYAML's own way; filled in below)


class _Dumper(yaml.SafeDumper):
    # The same scalars as the loader's: only then does the dumper quote what would be misread.
    yaml_implicit_resolvers = {}  # noqa: RUF012

    def ignore_aliases(self, _: Any) -> bool:
        return True


for _name, _pattern, _first in _SCALARS:
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(_TAG + _name, re.compile(f"^(?:{_pattern})$"), list(_first))


def _integer(_: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    return int(node.value, 0 if node.value[:2] in ("0o", "0x") else 10)


_Loader.add_constructor(_TAG + "int", _integer)
# Paths and whatever else Python code put into options: written as text, never refused.
_Dumper.add_multi_representer(object, lambda dumper, data: dumper.represent_str(str(data)))


class Lines(dict[KeyPath, int]):
    """Line numbers by key path, from 1."""

    def of(self, path: KeyPath) -> int | None:
        """The line of the path, or of the closest section around it that has one."""
        for end in range(len(path), -1, -1):
            if path[:end] in self:
                return self[path[:end]]
        return None


def read(text: str, source: str) -> tuple[Any, Lines]:
    """The data of one YAML document and its lines; raises UserError that names source and line."""
    lines = Lines()
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        data = None if node is None else _build(loader, node, (), lines)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f", line {mark.line + 1}" if mark else ""
        raise UserError(f"{source}{where}: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise UserError(f"{source}: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        raise UserError(f"{source}: nested too deeply, or inside itself") from error
    return data, lines


def write(data: Mapping[str, Any]) -> str:
    """YAML that `read` reads back equal, keys in their given order."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


def _build(loader: _Loader, node: yaml.Node, path: KeyPath, lines: Lines) -> Any:
    lines.setdefault(path, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
        return _mapping(loader, node, path, lines)
    if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
        return [_build(loader, item, (*path, i), lines) for i, item in enumerate(node.value)]
    if isinstance(node, yaml.ScalarNode):
        return loader.construct_object(node)
    raise yaml.MarkedYAMLError(problem=f"unknown tag {node.tag!r}", problem_mark=node.start_mark)


def _mapping(
    loader: _Loader, node: yaml.MappingNode, path: KeyPath, lines: Lines
) -> dict[str, Any]:
    seen: dict[str, int] = {}
    for key, _ in node.value:
        name, line = _key(key), key.start_mark.line + 1
        if name in seen and name != "<<":
            raise yaml.MarkedYAMLError(
                problem=f"{'.'.join(map(str, (*path, name)))}: already given in line {seen[name]}",
                problem_mark=key.start_mark,
            )
        seen[name] = line
    loader.flatten_mapping(node)
    built: dict[str, Any] = {}
    # Merged keys come first, so that the section's own follow and win.
    for key, value in node.value:
        lines[(*path, _key(key))] = key.start_mark.line + 1
        built[_key(key)] = _build(loader, value, (*path, _key(key)), lines)
    return built


def _key(node: yaml.Node) -> str:
    """A key is text whatever it looks like: `on`, `1` and `null` are names here."""
    if not isinstance(node, yaml.ScalarNode):
        raise yaml.MarkedYAMLError(problem="a key must be text", problem_mark=node.start_mark)
    return str(node.value)
