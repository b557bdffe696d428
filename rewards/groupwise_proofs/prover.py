"""Prover: what judges proofs of one language: Coq on this machine, or Lean on a server."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from groupwise_proofs import coq_words
from groupwise_proofs.coq import Coq
from groupwise_proofs.theorem import Theorem
from groupwise_sandbox.sandbox import Sandbox


class Prover(Protocol):
    """Judges proofs; its methods may be called in any thread, and raise SandboxError where the
    prover itself fails, whatever the text is."""

    parallel: int
    """Proofs at the same time."""

    @property
    def refusal(self) -> str | None:
        """Why nothing can be proved, in a sentence, or None."""

    def theorem(self, row: Mapping[str, Any]) -> Theorem:
        """A row's theorem. Raises FormatError where it cannot be read."""

    def check(self, theorem: Theorem) -> None:
        """Raises FormatError for a theorem that does not compile."""

    def complaint(self, theorem: Theorem, text: str, left: Callable[[], float]) -> str | None:
        """Why a text does not prove a theorem, or None; left: seconds that the call has."""

    def close(self) -> None:
        """End what runs."""


class Here:
    """Coq on this machine: a text is proof if both the words and the kernel say so."""

    def __init__(self, sandbox: Sandbox, coq: Coq) -> None:
        self._sandbox, self._coq, self.parallel = sandbox, coq, sandbox.parallel

    @property
    def refusal(self) -> str | None:
        return self._coq.refusal

    def theorem(self, row: Mapping[str, Any]) -> Theorem:
        return coq_words.theorem_of(row)

    def check(self, theorem: Theorem) -> None:
        self._coq.check(theorem)

    def complaint(self, theorem: Theorem, text: str, left: Callable[[], float]) -> str | None:
        return coq_words.refusal(theorem, text) or self._coq.complaint(theorem, text)

    def close(self) -> None:
        self._sandbox.close()
