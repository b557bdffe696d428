"""`invariant`: what z3 takes for an inductive invariant, and what never reaches it."""

from collections.abc import Iterator

import pytest

from groupwise import testing
from groupwise.rewards import SampleErrors

pytest.importorskip("z3")
from groupwise_proofs.invariant import Invariant
from groupwise_proofs.theorem import FormatError

COUNTING = """
(set-logic LIA) ; a loop that counts
(synth-inv inv ((x Int) (y Int)))
(define-fun pre ((x Int) (y Int)) Bool (and (= x 0) (= y 5)))
(define-fun trans ((x Int) (y Int) (x! Int) (y! Int)) Bool (and (< x y) (= x! (+ x 1)) (= y! y)))
(define-fun post ((x Int) (y Int)) Bool (or (< x y) (= x 5)))
(inv-constraint inv pre trans post)
(check-synth)
"""
RIGHT = "(and (<= x y) (= y 5))"
INVARIANTS = (
    RIGHT,
    f"The counter never passes y:\n```smt2\n{RIGHT}\n```",
    "(define-fun inv ((a Int) (b Int)) Bool ; renamed\n (and (<= a b) (= b 5)))",
)
OTHERS = {
    "true": "it fails at the end",
    "false": "it fails at the start",
    "(= x 0)": "it fails at a step",
    "(and (<= x y) (= y 5) (= x! x!))": "the symbol x!",
    "(post x y)": "the symbol (post)",
    "(inv x y)": "the symbol (inv)",
    f"{RIGHT} (assert false)": "expected one expression, found 2",
    "true) (assert false": "a bracket that was not opened",
    "(define-fun other ((x Int) (y Int)) Bool true)": "it defines other",
    "(define-fun inv ((x Bool) (y Int)) Bool true)": "its parameters are not the problem's",
    "(define-fun inv ((true) (y Int)) Bool true)": "a variable is like (x Int)",
    "x": "sort mismatch",
    "": "expected one expression, found 0",
    "(" * 101: "more than 100 brackets in each other",
    "I think that x <= y": "expected one expression, found 6",
}


@pytest.fixture(scope="module")
def reward() -> Iterator[Invariant]:
    made = Invariant(Invariant.Config(timeout=5))
    yield made
    made.close()


def test_invariants_are_paid_and_others_are_not(reward: Invariant) -> None:
    texts = [*INVARIANTS, *OTHERS]
    logged = dict[str, list[str]]()
    values = reward(
        [""] * len(texts), texts, problem=[COUNTING] * len(texts), log_extra=logged.__setitem__
    )
    assert values == [1.0] * len(INVARIANTS) + [0.0] * len(OTHERS)
    complaints = logged["no_invariant"][len(INVARIANTS) :]
    for words, why in zip(OTHERS.values(), complaints, strict=True):
        assert words in why


def test_laws() -> None:
    rows = [{"prompt": text, "problem": COUNTING} for text in ("Find it.", "Find this.")]
    reward = Invariant()
    testing.check_reward(reward, rows, [RIGHT, "true", "", "("], group_size=2)
    reward.close()


@pytest.mark.slow
def test_what_z3_cannot_decide_is_not_paid() -> None:
    hard = "(not (= (+ (* x x x) (* y y y) (* (* x y) (* x y) x)) (+ 1234567 (* x y))))"
    reward = Invariant(Invariant.Config(timeout=0.5))
    assert reward([""], [hard], problem=[COUNTING.replace("(= y 5)", "true")]) == [0.0]
    reward.close()


def test_a_row_that_cannot_be_read_is_refused(reward: Invariant) -> None:
    for text, words in (
        ("(check-synth", "a bracket that is not closed"),
        (COUNTING.replace("inv-constraint inv", "inv-constraint other"), "no synth-inv"),
        (COUNTING.replace("(x Int)", "(x (Array Int Int))"), "a variable is like"),
    ):
        with pytest.raises(FormatError, match=words.replace("(", r"\(")):
            reward.check_row({"problem": text})
        with pytest.raises(SampleErrors):
            reward([""], [RIGHT], problem=[text])
