"""The reward `judge_ranking`: how often a judge prefers a completion to the others of its group."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from pydantic import Field, field_validator

from groupwise_judge.form import Form
from groupwise_judge.material import column, contexts, is_blank
from groupwise_judge.messages import Exhibit, Message, digest, exhibits, messages
from groupwise_judge.rewards import LogMetric, ServerReward, checked
from groupwise_judge.server import Question, Verdict
from groupwise_judge.settings import ServerSettings

WINNER = "winner"
FIRST, SECOND, TIE = "A", "B", "tie"
INSTRUCTIONS = """\
You are a strict and fair judge. A model gave two completions, A and B. Decide which one is better\
{criterion}. Neither their order nor their length says anything by itself. Answer "tie" only if \
neither is better."""


@dataclass(frozen=True)
class Pair:
    """Two completions to compare. rows: of whom the result is, and of the other, None if that is
    not of this batch."""

    context: Sequence[Exhibit]
    contents: tuple[Any, Any]
    rows: tuple[int, int | None]

    @property
    def is_equal(self) -> bool:
        """Whether both are the same, so that no judge needs to be asked."""
        first, second = (digest(exhibits("completion", content)) for content in self.contents)
        return first == second

    def messages(self, instructions: str, form: Form, *, swapped: bool) -> list[Message]:
        """The question, in one of the two orders."""
        first, second = reversed(self.contents) if swapped else self.contents
        shown = [*exhibits("completion A", first), *exhibits("completion B", second)]
        return messages(instructions, [*self.context, *shown], form.request())


class JudgeRanking(ServerReward):
    """The share of the other completions of the group that a judge prefers a completion to, 0 to 1.

    Pref-GRPO (arXiv:2508.20751): win rate w_i = 1/(G-1) sum_{j != i} 1[i beats j]. Each pair is
    judged in both orders, and its result is the mean of the two, a tie counting half: a judge that
    prefers whatever it reads first has no say. In evaluations a completion is compared with its
    row's `baseline`, or with those of the run's first evaluation.
    """

    relative = True

    class Config(ServerSettings):
        """Settings of the reward `judge_ranking`."""

        criterion: str | None = Field(
            default=None, min_length=1, description="By what to compare; if unset as a whole."
        )
        opponents: int | None = Field(
            default=None,
            description="Number of others that each completion is compared with, an even number: "
            "G x opponents requests a group of G; null: all, G x (G - 1) requests.",
        )
        baseline: str | None = Field(
            default=None,
            min_length=1,
            description="Column with completions to compare with in evaluations; if unset those "
            "of the run's first evaluation.",
        )

        @field_validator("opponents")
        @classmethod
        def _even(cls, opponents: int | None) -> int | None:
            if opponents is not None and (opponents < 2 or opponents % 2):
                raise ValueError(
                    f"expected an even number from 2, since each comparison has two sides, or "
                    f"null for all others, found {opponents}"
                )
            return opponents

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.config = config
        self._form = Form({WINNER: (FIRST, SECOND, TIE)}, config.reasoning)
        by = "" if config.criterion is None else f" by this criterion: {config.criterion.strip()}"
        self._instructions = INSTRUCTIONS.format(criterion=by.rstrip("."))

    async def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        groups: Sequence[int],
        references: Sequence[Sequence[Any]],
        *,
        purpose: str = "train",
        log_extra: Callable[[str, Any], None] | None = None,
        log_metric: LogMetric = None,
        **columns: Sequence[Any],
    ) -> list[float | None]:
        """Returns a win rate for each completion, None where there is nothing to compare with;
        raises SampleErrors where half of its comparisons or more have no verdict."""
        material = contexts(self.config, prompts, columns)
        if purpose == "train":
            pairs = list(self._within(material, completions, groups))
        else:
            others = self._others(references, columns)
            pairs = [
                Pair(material[row], (completion, other), (row, None))
                for row, completion in enumerate(completions)
                for other in others[row]
            ]
        results = await self._results(pairs, len(completions), log_metric)
        wins: list[list[float | str]] = [[] for _ in completions]
        for pair, result in zip(pairs, results, strict=True):
            row, other = pair.rows
            wins[row].append(result)
            if other is not None:
                wins[other].append(result if isinstance(result, str) else 1 - result)
        if log_extra is not None:
            log_extra("comparisons", [len(each) for each in wins])
        return _rates(wins)

    def _within(
        self,
        material: Sequence[Sequence[Exhibit]],
        completions: Sequence[Any],
        groups: Sequence[int],
    ) -> Iterator[Pair]:
        """The pairs of each group: all, or those at most opponents / 2 apart in a circle, so that
        each completion has as many."""
        most = self.config.opponents
        members: dict[int, list[int]] = {}
        for row, group in enumerate(groups):
            members.setdefault(group, []).append(row)
        for rows in members.values():
            size = len(rows)
            if most is None or most >= size - 1:
                chosen = list(combinations(rows, 2))
            else:
                steps = range(1, most // 2 + 1)
                chosen = [(rows[n], rows[(n + s) % size]) for s in steps for n in range(size)]
            for first, second in chosen:
                contents = completions[first], completions[second]
                yield Pair(material[first], contents, (first, second))

    def _others(
        self, references: Sequence[Sequence[Any]], columns: Mapping[str, Sequence[Any] | None]
    ) -> list[list[Any]]:
        """In an evaluation, what each completion is compared with."""
        if self.config.baseline is None:
            return [list(each)[: self.config.opponents] for each in references]
        cells = column(columns, self.config.baseline)
        return [[] if is_blank(cell) else [cell] for cell in cells]

    async def _results(
        self, pairs: Sequence[Pair], completions: int, log_metric: LogMetric
    ) -> list[float | str]:
        """For each pair the share of its first completion, 0 to 1, or why there is none."""
        asked = [number for number, pair in enumerate(pairs) if not pair.is_equal]
        questions = [
            Question(pairs[n].messages(self._instructions, self._form, swapped=swapped), self._form)
            for n in asked
            for swapped in (False, True)
        ]
        verdicts = await self.ask(questions, completions, log_metric)
        results: list[float | str] = [0.5] * len(pairs)
        orders = list(zip(asked, verdicts[::2], verdicts[1::2], strict=True))
        for number, straight, swapped in orders:
            failure = straight.failure or swapped.failure
            results[number] = failure or (_share(straight) + 1 - _share(swapped)) / 2
        read = [(_share(a), _share(b)) for _, a, b in orders if not (a.failure or b.failure)]
        if log_metric is not None and read:
            log_metric("first_wins", sum(a + b for a, b in read) / (2 * len(read)))
            contradictions = sum((a - 0.5) * (b - 0.5) > 0 for a, b in read)
            log_metric("contradictions", contradictions / len(read))
        return results


def _share(verdict: Verdict) -> float:
    """The share of answers for the completion that was read first, a tie counting half."""
    points = {FIRST: 1.0, TIE: 0.5, SECOND: 0.0}
    return sum(points[str(each[WINNER])] for each in verdict.answers) / len(verdict.answers)


def _rates(wins: Sequence[Sequence[float | str]]) -> list[float | None]:
    """The mean of each row's results. Raises SampleErrors for rows that lack half or more."""
    values: list[float | None] = []
    failures: dict[int, str] = {}
    for row, results in enumerate(wins):
        read = [result for result in results if not isinstance(result, str)]
        values.append(sum(read) / len(read) if read else None)
        if results and 2 * len(read) <= len(results):
            failures[row] = next(result for result in results if isinstance(result, str))
    return checked(values, failures)
