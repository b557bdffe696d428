"""Read YAML into plain data with the line of each key, and write it.

Scalars follow YAML 1.2: `1e-4` is a number, `010` is 10, and `yes` and `1:30` are texts. Aliases
that multiply, very long numbers, deep nesting and tags for Python objects are refused.
"""

import re
from collections.abc import Mapping
from typing import Any

import yaml
from yaml.reader import ReaderError

from groupwise.kit.errors import UserError
from groupwise.kit.section import KeyPath

MOST_COPIES = 20_000
"""The most values that aliases may repeat."""
DEEPEST = 100
"""The deepest nesting: keys and list items from the top to a value."""
LONGEST = 100
"""The most digits of a whole number."""

_TAG = "tag:yaml.org,2002:"
_SCALARS = (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", "-+.0123456789"),
    ("float", r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", "-+."),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("merge", r"<<", "<"),
)
_TAGS = frozenset(_TAG + name for name in ("bool", "int", "float", "null", "str"))
_PLAIN = (bool, int, float, str, type(None))
_TOO_DEEP = "nested too deeply, or inside itself"


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers = {}  # noqa: RUF012 (PyYAML's interface; filled below)

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Stop early at deep nesting, where PyYAML's time grows with the square of the depth."""
        self._depth += 1
        if self._depth > DEEPEST + 1:
            raise RecursionError
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


class _Dumper(yaml.SafeDumper):
    # The same scalars as the loader's, so that the dumper quotes texts that would be misread.
    yaml_implicit_resolvers = {}  # noqa: RUF012

    def ignore_aliases(self, _: Any) -> bool:
        return True


for _name, _pattern, _first in _SCALARS:
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(_TAG + _name, re.compile(f"^(?:{_pattern})$"), list(_first))


def _integer(_: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    if len(node.value) > LONGEST:
        problem = f"a whole number of {len(node.value):,} digits; {LONGEST} are the most"
        raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
    return int(node.value, 0 if node.value[:2] in ("0o", "0x") else 10)


_Loader.add_constructor(_TAG + "int", _integer)


class Lines(dict[KeyPath, int]):
    """Line numbers by key path, from 1."""

    def of(self, path: KeyPath) -> int | None:
        """The line of the path, or of the closest section around it with a known line."""
        for end in range(len(path), -1, -1):
            if path[:end] in self:
                return self[path[:end]]
        return None


def read(text: str, source: str) -> tuple[Any, Lines]:
    """The data of one YAML document and its lines; raises UserError that names source and line."""
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        builder = _Builder(loader)
        data = None if node is None else builder.build(node, ())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f", line {mark.line + 1}" if mark else ""
        raise UserError(f"{source}{where}: {_problem(error)}") from error
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        character = f"U+{ord(text[error.position]):04X}"
        problem = f"the character {character} has no place in YAML"
        raise UserError(f"{source}, line {line}: {problem}") from error
    except RecursionError as error:
        raise UserError(f"{source}: {_TOO_DEEP}") from error
    except (ValueError, OverflowError) as error:  # an invalid escape, a huge %YAML version
        raise UserError(f"{source} cannot be read as YAML: {error}") from error
    return data, builder.lines


def write(data: Mapping[str, Any]) -> str:
    """YAML of which `read` makes `plain(data)`, keys in their given order."""
    return yaml.dump(plain(data), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


def plain(data: Any) -> Any:
    """Data as YAML can hold it: keys are text, and so is a path or any other object of Python's."""
    if isinstance(data, Mapping):
        return {str(key): plain(value) for key, value in data.items()}
    if isinstance(data, set):
        data = sorted(data, key=repr)
    if isinstance(data, list | tuple):
        return [plain(item) for item in data]
    return data if type(data) in _PLAIN else str(data)


_SECOND_COLON = (
    "a second colon: a text with `: ` in it needs quotes, and keys of one section the same indent, "
    "below a key without a value"
)
_INDENT = (
    "this line does not fit those above it: keys of one section have the same indent, and each "
    "item of a list begins with `- `"
)
_IN_WORDS = (
    # Without the alias's name, which may be an unquoted password.
    ("found undefined alias", "a text that begins with * needs quotes"),
    ("found character '\\t'", "a tab; indent with spaces"),
    ("found character", "a text that begins with %, @ or ` needs quotes"),
    ("found unexpected end of stream", "a quote is not closed"),
    ("found unknown escape", "a backslash in a text in double quotes; use single quotes"),
    ("expected ',' or ']'", "a [ is not closed, or a comma is missing in the list"),
    ("expected ',' or '}'", "a { is not closed, or a comma is missing between its keys"),
    ("could not find expected ':'", "expected `key: value`"),
    ("mapping values are not allowed", _SECOND_COLON),
    ("sequence entries are not allowed", "a list begins in a line of its own, below its key"),
    ("expected <block end>", _INDENT),
    ("expected the node content", "a value is missing"),
)
"""What PyYAML's messages begin with, and the same for people who do not know its terms."""


def _problem(error: yaml.MarkedYAMLError) -> str:
    """PyYAML's message in plain words."""
    problem = str(error.problem or error.context)
    plainly = next((words for begin, words in _IN_WORDS if problem.startswith(begin)), problem)
    mark = error.problem_mark
    if mark and "${" in (mark.get_snippet() or ""):
        return f"{plainly}; inside [...] or {{...}}, ${{NAME}} needs quotes"
    return plainly


class _Builder:
    """Builds data from YAML nodes, and counts the values that aliases repeat."""

    def __init__(self, loader: _Loader) -> None:
        self.loader, self.lines = loader, Lines()
        self._seen: set[int] = set()
        self._copies = 0

    def build(self, node: yaml.Node, path: KeyPath) -> Any:
        self._count(node, path)
        self.lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
            return [self.build(item, (*path, i)) for i, item in enumerate(node.value)]
        if isinstance(node, yaml.ScalarNode) and node.tag in _TAGS:
            return self._scalar(node)
        raise _mistake(_tagged(node), node)

    def _count(self, node: yaml.Node, path: KeyPath) -> None:
        """Refuse a node that is nested too deeply or repeated too often."""
        if len(path) > DEEPEST:
            raise _mistake(_TOO_DEEP, node)
        self._copies += id(node) in self._seen
        self._seen.add(id(node))
        if self._copies > MOST_COPIES:
            raise _mistake(f"aliases repeat more than {MOST_COPIES:,} values", node)

    def _scalar(self, node: yaml.ScalarNode) -> Any:
        try:
            return self.loader.construct_object(node)
        except (ValueError, KeyError, IndexError) as error:  # `!!int abc`
            kind = node.tag.removeprefix(_TAG)
            raise _mistake(f"expected a value of its tag, !!{kind}", node) from error

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        key_lines: dict[str, int] = {}
        for key, _ in node.value:
            name, line = _key(key), key.start_mark.line + 1
            if name in key_lines and not _merges(key):
                dotted = ".".join(map(str, (*path, name)))
                raise _mistake(f"{dotted}: already set in line {key_lines[name]}", key)
            key_lines[name] = line
        built: dict[str, Any] = {}
        # Merged keys come first, so that the section's own follow and win.
        for key, value in node.value:
            if _merges(key):
                built |= self._merged(value, path)
        for key, value in node.value:
            if not _merges(key):
                place = (*path, _key(key))
                self.lines[place] = key.start_mark.line + 1
                built[_key(key)] = self.build(value, place)
        return built

    def _merged(self, node: yaml.Node, path: KeyPath) -> dict[str, Any]:
        """The keys that `<<` merges: of one section, or of several, of which the first wins."""
        is_list = isinstance(node, yaml.SequenceNode)
        built: dict[str, Any] = {}
        for section in reversed(node.value) if is_list else [node]:
            if not isinstance(section, yaml.MappingNode):
                raise _mistake("expected a section of keys, or a list of such, to merge", section)
            built |= self.build(section, path)
        return built


def _mistake(problem: str, node: yaml.Node) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)


def _tagged(node: yaml.Node) -> str:
    return f"{node.tag[:60]!r}: a text that begins with ! needs quotes"


def _merges(key: yaml.Node) -> bool:
    return key.tag == _TAG + "merge"


def _key(node: yaml.Node) -> str:
    """A key as text, whatever it looks like: `on`, `1` and `null` are names here."""
    if not isinstance(node, yaml.ScalarNode):
        raise _mistake("a key must be text", node)
    if node.tag not in (*_TAGS, _TAG + "merge"):
        raise _mistake(_tagged(node), node)
    return str(node.value)
