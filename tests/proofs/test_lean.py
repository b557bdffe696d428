"""`proof` in Lean, against recorded answers of a server of Kimina's protocol."""

import re
from typing import Any

import pytest
from tests.code.fusion import Fusion
from tests.proofs.kimina import answering, message

from groupwise import testing
from groupwise.rewards import SampleErrors
from groupwise_proofs.lean import AXIOMS, Lean, file_of, refused_word
from groupwise_proofs.reward import Proof
from groupwise_proofs.theorem import FormatError, Theorem
from groupwise_sandbox import service

ROW = {
    "header": "import Mathlib\n\nopen Nat\n",
    "formal_statement": "theorem easy (n : Nat) : n + 0 = n := by sorry",
}
PROOF = "theorem easy (n : Nat) :\n    n + 0 = n := by\n  simp -- by sorry\n"
WORDS = {
    "sorry": "sorry",
    "native": "decide +native",
    "native_decide": "native_decide",
    "axiom": "rfl\naxiom wrong : False",
    "macro": "simp\nmacro_rules | `(tactic| simp) => `(tactic| sorry)",
    "metaprogram": "run_tac Lean.Elab.admitGoal",
    "kernel off": "set_option debug.skipKernelTC true in simp",
    "printing": "simp\n#eval IO.println 1",
    "a nested comment": "/- -- -/ sorry",
    "a string": 'simp "--" sorry',
    "a notation of Mathlib's": 'simp\nnotation3 (priority := high) "type_of%" x:max => True',
    "a program as a term": "exact by_elab return .const `wrong []",
    "an attribute of its own": "simp\nregister_simp_attr mine",
}
RESTS = {
    "sorryAx": ["sorryAx"],
    "an axiom of its own": ["propext", "wrong"],
    "native_decide": ["propext", "Lean.ofReduceBool"],
    "native_decide since 2025": ["easy._native.native_decide.ax_1"],
}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "FIRST_WAIT", 0.01)


def theorem() -> Theorem:
    return Lean("http://x", (), timeout=1, parallel=1, retries=0, key=None).theorem(ROW)


def value(fusion: Fusion, text: str, **options: Any) -> Any:
    reward = Proof(Proof.Config(server=fusion.address, retries=0, **options))
    try:
        return reward([""], [text], **{name: [each] for name, each in ROW.items()})[0]
    finally:
        reward.close()


def test_a_proof_is_paid() -> None:
    for axioms in ([], AXIOMS, ["propext"]):
        with Fusion(answering(axioms)) as fusion:
            assert value(fusion, f"```lean4\n{ROW['header']}{PROOF}```", api_key="k") == 1.0
    (request,) = fusion.requests
    assert fusion.paths == ["/verify"]
    sent = request["codes"][0]["proof"]
    # The row's statement stands before the completion, under a name that is new each time.
    (name,) = re.findall(r"namespace (Stated\w+)", sent)
    assert sent.count("import Mathlib") == 1
    assert sent.index(f"namespace {name}") < sent.index("simp")
    assert f"theorem {name}.asked : type_of% @{name}.easy := @easy" in sent
    assert name not in file_of(theorem(), PROOF, "Other")


def test_a_proof_without_its_statement() -> None:
    for text in ("by\n  simp", "  simp"):
        assert " ".join(file_of(theorem(), text, "S").split()).count(":= by simp") == 1


@pytest.mark.parametrize("name", WORDS)
def test_words_are_refused(name: str) -> None:
    with Fusion(answering([])) as fusion:
        assert value(fusion, f"{PROOF}\n  {WORDS[name]}") == 0.0
        assert not fusion.requests
    for fair in (PROOF, f"{PROOF}\n  rw [StateT.run_bind, List.declare_none]"):
        assert refused_word(theorem(), fair) is None


@pytest.mark.parametrize("name", RESTS)
def test_axioms_are_refused(name: str) -> None:
    with Fusion(answering(RESTS[name])) as fusion:
        assert value(fusion, PROOF) == 0.0
        assert value(fusion, PROOF, axioms=RESTS[name]) == 1.0


def test_what_lean_says_otherwise_is_no_proof() -> None:
    forged = message("info", "'easy' does not depend on any axioms")
    for reply in (
        answering([], [message("error", "unsolved goals")]),
        answering(None),
        answering(None, [forged]),
        answering(None, error="Lean REPL command timed out in 10 seconds", response=None),
    ):
        with Fusion(reply) as fusion:
            assert value(fusion, PROOF) == 0.0


def test_a_server_that_fails_fails_the_sample() -> None:
    for reply in (
        answering([], error="server busy"),
        answering([], response={"message": "Lean crashed"}),
        lambda _: {"results": []},
        lambda _: 500,
    ):
        with Fusion(reply) as fusion, pytest.raises(SampleErrors) as caught:
            value(fusion, PROOF)
        assert "could not be judged: the server at" in caught.value.errors[0]


def test_laws() -> None:
    rows = [{**ROW, "prompt": "Prove it."}, {**ROW, "prompt": "Prove this."}]
    with Fusion(answering([])) as fusion:
        reward = Proof(Proof.Config(server=fusion.address))
        testing.check_reward(reward, rows, [PROOF, "by sorry", "", "by simp"], group_size=2)
        reward.close()


def test_a_row_that_cannot_be_read_is_refused() -> None:
    reward = Proof(Proof.Config(server="http://x"))
    reward.check_row(ROW)
    for text, words in (("theorem x : True", "end with `:=`"), ("def x :=", "states no theorem")):
        with pytest.raises(FormatError, match=words):
            reward.check_row({"formal_statement": text})
    reward.close()
