"""`proof` in Coq: what is a proof is paid, and what is none is refused by each of two layers."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest
from tests.proofs.cheats import ABSURD, CHEATS, MIDDLE

from groupwise.rewards import SampleErrors
from groupwise_proofs import coq_words
from groupwise_proofs.coq import Coq
from groupwise_proofs.judging import text_in
from groupwise_proofs.reward import Proof
from groupwise_proofs.theorem import FormatError, Theorem
from groupwise_sandbox.limits import Limits
from groupwise_sandbox.process import Finished
from groupwise_sandbox.sandbox import Sandbox

ADD = {
    "header": "Require Import List. (* a dot. *) Import ListNotations.\n"
    "Definition twice (n : nat) := n + n.",
    "formal_statement": "Theorem goal (n : nat) :\n  length [n; n] = twice 1. Proof. Admitted.",
}
PROOFS = {
    "tactics": "Proof. reflexivity. Qed.",
    "in a fence": "I think so:\n```coq\nProof.\n  reflexivity.\nQed.\n```\n",
    "its own sentence": "Theorem goal (n : nat) : length [n; n] = twice 1.\nProof. easy. Qed.",
    "a lemma": "Lemma one : twice 1 = 2. (* (* of one. *) *)\nProof.\n  { - reflexivity. }\nQed.\n"
    "Theorem goal (n : nat) :\n  length [n; n] = twice 1.\nProof. now rewrite one. Qed.",
    "the row's header": f"{ADD['header']}\nTheorem goal (n : nat) : length [n; n] = twice 1.\n"
    "Proof. reflexivity. Qed.",
    "a match": "Proof. assert (f : nat -> nat) by exact (fun x => match x with O => 1 | S y => y "
    "end).\n  1: { all: reflexivity. } Qed.",
    "a function": "Fixpoint even (n : nat) : bool := match n with 0 => true | S m => odd m end\n"
    "with odd (n : nat) : bool := match n with 0 => false | S m => even m end.\n"
    "Theorem goal (n : nat) : length [n; n] = twice 1.\nProof. reflexivity. Defined.",
}
FIVE, SIX = (bytes.fromhex(f"0800000411 4{digit}") for digit in "56")
"""Numbers of 63 bits in a compiled file."""
NONE = {
    "nothing": "",
    "words": "It holds by definition.",
    "no end": "Proof. reflexivity.",
    "a wrong tactic": "Proof. discriminate. Qed.",
    "another fence": f"```coq\n{PROOFS['tactics']}\n```\n```coq\nProof. easy.\n```",
}
LIMITS = {
    "time": ("repeat (pose proof I).", "took too much time"),
    "output": ('do 3000000 idtac "Closed".', "printed too much"),
    "memory": ("assert (Nat.pow 2 40 = 0). vm_compute.", "emory"),
}


@pytest.fixture(scope="module")
def coq() -> Iterator[Coq]:
    limits = Limits(seconds=20, memory=1 << 30, output=1 << 20)
    with Sandbox(limits=limits, parallel=2) as sandbox:
        coq = Coq(sandbox, ())
        if coq.refusal is not None:
            pytest.skip(coq.refusal)
        yield coq


@pytest.fixture(scope="module")
def reward(coq: Coq) -> Iterator[Proof]:
    made = Proof(Proof.Config(timeout=20))
    yield made
    made.close()


def theorem_of(text: str) -> Theorem:
    return coq_words.theorem_of({"formal_statement": MIDDLE if MIDDLE in text else ABSURD})


@pytest.mark.parametrize("name", CHEATS)
def test_words_refuse_a_cheat(name: str) -> None:
    assert coq_words.refusal(theorem_of(CHEATS[name]), CHEATS[name]) is not None


@pytest.mark.slow(after=2)
@pytest.mark.parametrize("name", CHEATS)
def test_the_kernel_refuses_a_cheat(coq: Coq, name: str) -> None:
    why = coq.complaint(theorem_of(CHEATS[name]), CHEATS[name])
    # Each has been compiled: nothing but the question says that it proves nothing.
    assert why is not None
    assert why.startswith(("it rests on", "it proves another theorem"))


@pytest.mark.parametrize("name", PROOFS)
def test_words_refuse_no_proof(name: str) -> None:
    theorem = coq_words.theorem_of(ADD)
    assert (theorem.name, theorem.statement[-1]) == ("goal", ".")
    assert coq_words.refusal(theorem, text_in(PROOFS[name])) is None


@pytest.mark.slow
def test_proofs_are_paid_and_others_are_not(reward: Proof) -> None:
    texts = [*PROOFS.values(), *NONE.values()]
    columns = {name: [value] * len(texts) for name, value in ADD.items()}
    logged = dict[str, list[str | None]]()
    values = reward([""] * len(texts), texts, log_extra=logged.__setitem__, **columns)
    assert values == [1.0] * len(PROOFS) + [0.0] * len(NONE)
    assert [each is None for each in logged["unproved"]] == [bool(each) for each in values]


@pytest.mark.slow
@pytest.mark.parametrize("name", LIMITS)
def test_limits(coq: Coq, name: str) -> None:
    tactic, words = LIMITS[name]
    limits = Limits(seconds=2, memory=512 << 20, output=1 << 20)
    with Sandbox(limits=limits, parallel=1) as sandbox:
        why = Coq(sandbox, ()).complaint(theorem_of(""), f"Proof. intros n. {tactic} Qed.")
    assert why is not None
    assert words in why


@pytest.mark.slow
def test_an_axiom_is_allowed_by_its_full_name(coq: Coq) -> None:
    row = {"header": "Require Import Classical.", "formal_statement": MIDDLE}
    theorem, text = coq_words.theorem_of(row), "Proof. exact classic. Qed."
    # One of the same name that the completion adds is another.
    own = (
        "Module Classical_Prop. Axiom classic : forall P, P \\/ ~ P. End Classical_Prop.\n"
        f"{MIDDLE}\nProof. exact Classical_Prop.classic. Qed."
    )
    with Sandbox(limits=Limits(seconds=20, memory=1 << 30), parallel=1) as sandbox:
        allowing = Coq(sandbox, ["Coq.Logic.Classical_Prop.classic"])
        assert allowing.complaint(theorem, text) is None
        assert "Answer" in str(allowing.complaint(theorem, own))
        assert "classic" in str(Coq(sandbox, ()).complaint(theorem, text))


@pytest.mark.parametrize(
    "printed",
    [
        "",
        "Closed under the global context\nClosed under the global context",
        "it is\nClosed under the global context",
        "Axioms:\nClassical_Prop.classic : False\nwrong : False",
        "Axioms:\nClassical_Prop.classic is assumed to be guarded.",
        "Axioms:\nAnswer.Classical_Prop.classic : False",
        "Axioms:\nclassic_extra : False",
    ],
)
def test_what_is_printed_otherwise_is_refused(printed: str) -> None:
    coq = Coq(Sandbox(), ["Coq.Logic.Classical_Prop.classic"])
    assert coq._assumed("Axioms:\nClassical_Prop.classic\n  : forall P : Prop, P") is None
    assert coq._assumed(printed) is not None


@pytest.mark.slow
@pytest.mark.parametrize("changed", [True, False])
def test_a_forged_file_is_refused(coq: Coq, monkeypatch: pytest.MonkeyPatch, changed: bool) -> None:
    """What the completion's run hands on is bytes of anyone's: here 2 + 3 = 5 is compiled, and its
    file says 2 + 3 = 6, which Coq itself loads without a look at the proof."""
    row = {
        "header": "Require Import PrimInt63.",
        "formal_statement": f"Theorem absurd : add 2 3 = {5 + changed}%int63.",
    }
    theorem, honest = coq_words.theorem_of(row), coq._compiled

    def forged(name: str, text: str, files: Mapping[str, bytes]) -> Finished:
        finished = honest(name, text.replace("6%", "5%") if name == "Answer" else text, files)
        if name == "Answer" and changed:
            assert finished.stdout.count(FIVE) == 2  # in the type, and in the proof
            finished = replace(finished, stdout=finished.stdout.replace(FIVE, SIX))
        return finished

    monkeypatch.setattr(coq, "_compiled", forged)
    monkeypatch.setattr(coq, "_axioms", {"Coq.Numbers.Cyclic.Int63.PrimInt63.int"})
    why = coq.complaint(theorem, "Proof. exact (eq_refl 6%int63). Qed.")
    assert why == ("coqchk refuses the compiled proof" if changed else None)


def test_a_row_that_cannot_be_read_is_refused(coq: Coq, reward: Proof) -> None:
    for row, words in (
        ({}, "expected text"),
        ({"formal_statement": "Definition x := 1."}, "states no theorem"),
        ({"formal_statement": "Theorem x : True"}, "does not end with a period"),
        ({"formal_statement": "Theorem x : True (* "}, "a comment without an end"),
        ({"formal_statement": "Theorem x : missing."}, "does not compile: The reference missing"),
    ):
        with pytest.raises(FormatError, match=words):
            reward.check_row(row)
    with pytest.raises(SampleErrors) as caught:
        reward([""], ["Proof. easy. Qed."], formal_statement=["Theorem x : missing."])
    assert "could not be judged: the theorem does not compile" in str(caught.value.errors)
