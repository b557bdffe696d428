"""Coq: whether its kernel takes a text for a proof of a theorem.

Three files are compiled, each in a sandbox of its own. `Statement` has the row's theorem, admitted,
and is compiled before any completion. `Answer` is the completion. `Question` holds no word of it:
before it loads the answer it takes the type of the row's theorem, then defines a constant of that
type by the answer's, and prints on which axioms this rests. What the completion prints, writes or
redefines stays in its own run; only its compiled file goes on, whose proofs `coqchk` checks again,
since a file may have been forged.
"""

import shutil
from collections.abc import Collection, Mapping
from functools import cached_property, lru_cache

from groupwise_proofs.coq_words import REPEATED, WordError, first_word, sentences, states
from groupwise_proofs.theorem import FormatError, Theorem
from groupwise_sandbox import bubblewrap
from groupwise_sandbox.commands import Command
from groupwise_sandbox.process import Finished
from groupwise_sandbox.sandbox import Sandbox

ROOT = "Groupwise"
"""The library that the three files are in."""
SPACE = 64 << 20
"""Bytes of a folder: the largest compiled files."""
RESERVE = 2 << 30
"""Bytes of address space that OCaml and Coq's own libraries map."""
_FINDLIB = 'destdir="/usr/lib/ocaml"\npath="/usr/lib/ocaml:/usr/lib/ocaml/METAS"\n'
"""Where Debian's Coq looks for its plugins; the machine's own file is not in a sandbox."""
_OPTIONS = f"-q -Q . {ROOT} -w none"
_KEPT = 256
"""Compiled statements that are kept."""
_QUESTION = """
Require {root}.Statement.
Definition stated := ltac:(let type := type of @{root}.Statement.{name} in exact type).
Require {root}.Answer.
Definition asked : stated := @{root}.Answer.{name}.
Set Printing Width 1000.
Print Assumptions asked.
"""
_CLOSED = "Closed under the global context"


class Coq:
    """Proves by Debian's `coqc` and `coqchk`. Its methods may be called in any thread."""

    def __init__(self, sandbox: Sandbox, axioms: Collection[str]) -> None:
        """axioms: full names of those that a proof may rest on."""
        self._sandbox, self._axioms = sandbox, {*axioms}
        self._statement = lru_cache(_KEPT)(self._compiled_statement)

    @cached_property
    def refusal(self) -> str | None:
        """Why nothing can be proved on this machine, in a sentence, or None."""
        if (reason := self._sandbox.refusal) is not None:
            return f"a proof in Coq cannot be checked here: {reason}"
        if not all(shutil.which(each, path=bubblewrap.PATHS) for each in ("coqc", "coqchk")):
            return "a proof in Coq cannot be checked here: install the package coq"
        return None

    def check(self, theorem: Theorem) -> None:
        """Raises FormatError for a theorem that does not compile, and SandboxError."""
        self._statement(theorem)

    def complaint(self, theorem: Theorem, text: str) -> str | None:
        """Why a text does not prove a theorem, or None. Raises FormatError and SandboxError."""
        statement = self._statement(theorem)
        opening = [*_repeated(theorem.header), f"Require Import {ROOT}.Statement."]
        if not states(theorem, text):
            opening.append(theorem.statement)
        answer = "\n".join([*opening, text, ""])
        finished = self._compiled("Answer", answer, {"Statement.vo": statement})
        if (why := _failure(finished)) is not None:
            return why
        files = {"Statement.vo": statement, "Answer.vo": finished.stdout}
        question = _QUESTION.format(root=ROOT, name=theorem.name)
        asked = self._run(f"coqc {_OPTIONS} Question.v", {"Question.v": question.encode(), **files})
        if (why := _failure(asked)) is not None:
            return f"it proves another theorem: {why}"
        if (why := self._assumed(asked.stdout.decode("utf-8", "replace"))) is not None:
            return why
        checked = self._run(f"coqchk -silent -Q . {ROOT} -norec {ROOT}.Answer", files)
        return None if _failure(checked) is None else "coqchk refuses the compiled proof"

    def _compiled_statement(self, theorem: Theorem) -> bytes:
        text = f"{theorem.header}\n{theorem.statement}\nAdmitted.\n"
        finished = self._compiled("Statement", text, {})
        if (why := _failure(finished)) is not None:
            raise FormatError(f"the theorem does not compile: {why}")
        return finished.stdout

    def _compiled(self, name: str, text: str, files: Mapping[str, bytes]) -> Finished:
        """A run that prints a compiled file."""
        source = {f"{name}.v": text.encode("utf-8", "replace")}
        return self._run(f"coqc {_OPTIONS} {name}.v >&2 && exec cat {name}.vo", {**source, **files})

    def _run(self, line: str, files: Mapping[str, bytes]) -> Finished:
        command = Command(
            arguments=("/bin/sh", "-c", f"export OCAMLFIND_CONF=$PWD/findlib.conf; {line}"),
            files={"findlib.conf": _FINDLIB.encode(), **files},
            space=SPACE,
            scope="processes",
            reserve=RESERVE,
        )
        return self._sandbox.command(command)

    def _assumed(self, printed: str) -> str | None:
        """What a proof rests on and must not, or None.

        Whatever is not understood is refused: inductive types, fixed points and universes that are
        not checked have lines of their own.
        """
        lines = printed.splitlines()
        if lines == [_CLOSED]:
            return None
        if lines[:1] != ["Axioms:"]:
            return f"it is not known what it rests on: {printed!r:.60}"
        for line in lines[1:]:
            name, colon, _ = line.partition(" :")
            if line.startswith(" ") and line is not lines[1]:
                continue  # a type goes on
            if (line.rstrip() != name and not colon) or not self._is_allowed(name.strip()):
                return f"it rests on {line.strip():.60}"
        return None

    def _is_allowed(self, name: str) -> bool:
        """Whether a name, or one that is longer by its libraries, is allowed. One of the answer
        always has the answer's own in it, since that is not imported."""
        parts = name.split(".")
        if " " in name or "Answer" in parts or "Statement" in parts:
            return name in self._axioms
        return any(each.split(".")[-len(parts) :] == parts for each in self._axioms)


def _repeated(header: str) -> list[str]:
    """A header's sentences that have to stand in each file."""
    try:
        return [each for each in sentences(header) if first_word(each) in REPEATED]
    except WordError as error:
        raise FormatError(f"the column 'header' has {error}") from error


def _failure(finished: Finished) -> str | None:
    """Why a run failed, in the first words of Coq's error, or None."""
    if finished.ended == "exit" and finished.status == 0:
        return None
    _, _, error = finished.stderr.partition("Error:")
    words = " ".join(error.split())
    return f"{words:.200}" if words and finished.ended == "exit" else finished.why
