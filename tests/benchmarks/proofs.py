"""Proofs a second: by Coq with its three runs, and invariants by z3.

    python tests/benchmarks/proofs.py

Texts differ, so that none is judged by what is remembered of another. Processor time is of the
sandbox with its start.
"""

import resource
import time
from collections.abc import Callable
from typing import Any

from groupwise_proofs.invariant import Invariant
from groupwise_proofs.reward import Proof

COUNT = 10
ADDED = "Theorem swap (a b : nat) : a + b = b + a."
LOGIC = "Theorem swap (P Q : Prop) : P /\\ Q -> Q /\\ P."
COUNTING = """(synth-inv inv ((x Int) (y Int)))
(define-fun pre ((x Int) (y Int)) Bool (and (= x 0) (= y 5)))
(define-fun trans ((x Int) (y Int) (x! Int) (y! Int)) Bool (and (< x y) (= x! (+ x 1)) (= y! y)))
(define-fun post ((x Int) (y Int)) Bool (or (< x y) (= x 5)))
(inv-constraint inv pre trans post)"""


def measure(name: str, make: Callable[[], Any], text: Callable[[int], str], **row: str) -> None:
    """Prints a row of the table."""
    reward = make()
    columns = {key: [value] * COUNT for key, value in row.items()}
    # The first call starts the sandbox and compiles the statement.
    reward([""], [text(-1)], **{key: [value] for key, value in row.items()})
    before, began = _processor(), time.monotonic()
    values = reward([""] * COUNT, [text(each) for each in range(COUNT)], **columns)
    seconds = time.monotonic() - began
    reward.close()
    processor = (_processor() - before) / (COUNT + 1)
    print(f"| {name} | {COUNT / seconds:.1f} | {processor:.3f} | {sum(values):g} of {COUNT} |")


def _processor() -> float:
    """Processor time of the processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    print("| what | a second | processor seconds of one | paid |\n|---|---|---|---|")
    fact = "Proof. pose proof ({0}). "
    logic = fact + "intros [p q]. split; assumption. Qed."
    measure("a proof", Proof, lambda each: logic.format(each + 1), formal_statement=LOGIC)
    wrong = fact + "intros p. exact p. Qed."
    measure("no proof", Proof, lambda each: wrong.format(each + 1), formal_statement=LOGIC)
    measure("no word of proofs", Proof, lambda each: f"Axiom a{each}.", formal_statement=LOGIC)
    header = "Require Import Lia."
    lia = fact + "lia. Qed."
    measure(
        "a proof by lia",
        Proof,
        lambda each: lia.format(each + 1),
        formal_statement=ADDED,
        header=header,
    )
    body = "(and (<= x y) (= y 5) (>= x (- {0})))"
    measure("an invariant", Invariant, lambda each: body.format(each + 1), problem=COUNTING)


if __name__ == "__main__":
    main()
