"""Audit: what a reward pays for right and for wrong completions, tried before a run."""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from groupwise import tool_call
from groupwise.kit.errors import UserError, first_line
from groupwise.prompt_source import PlacedRow
from groupwise.rewards import Reward
from groupwise.scoring.attacks import attacks, program_in, runs_code, worker
from groupwise.scoring.gold import Gold, gold_of
from groupwise.scoring.mutants import changed_digit, prefix, text_of, texts_of
from groupwise.scoring.probe import Probe, Value

SECONDS = 30.0
"""Seconds after which nothing more is tried of a reward."""
GOLD = "gold"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A kind of completions that a reward judges wrongly, with the first of them.

    wrong, tried: at how many prompts; text: the completion; gold: the right one; value: what the
    reward gives; place: of the row.
    """

    kind: str
    wrong: int
    tried: int
    text: str
    gold: str
    value: Value
    place: str

    @property
    def is_of_gold(self) -> bool:
        """Whether a right answer is not paid."""
        return self.kind == GOLD

    @property
    def sentence(self) -> str:
        """What the reward does, to follow its name."""
        of = f"(at {self.wrong} of {self.tried} prompts tried)"
        if self.value.error is not None:
            why = f"{self.text!r:.80}: it {self.value.error:.200}"
            return f"fails on {self.kind} {of}: {why} ({self.place})"
        number = "None" if math.isnan(self.value.number) else f"{self.value.number:g}"
        got = f"{self.text!r:.80} gets {number}"
        if self.is_of_gold:
            return f"does not pay the gold answer {of}: {got} ({self.place})"
        return f"pays {self.kind} {of}: {got}, and gold is {self.gold!r:.80} ({self.place})"


class Count(NamedTuple):
    """At how many prompts completions of a kind were paid."""

    paid: int
    """Of wrong ones only those that the reward itself separates from gold."""
    tried: int
    equal: int = 0
    """Where others were paid: to the reward they equal gold."""


@dataclass(kw_only=True)
class Audit:
    """What was tried of a reward.

    counts: by kind of completions; untried: what was left out, and why.
    """

    reward: str
    counts: dict[str, Count] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    untried: str = ""


def audit(reward: Reward, rows: Sequence[PlacedRow], *, seconds: float = SECONDS) -> Audit | None:
    """Put to a reward the gold answers of rows, and what is wrong; None for one without gold.

    A changed gold answer m of a row with gold g is wrong where the reward itself separates them:
    were m gold, m would be paid, and g not. What answers nothing by itself, such as the prompt, is
    wrong where it would also be paid if another row's answer were gold, which the reward separates
    from g in the same way.

    Raises RewardError for a call that does not end within the reward's deadline.
    """
    with closing(Probe(reward)) as probe:
        gold = gold_of(reward, rows, probe)
        if gold is None:
            return None
        trial = _Trial(reward, gold, rows, probe, until=time.monotonic() + seconds)
        trial.run()
        return trial.audit


@dataclass(frozen=True, kw_only=True, eq=False)
class _Case:
    """A row with its gold answer, the completion that states it, and what that gets.

    bar: the least value that is payment: that of the right completion, if it is paid itself.
    """

    row: PlacedRow
    answer: Any
    text: str
    value: Value
    bar: float


class _Trial:
    """An audit while it is made."""

    def __init__(
        self,
        reward: Reward,
        gold: Gold,
        rows: Sequence[PlacedRow],
        probe: Probe,
        *,
        until: float,
    ) -> None:
        self.reward, self.gold, self.probe, self.until = reward, gold, probe, until
        self.audit = Audit(reward=reward.name)
        self.cases = [
            _Case(
                row=row,
                answer=None if gold.column is None else row.get(gold.column),
                text=text,
                value=value,
                bar=value.number if value.number >= gold.least else gold.least,
            )
            for row, value in zip(rows, gold.values, strict=True)
            if (text := gold.stated(row)) is not None
        ]

    def run(self) -> None:
        paid = [case for case in self.cases if case.value.number >= self.gold.least]
        self.audit.counts[GOLD] = Count(len(paid), len(self.cases))
        self._found(GOLD, [(c, c.text, c.value) for c in self.cases if c not in paid])
        self._put("an empty completion", lambda _: "", lambda _: True)
        self._put("the prompt", _prompt, lambda case: self._pays_two(case, _prompt(case)))
        program = next(filter(None, (program_in(case.text) for case in paid)), None)
        if program is None and self.gold.column is not None:
            self._put_answer("gold with a changed digit", lambda case: changed_digit(case.answer))
            self._put_answer("a prefix of gold", lambda case: prefix(case.answer))
            self._put_answer("another row's gold", self._other)
            self._put(
                "two answers", self._both, lambda case: self._pays_two(case, self._both(case))
            )
        if paid and (program is not None or runs_code(self.reward)):
            self._attack(paid[0])

    def _put(
        self,
        kind: str,
        text: Callable[[_Case], str | None],
        is_wrong: Callable[[_Case], bool],
    ) -> None:
        """Put a completion to each row; text: None where there is none of this kind."""
        put = [(case, each) for case in self.cases if (each := text(case)) is not None]
        if not put or self._is_late():
            return
        values = self.probe.values([case.row for case, _ in put], [each for _, each in put])
        judged = [(*each, value) for each, value in zip(put, values, strict=True)]
        paid = [each for each in judged if each[2].number >= each[0].bar]
        wrong = [each for each in paid if is_wrong(each[0])]
        self.audit.counts[kind] = Count(len(wrong), len(put), equal=len(paid) - len(wrong))
        self._found(kind, wrong or [each for each in judged if each[2].error is not None])

    def _put_answer(self, kind: str, answer: Callable[[_Case], Any]) -> None:
        """Put another answer than gold to each row, in the form of gold."""

        def text(case: _Case) -> str | None:
            other = answer(case)
            if other is None or text_of(other) in texts_of(case.answer):
                return None
            return self.gold.stated(self.gold.with_answer(case.row, other))

        def is_wrong(case: _Case) -> bool:
            swapped = self.gold.with_answer(case.row, answer(case))
            other, gold = self.probe.values([swapped] * 2, [text(case) or "", case.text])
            return other.number >= case.bar and not gold.number >= case.bar

        self._put(kind, text, is_wrong)

    def _pays_two(self, case: _Case, text: str | None) -> bool:
        """Whether a completion that is paid here would also be paid if another row's answer were
        gold, and the reward separates the two: each is paid only where it is gold. Of a reward
        whose gold is in no column, nothing is known of its equals."""
        other = self._other(case)
        if self.gold.column is None or other is None:
            return self.gold.column is None
        swapped = self.gold.with_answer(case.row, other)
        rows = [swapped, swapped, case.row]
        put = [text or "", case.text, self.gold.stated(swapped) or ""]
        both, own, others = (value.number >= case.bar for value in self.probe.values(rows, put))
        return both and not own and not others

    def _other(self, case: _Case) -> Any:
        """The gold answer of the next row that has another one; None if there is none."""
        if self.gold.column is None:
            return None
        at = self.cases.index(case) + 1
        after = (*self.cases[at:], *self.cases[:at])
        own = texts_of(case.answer)
        return next((c.answer for c in after if text_of(c.answer) not in own), None)

    def _both(self, case: _Case) -> str | None:
        """The completion that states the own gold answer and another one."""
        texts = (text_of(case.answer), text_of(self._other(case)))
        if None in texts:
            return None
        return self.gold.stated(self.gold.with_answer(case.row, " ".join(filter(None, texts))))

    def _attack(self, case: _Case) -> None:
        """Put programs that cheat to one row, in a process of their own."""
        program = program_in(case.text)
        try:
            with worker(self.reward) as probe:
                for does, texts in attacks(program).items():
                    if self._is_late():
                        return
                    put = [text for each in texts if (text := self._instead(case, program, each))]
                    values = [probe.values([case.row], [text])[0] for text in put]
                    judged = [(case, *each) for each in zip(put, values, strict=True)]
                    paid = [each for each in judged if each[2].number >= case.bar]
                    failed = [each for each in judged if each[2].error is not None]
                    if judged:
                        kind = f"a program that {does}"
                        self.audit.counts[kind] = Count(len(paid[:1]), 1)
                        self._found(kind, (paid or failed)[:1])
        except UserError as error:  # it cannot be sent to a process of its own
            self.audit.untried = f"programs that cheat were not tried: {first_line(error)}"

    def _instead(self, case: _Case, program: str | None, attack: str) -> str | None:
        """The right completion with an attack in place of the program, or of the answer."""
        if program is not None:
            return case.text.replace(program, attack)
        if self.gold.column is None:
            return None
        return self.gold.stated(self.gold.with_answer(case.row, attack))

    def _found(self, kind: str, wrong: Sequence[tuple[_Case, str, Value]]) -> None:
        if not wrong:
            return
        case, text, value = wrong[0]
        self.audit.findings.append(
            Finding(
                kind=kind,
                wrong=len(wrong),
                tried=self.audit.counts[kind].tried,
                text=text,
                gold=case.text,
                value=value,
                place=case.row.place,
            )
        )

    def _is_late(self) -> bool:
        if time.monotonic() > self.until:
            self.audit.untried = "there was no time to try more"
        return bool(self.audit.untried)


def _prompt(case: _Case) -> str:
    """The text of a prompt; of messages, that of the last one."""
    return tool_call.text_of(case.row["prompt"]) or ""
