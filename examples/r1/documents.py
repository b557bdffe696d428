"""Documents: solved sums in two languages, for the supervised stages.

A problem is a sum of four two-digit numbers, from reasoning-gym's `chain_sum`. Its solution is the
running total, one line per term: `12 plus 34 is 46` in English, or the same in Chinese. In some, a
line is wrong and is corrected: `12 plus 34 is 45`, then `wait, 12 plus 34 is 46`. Problems that
`groupwise` holds out for evaluation are in no document: both use the same hash of the question.
"""

import random
from collections.abc import Iterator

import reasoning_gym

from groupwise.prompts.split import held_out

TASK = {"min_terms": 4, "max_terms": 4, "min_digits": 2, "max_digits": 2}
HELD_OUT = 0.1
ENGLISH = (" plus ", " minus ", " is ", "wait, ")
CHINESE = ("加上", "减去", "等于", "等等, ")
STYLES = {"bare": 0.45, "untagged": 0.3, "empty": 0.15, "thought": 0.1}
"""Shares of the base's documents: only the answer; worked out without tags; tags with empty
thinking; thinking and answer in their tags."""
SLIPS = 0.2
"""Share of worked solutions in which a line is wrong, and is corrected."""


def problems(seed: int, size: int) -> Iterator[dict]:
    """Entries of reasoning-gym's `chain_sum` that are not held out."""
    dataset = reasoning_gym.create_dataset("chain_sum", seed=seed, size=size, **TASK)
    return (entry for entry in dataset if not held_out(entry["question"], HELD_OUT))


def worked(
    expression: str, words: list[tuple[str, ...]], slip: tuple[int, int] | None = None
) -> str:
    """The running total after each term, one line per step, in that line's language.

    slip: a line, and by how much it is wrong before it is corrected.
    """
    terms = expression.split()
    total, lines = int(terms[0]), []
    each = zip(terms[1::2], terms[2::2], words, strict=True)
    for number, (sign, term, (plus, minus, equals, wait)) in enumerate(each):
        after = total + int(term) if sign == "+" else total - int(term)
        line = f"{total}{plus if sign == '+' else minus}{term}{equals}"
        if slip is not None and slip[0] == number:
            lines.append(f"{line}{after + slip[1]}\n{wait}{line}{after}")
        else:
            lines.append(f"{line}{after}")
        total = after
    return "\n".join(lines)


def a_slip(rng: random.Random) -> tuple[int, int] | None:
    """A line of three that is wrong at first, and by how much; seldom any."""
    return (rng.randrange(3), rng.choice((-10, -1, 1, 10))) if rng.random() < SLIPS else None


def tagged(thought: str, answer: str) -> str:
    """Thinking and answer in R1's format."""
    return f"<think>\n{thought}\n</think>\n<answer>\n{answer}\n</answer>"


def row(entry: dict, completion: str) -> dict[str, str]:
    """A row in TRL's format."""
    return {"prompt": entry["question"] + "\n", "completion": completion}


def cold_start(size: int) -> list[dict[str, str]]:
    """Readable solutions: thinking in English and the answer, in their tags."""
    sums = problems(seed=3 * 10**8, size=2 * size)
    rng, rows = random.Random(0), list[dict[str, str]]()
    for entry in sums:
        thought = worked(entry["metadata"]["expression"], [ENGLISH] * 3, a_slip(rng))
        rows.append(row(entry, tagged(thought, entry["answer"])))
    return rows[:size]


def of_the_base(size: int, seed: int = 0) -> list[dict[str, str]]:
    """The base's training data: mostly bare answers; thinking in English, Chinese, or mixed."""
    rng = random.Random(seed)
    return [
        row(entry, _document(entry, rng)) for entry in problems(seed=4 * 10**8 + seed, size=size)
    ]


def _document(entry: dict, rng: random.Random) -> str:
    (style,) = rng.choices([*STYLES], [*STYLES.values()])
    thought = worked(entry["metadata"]["expression"], _languages(rng), a_slip(rng))
    answer = entry["answer"]
    return {
        "bare": answer,
        "untagged": f"{thought}\n{answer}",
        "empty": tagged("", answer),
        "thought": tagged(thought, answer),
    }[style]


def _languages(rng: random.Random) -> list[tuple[str, ...]]:
    """Languages of three lines: a third of solutions English, a third Chinese, a third mixed."""
    kind = rng.randrange(3)
    both = (ENGLISH, CHINESE)
    return [both[kind] if kind < 2 else rng.choice(both) for _ in range(3)]
