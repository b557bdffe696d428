"""Lean: whether Lean 4 takes a text for a proof of a theorem, asked of a server of Kimina's.

POST /verify {"codes": [{"custom_id", "proof"}], "timeout", "infotree_type"}, answered by
{"results": [{"custom_id", "error", "response"}]}; a response is {"messages": [{"severity", "pos",
"data"}]}, or {"message"} where Lean's REPL failed. Source: project-numina/kimina-lean-server
5aaecfc, server/routers/backward.py, and 137f456, client/kimina/models.py.

That a file has no error and no `sorry` says little: an added axiom has neither. So a file states
the row's theorem before the completion, under a name that no completion can know, then the
completion, then a theorem of that type by the completion's, and prints on which axioms it rests.
"""

import re
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from groupwise_proofs.theorem import FormatError, Theorem, named, text_of
from groupwise_sandbox.process import SandboxError
from groupwise_sandbox.service import PassingError, Service

AXIOMS = ("propext", "Classical.choice", "Quot.sound")
"""What Lean's own mathematics rests on."""
PROTOCOL = "Kimina's protocol, and `server` its address up to /verify"
MARGIN = 30.0
"""Seconds beside a proof's own in which the server must answer: requests wait there, too."""
REFUSED = (
    *("admit", "axiom", "binder_predicate", "by_elab", "csimp", "dsimproc", "export", "extern"),
    *("implemented_by", "import", "include_str", "infix", "infixl", "infixr", "initialize"),
    *("instance", "Lean", "native", "native_decide", "opaque", "postfix", "prefix", "private"),
    *("simproc", "sorry", "unif_hint", "unsafe"),
)
"""Words that declare without a proof, that run programs, or that change what words mean."""
_KINDS = re.compile(r"(?:elab|macro|notation|syntax)|(?:builtin|declare|register|run)_")
"""How further such words begin: libraries add their own, as Mathlib does with `notation3`."""
_OPTIONS = ("maxHeartbeats", "maxRecDepth")
_WORD = re.compile(r"#[a-z]\w*|set_option\s+\S+|\.?[^\W\d]\w*[!?]?")
_OPENING, _NESTED, _LINE_END = re.compile("/-|--"), re.compile("/-|-/"), re.compile("\n|$")
_STATEMENT = re.compile(r"(?:theorem|lemma)\s+([^\s:({\[]+)")
_END = re.compile(r":=\s*(?:by)?\s*(?:sorry)?\s*$")
_RESTS = re.compile(r"'[^']*' (?:does not depend on any axioms|depends on axioms: \[([^\]]*)\])")


class Lean:
    """Proves on a server. Its methods may be called in any thread."""

    refusal = None

    def __init__(
        self,
        server: str,
        axioms: Collection[str],
        *,
        timeout: float,
        parallel: int,
        retries: int,
        key: str | None,
    ) -> None:
        """timeout: seconds of wall time of one proof; parallel: proofs at the same time."""
        address = f"{server.rstrip('/').removesuffix('/verify')}/verify"
        self._axioms, self._timeout, self.parallel = {*axioms}, timeout, parallel
        self._service = Service(
            address, parallel=parallel, retries=retries, protocol=PROTOCOL, key=key
        )

    def theorem(self, row: Mapping[str, Any]) -> Theorem:
        """A row's theorem; `sorry` after it is left out. Raises FormatError."""
        header, text = text_of(row)
        places = [match.start() for match in _STATEMENT.finditer(text)]
        start = places[-1] if places else 0
        statement, count = _END.subn(":=", text[start:].strip())
        if not count:
            raise FormatError(f"the statement does not end with `:=`: {text[-60:]!r}")
        name = named(_STATEMENT, statement)
        return Theorem(f"{header}\n{text[:start]}", statement, name)

    def check(self, theorem: Theorem) -> None:
        """Nothing: a server compiles a theorem with its proof alone."""

    def complaint(self, theorem: Theorem, text: str, left: Callable[[], float]) -> str | None:
        """Why a text does not prove a theorem, or None. Raises SandboxError."""
        if (why := refused_word(theorem, text)) is not None:
            return why
        space = f"Stated{secrets.token_hex(8)}"
        body = {
            "codes": [{"custom_id": space, "proof": file_of(theorem, text, space)}],
            "timeout": max(1, round(self._timeout)),
            "infotree_type": None,
        }
        response = self._service.ask(body, _response, seconds=self._timeout + MARGIN, left=left)
        if isinstance(response, str):
            return response
        for each in response:
            if each.get("severity") == "error":
                return f"{' '.join(str(each.get('data')).split()):.200}"
        return self._assumed([str(each.get("data")) for each in response], f"'{space}.asked'")

    def close(self) -> None:
        """Ends the connections."""
        self._service.close()

    def _assumed(self, messages: Sequence[str], name: str) -> str | None:
        """What a proof rests on and must not, or None."""
        own = [each for each in messages if each.startswith(name)]
        match = _RESTS.fullmatch(own[0].strip()) if len(own) == 1 else None
        if match is None:
            return "it is not known what it rests on"
        axioms = [each.strip() for each in (match[1] or "").split(",") if each.strip()]
        return next((f"it rests on {each}" for each in axioms if each not in self._axioms), None)


def refused_word(theorem: Theorem, text: str) -> str | None:
    """A word that no proof needs, outside comments, or None.

    Lean's words are not a fixed list, so this one is of what is known to be refused; lines that
    repeat the header are not looked at.
    """
    for word in _WORD.findall(_without_comments(_without_header(theorem, text))):
        option = word.split()[-1] if word.startswith("set_option") else None
        is_refused = word.lstrip(".") in REFUSED or _KINDS.match(word) or word.startswith("#")
        if is_refused or (option and option not in _OPTIONS):
            return f"the word {word}"
    return None


def file_of(theorem: Theorem, text: str, space: str) -> str:
    """The file that is sent; space: a name for what is not the completion's."""
    own = _without_header(theorem, text).strip("\n")
    if " ".join(theorem.statement.split()) not in " ".join(own.split()):
        opening = "" if own.split()[:1] == ["by"] else " by"
        own = f"{theorem.statement}{opening}\n{own}"
    return (
        f"{theorem.header}\n"
        f"namespace {space}\n{theorem.statement} sorry\nend {space}\n"
        f"{own}\n"
        f"theorem {space}.asked : type_of% @{space}.{theorem.name} := @{theorem.name}\n"
        f"#print axioms {space}.asked\n"
    )


def _without_comments(text: str) -> str:
    """A text without comments; with them where a quoted sign could be taken for one's beginning."""
    if '"' in text or "«" in text:
        return text
    parts, depth, place = list[str](), 0, 0
    while match := (_NESTED if depth else _OPENING).search(text, place):
        if not depth:
            parts.append(text[place : match.start()])
        if match[0] == "--":
            place = _LINE_END.search(text, match.end()).start()  # type: ignore[union-attr]
            continue
        depth += 1 if match[0] == "/-" else -1
        place = match.end()
    return " ".join([*parts, "" if depth else text[place:]])


def _without_header(theorem: Theorem, text: str) -> str:
    """A text without the lines that its row begins with: imports stand at a file's top alone."""
    known = {line.strip() for line in theorem.header.splitlines()} - {""}
    return "\n".join(line for line in text.splitlines() if line.strip() not in known)


def _response(answer: Any) -> str | Sequence[Mapping[str, Any]]:
    """Lean's messages on the one file; text: it took too much.

    Raises PassingError where the server failed.
    """
    if answer is None:
        return "printed too much"
    results = answer.get("results") if isinstance(answer, dict) else None
    if not isinstance(results, list) or len(results) != 1 or not isinstance(results[0], dict):
        raise PassingError("answered without a result")
    error, response = results[0].get("error"), results[0].get("response")
    if error:
        if "timed out" in str(error).lower():
            return "took too much time"
        raise PassingError(f"failed itself: {error!s:.200}")
    if not isinstance(response, dict) or "message" in response:
        words = response.get("message") if isinstance(response, dict) else "no response"
        raise PassingError(f"failed itself: {words!s:.200}")
    messages = response.get("messages") or []
    if not all(isinstance(each, dict) for each in messages):
        raise SandboxError("the server answered with messages that are none")
    return messages
