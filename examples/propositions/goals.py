"""Goals of propositional logic with their proofs in Coq, for `examples/propositions.yaml`.

A goal is `P /\\ Q -> Q \\/ R`, and proved by `intros h. destruct h as [p q]. left. exact q. Qed.`
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import count
from typing import Any

Formula = str | tuple[str, "Formula", "Formula"]
"""An atom; or a sign with what stands on its left and on its right."""
Known = Mapping[str, Formula]
"""Hypotheses by their names."""

ATOMS = ("P", "Q", "R", "S")
AND, OR, TO = SIGNS = ("/\\", "\\/", "->")
TACTICS = range(3, 8)
"""How many a goal's proof has."""


class Goals(Sequence[Mapping[str, str]]):
    """Rows with a goal, its theorem and a proof; always the same ones.

    size: how many.
    """

    def __init__(self, size: int = 4000) -> None:
        self.rows = drawn(size)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any, /) -> Any:
        return self.rows[index]


@cache
def drawn(size: int) -> Sequence[Mapping[str, str]]:
    """Random goals that have a proof and differ."""
    chance, rows = random.Random(0), {}
    while len(rows) < size:
        goal = _formula(chance, OR, AND, depth=2)
        for _ in range(chance.randint(1, 3)):
            goal = (TO, _formula(chance, *SIGNS, depth=2), goal)
        proof = proved(goal)
        if proof is not None and len(proof) in TACTICS:
            text = written(goal)
            theorem = f"Theorem goal ({' '.join(ATOMS)} : Prop) : {text}."
            solution = " ".join([*proof, "Qed."])
            rows[text] = {"prompt": f"{text}\n", "formal_statement": theorem, "solution": solution}
    return [*rows.values()]


def _formula(chance: random.Random, *signs: str, depth: int) -> Formula:
    if depth == 0 or chance.random() < 0.3:
        return chance.choice(ATOMS)
    left, right = (_formula(chance, *signs, depth=depth - 1) for _ in range(2))
    return (chance.choice(signs), left, right)


def written(formula: Formula, *, within: bool = False) -> str:
    """The formula as Coq reads it; within: as a part of another one."""
    if isinstance(formula, str):
        return formula
    sign, left, right = formula
    ends = sign == TO and not within  # What follows an arrow needs no brackets.
    text = f"{written(left, within=True)} {sign} {written(right, within=not ends)}"
    return f"({text})" if within else text


def proved(goal: Formula, known: Known | None = None, *, depth: int = 12) -> list[str] | None:
    """Tactics that prove a goal from what is known; None if none are found.

    What loses nothing comes first: hypotheses are named and taken apart. Then a hypothesis, a side
    of a disjunction or an implication is chosen. depth: how many tactics deep a branch may be.
    """
    known = known or {}
    ways = (_proved_by(*way, depth=depth - 1) for way in _ways(goal, known)) if depth else ()
    return next((proof for proof in ways if proof is not None), None)


def _proved_by(
    tactic: str, goals: Sequence[tuple[Formula, Known]], *, depth: int
) -> list[str] | None:
    proof = [tactic]
    for goal, known in goals:
        rest = proved(goal, known, depth=depth)
        if rest is None:
            return None
        proof += rest
    return proof


def _ways(goal: Formula, known: Known) -> Iterator[tuple[str, list[tuple[Formula, Known]]]]:
    """Tactics to try, each with the goals that it leaves and what is known in them."""
    if goal[0] == TO:
        name = _name(goal[1], known)
        yield f"intros {name}.", [(goal[2], {**known, name: goal[1]})]
        return
    for name, own in known.items():
        rest = {other: formula for other, formula in known.items() if other != name}
        if own[0] == AND:
            first = _name(own[1], known)
            both = {**rest, first: own[1]}
            second = _name(own[2], {**known, **both})
            yield f"destruct {name} as [{first} {second}].", [(goal, {**both, second: own[2]})]
            return
        if own[0] == OR:
            names = [_name(part, known) for part in own[1:]]
            cases = zip(names, own[1:], strict=True)
            goals = [(goal, {**rest, new: part}) for new, part in cases]
            yield f"destruct {name} as [{'|'.join(names)}].", goals
            return
    yield from ((f"exact {name}.", []) for name, own in known.items() if own == goal)
    if goal[0] == AND:
        yield "split.", [(part, known) for part in goal[1:]]
    if goal[0] == OR:
        yield "left.", [(goal[1], known)]
        yield "right.", [(goal[2], known)]
    for name, own in known.items():
        premises, end = [], own
        while end[0] == TO:
            premises.append((end[1], known))
            end = end[2]
            if end == goal:
                yield f"apply {name}.", list(premises)


def _name(formula: Formula, known: Known) -> str:
    """Of a hypothesis, another one than those that are known: `p` for the atom P, else `h`."""
    letter = formula.lower() if isinstance(formula, str) else "h"
    names = (f"{letter}{number or ''}" for number in count())
    return next(name for name in names if name not in known)
