"""Languages: how programs of other languages than Python are compiled and run."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

PYTHON = ("python", "python3", "py")
"""Names of the language that needs none of this."""


@dataclass(frozen=True, kw_only=True)
class Language:
    """One that a program of the machine compiles or runs."""

    title: str
    names: Sequence[str]
    """As rows and fences have it, in small letters."""
    tool: str
    """The compiler or interpreter."""
    package: str
    """Where Debian has it."""
    source: str
    """The name of the program's file."""
    compiling: str = ""
    """A command for a shell, by which `program` is made of the source; none: it is interpreted."""
    probe: str
    """A program that prints the number that it reads, plus one."""
    running: Sequence[str] = ()
    """An interpreter's arguments before the source; `{memory}` stands for MiB of its heap."""
    base: int = 0
    """Bytes of memory that an interpreter takes itself."""
    reserve: int = 32 << 20
    """Bytes of address space beside it: libraries, and what is reserved and never used."""
    stack: int = 64 << 20
    """Bytes; a thread's, too."""


_C_PROBE = '#include <stdio.h>\nint main() { int n; scanf("%d", &n); printf("%d\\n", n + 1); }\n'
_CPP_PROBE = "#include <iostream>\nint main() { int n; std::cin >> n; std::cout << n + 1; }\n"
_JAVASCRIPT_PROBE = "console.log(Number(require('fs').readFileSync('/dev/stdin', 'utf8')) + 1)\n"
LANGUAGES: Mapping[str, Language] = {
    "c": Language(
        title="C",
        names=("c", "gcc"),
        tool="gcc",
        package="gcc",
        source="program.c",
        compiling="gcc -O2 -std=gnu17 -w -o program program.c -lm",
        probe=_C_PROBE,
    ),
    "cpp": Language(
        title="C++",
        names=("c++", "cc", "cpp", "cxx", "g++"),
        tool="g++",
        package="g++",
        source="program.cpp",
        compiling="g++ -O2 -std=gnu++20 -w -o program program.cpp",
        probe=_CPP_PROBE,
    ),
    "javascript": Language(
        title="JavaScript",
        names=("javascript", "js", "node", "nodejs"),
        tool="node",
        package="nodejs",
        source="program.js",
        probe=_JAVASCRIPT_PROBE,
        # Its heap is bounded below its memory, so that it says what it lacks.
        running=("node", "--max-old-space-size={memory}"),
        base=128 << 20,
        reserve=2 << 30,
        stack=8 << 20,
    ),
}
"""By the names that options have for them."""


_OTHERS = """
ada apl assembly awk bash basic c# clojure cobol coffeescript crystal csharp cuda d dart delphi
elixir elm erlang f# fortran fsharp go golang groovy haskell java julia kotlin lean lisp lua
mathematica matlab mojo mono nasm nim objective ocaml octave pascal perl php powershell prolog pypy
r racket ruby rust scala scheme sh shell smalltalk solidity sql swift tcl ts typescript vb verilog
vhdl visual zig
"""
"""The first words of languages that are not run here."""


def is_natural(text: str) -> bool:
    """Whether a name is not known to be a programming language's, such as "en" or "English"."""
    return named(text) is None and _first_word(text) not in _OTHERS.split()


def named(text: str) -> str | None:
    """The language of a name such as "GNU C++17 (64)", "python3" or "js"; None: an unknown one."""
    name = _first_word(text)
    if name in PYTHON:
        return "python"
    return next((key for key, each in LANGUAGES.items() if name in each.names), None)


def _first_word(text: str) -> str:
    name = text.strip().lower().removeprefix("gnu ")
    match = re.match(r"[a-z]+(?:\+\+|#|\.js)?", name)
    return match.group().replace(".js", "") if match else name
