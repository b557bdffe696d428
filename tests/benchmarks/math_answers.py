"""Right answers that are paid and wrong answers that are paid, for lists of answers with labels.

    python tests/benchmarks/math_answers.py                     # tests/verifiable/answers/*.jsonl
    python tests/benchmarks/math_answers.py --show              # and every mistaken row
    python tests/benchmarks/math_answers.py --right my.jsonl --wrong theirs.jsonl

A row is a JSON object with style, prompt, text (the completion), gold, reward and config. The rows
of `math`, `numeric_answer` and `exact_answer` are judged by Groupwise, those of `math` also by
math-verify as TRL's accuracy_reward calls it (`rules="trl"`): with the gold answer as it stands
and with dollar signs around it, since math-verify finds no answer in LaTeX without delimiters.
An answer is paid where its value is above 0; no value counts as not paid.
"""

import argparse
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from groupwise_verifiable.mathematics.reward import MathEquivalence
from groupwise_verifiable.text.answers import ExactAnswer, NumericAnswer

ANSWERS = Path(__file__).parents[1] / "verifiable" / "answers"
REWARDS = {"math": MathEquivalence, "numeric_answer": NumericAnswer, "exact_answer": ExactAnswer}
GROUPWISE, TRL, TRL_DOLLARS = "Groupwise", "math-verify (TRL)", "the same, $gold$"


@dataclass(frozen=True)
class Judged:
    """One row, whether its answer is right, and whether a judge paid it."""

    row: dict[str, Any]
    right: bool
    judge: str
    paid: bool


def main() -> None:
    arguments = _arguments()
    judged = []
    for path, right in _files(arguments):
        rows = [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]
        config = {"rules": arguments.rules} if arguments.rules else {}
        rows = [row | {"config": row["config"] | config} for row in rows]
        judged += [entry for row in rows for entry in _judged(row, right)]
    _table(judged)
    if arguments.show:
        _mistakes(judged)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--right", type=Path, nargs="*", help="files of right answers")
    parser.add_argument("--wrong", type=Path, nargs="*", help="files of wrong answers")
    parser.add_argument("--rules", help="of `math`, instead of those of each row")
    parser.add_argument("--show", action="store_true", help="print each mistaken row")
    return parser.parse_args()


def _files(arguments: argparse.Namespace) -> list[tuple[Path, bool]]:
    """The files with their label; those of the repository where none is named."""
    if arguments.right is None and arguments.wrong is None:
        return [
            (path, label == "right")
            for label in ("right", "wrong")
            for path in sorted(ANSWERS.glob(f"{label}*.jsonl"))
        ]
    return [(path, True) for path in arguments.right or []] + [
        (path, False) for path in arguments.wrong or []
    ]


def _judged(row: dict[str, Any], right: bool) -> list[Judged]:
    judged = [Judged(row, right, GROUPWISE, _paid(row, {}))]
    if row["reward"] == "math":
        rules = {"rules": "trl"}
        dollars = {**row, "gold": f"${row['gold']}$"}
        judged.append(Judged(row, right, TRL, _paid(row, rules)))
        judged.append(Judged(row, right, TRL_DOLLARS, _paid(dollars, rules)))
    return judged


def _paid(row: dict[str, Any], extra: dict[str, Any]) -> bool:
    reward: Any = REWARDS[row["reward"]]
    function = reward(reward.Config(**{**row["config"], **extra}))
    (value,) = function([row["prompt"]], [row["text"]], answer=[row["gold"]])
    return value is not None and value > 0


def _table(judged: list[Judged]) -> None:
    print(f"{'judge':18} {'reward':15} {'right paid':>20} {'wrong paid':>20}")
    for judge in (GROUPWISE, TRL, TRL_DOLLARS):
        mine = [entry for entry in judged if entry.judge == judge]
        for reward in REWARDS:
            _line(judge, reward, [entry for entry in mine if entry.row["reward"] == reward])
        if judge == GROUPWISE:
            _line(judge, "total", mine)


def _line(judge: str, reward: str, judged: list[Judged]) -> None:
    if judged:
        right, wrong = (_share(e for e in judged if e.right is label) for label in (True, False))
        print(f"{judge:18} {reward:15} {right:>20} {wrong:>20}")


def _share(judged: Iterable[Judged]) -> str:
    paid = [entry.paid for entry in judged]
    return f"{sum(paid)}/{len(paid)} = {sum(paid) / len(paid):.1%}" if paid else "-"


def _mistakes(judged: list[Judged]) -> None:
    for entry in judged:
        if entry.paid != entry.right:
            row = entry.row
            label = "right, not paid" if entry.right else "wrong, paid"
            print(f"\n{entry.judge}: {label} ({row['reward']} {row['config']}, {row['style']})")
            print(f"  prompt {row['prompt']!r}\n  gold   {row['gold']!r}\n  text   {row['text']!r}")


if __name__ == "__main__":
    main()
