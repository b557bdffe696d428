"""Rankings: how often a judge prefers a completion to the others of its group."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal

from pydantic import BaseModel, Field, field_validator

from groupwise.kit.options import PathOrName
from groupwise_judge.comparison import POINTS, WINNER, Comparison, Fenced
from groupwise_judge.material import column, contexts, is_blank
from groupwise_judge.messages import Exhibit, digest, exhibits
from groupwise_judge.pictures import seen
from groupwise_judge.rewards import LogExtra, LogMetric, ServerReward, checked
from groupwise_judge.server import Question, Verdict
from groupwise_judge.settings import ServerSettings
from groupwise_judge.unified_reward import unified_reward


class RankingSettings(BaseModel):
    """What is compared with what, and how."""

    criterion: str | None = Field(
        default=None, min_length=1, description="By what to compare; if unset as a whole."
    )
    opponents: int | None = Field(
        default=None,
        description="Number of others that each completion is compared with, an even number: "
        "G x opponents questions a group of G; null: all, G x (G - 1) questions.",
    )
    baseline: str | None = Field(
        default=None,
        min_length=1,
        description="Column with completions to compare with in evaluations; if unset those of the "
        "run's first evaluation.",
    )
    wording: PathOrName | None = Field(
        default=None,
        description="File with the question to a judge of the UnifiedReward family, if it is not "
        "to be asked in our words; {prompt} in it is the caption.",
    )

    @field_validator("opponents")
    @classmethod
    def _even(cls, opponents: int | None) -> int | None:
        if opponents is not None and (opponents < 2 or opponents % 2):
            raise ValueError(
                f"expected an even number from 2, since each comparison has two sides, or null for "
                f"all others, found {opponents}"
            )
        return opponents


def published(config: Any) -> Comparison | None:
    """The published judge that a `Config` of a ranking names as its `format`, or None.

    Raises ValueError for settings that such a judge does not have.
    """
    if not config.format.startswith("unified_reward"):
        if config.wording is not None:
            raise ValueError("wording: only the published judges take one; set `format`")
        return None
    if config.reference is not None or not config.prompt:
        raise ValueError(
            f"format: {config.format} reads the prompt, as its caption, and no reference; leave "
            f"out `prompt` and `reference`"
        )
    return unified_reward(config.format, config.criterion, config.wording)


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


class Ranking:
    """The comparisons of a batch. questions: to be asked, in both orders of each pair."""

    def __init__(self, pairs: Sequence[Pair], comparison: Comparison, completions: int) -> None:
        """completions: their number. Raises ValueError for those that cannot be compared."""
        self._pairs, self._completions = pairs, completions
        self._asked = [number for number, pair in enumerate(pairs) if not pair.is_equal]
        self.questions: list[Question] = []
        for pair in (pairs[number] for number in self._asked):
            first, second = pair.contents
            self.questions.append(comparison.question(pair.context, first, second))
            self.questions.append(comparison.question(pair.context, second, first))

    def rates(
        self, shares: Sequence[float | str], log_extra: LogExtra, log_metric: LogMetric
    ) -> list[float | None]:
        """The win rate of each completion, None where there is nothing to compare with.

        shares: for each question how far the completion that was read first is the better one, 0 to
        1, or why this is not known. Raises SampleErrors where half of a completion's comparisons or
        more are not known.
        """
        results: list[float | str] = [0.5] * len(self._pairs)
        read: list[tuple[float, float]] = []
        for number, straight, swapped in zip(self._asked, shares[::2], shares[1::2], strict=True):
            if isinstance(straight, str) or isinstance(swapped, str):
                results[number] = straight if isinstance(straight, str) else swapped
                continue
            results[number] = (straight + 1 - swapped) / 2
            read.append((straight, swapped))
        wins: list[list[float | str]] = [[] for _ in range(self._completions)]
        for pair, result in zip(self._pairs, results, strict=True):
            row, other = pair.rows
            wins[row].append(result)
            if other is not None:
                wins[other].append(result if isinstance(result, str) else 1 - result)
        if log_extra is not None:
            log_extra("comparisons", [len(each) for each in wins])
        if log_metric is not None and read:
            log_metric("first_wins", sum(a + b for a, b in read) / (2 * len(read)))
            contradictions = sum((a - 0.5) * (b - 0.5) > 0 for a, b in read)
            log_metric("contradictions", contradictions / len(read))
        return _rates(wins)


def pairs(
    settings: RankingSettings,
    material: Sequence[Sequence[Exhibit]],
    completions: Sequence[Any],
    groups: Sequence[int],
    others: Sequence[Sequence[Any]] | None,
    *,
    frames: int,
) -> list[Pair]:
    """What is compared: the completions of each group or, if they are there, each with `others`.

    material: for each completion what the judge reads before it; frames: how many it sees of one
    that is a video.
    """
    completions = [seen(each, frames) for each in completions]
    if others is None:
        return list(_within(material, completions, groups, settings.opponents))
    return [
        Pair(material[row], (completion, seen(other, frames)), (row, None))
        for row, completion in enumerate(completions)
        for other in others[row]
    ]


def opponents(
    settings: RankingSettings,
    references: Sequence[Sequence[Any]],
    columns: Mapping[str, Sequence[Any] | None],
) -> list[list[Any]]:
    """In an evaluation, what each completion is compared with."""
    if settings.baseline is None:
        return [list(each)[: settings.opponents] for each in references]
    cells = column(columns, settings.baseline)
    return [[] if is_blank(cell) else [cell] for cell in cells]


def _within(
    material: Sequence[Sequence[Exhibit]],
    completions: Sequence[Any],
    groups: Sequence[int],
    most: int | None,
) -> Iterator[Pair]:
    """The pairs of each group: all, or those at most `most` / 2 apart in a circle, so that each
    completion has as many."""
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
            yield Pair(material[first], (completions[first], completions[second]), (first, second))


class JudgeRanking(ServerReward):
    """The share of the other completions of the group that a judge prefers a completion to, 0 to 1.

    Pref-GRPO (arXiv:2508.20751): win rate w_i = 1/(G-1) sum_{j != i} 1[i beats j]. Each pair is
    judged in both orders, and its result is the mean of the two, a tie counting half: a judge that
    prefers whatever it reads first has no say. In evaluations a completion is compared with its
    row's `baseline`, or with those of the run's first evaluation.
    """

    relative = True

    class Config(ServerSettings, RankingSettings):
        """Settings of the reward `judge_ranking`."""

        format: Literal["json", "unified_reward_2", "unified_reward_think"] = Field(
            default="json",
            description="How the judge answers: as a published judge of pictures does, or by JSON.",
        )

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.config = config
        own = Fenced(config.criterion, reasoning=config.reasoning)
        self._comparison = published(config) or own

    async def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        groups: Sequence[int],
        references: Sequence[Sequence[Any]],
        *,
        purpose: str = "train",
        log_extra: LogExtra = None,
        log_metric: LogMetric = None,
        **columns: Sequence[Any],
    ) -> list[float | None]:
        """Returns a win rate for each completion, None where there is nothing to compare with;
        raises SampleErrors where half of its comparisons or more have no verdict."""
        material = contexts(self.config, prompts, columns)
        others = None if purpose == "train" else opponents(self.config, references, columns)
        frames = self.config.frames
        compared = pairs(self.config, material, completions, groups, others, frames=frames)
        ranking = Ranking(compared, self._comparison, len(completions))
        verdicts = await self.ask(ranking.questions, len(completions), log_metric)
        shares = [verdict.failure or _share(verdict) for verdict in verdicts]
        return ranking.rates(shares, log_extra, log_metric)


def _share(verdict: Verdict) -> float:
    """The share of answers for the completion that was read first, a tie counting half."""
    return sum(POINTS[each[WINNER]] for each in verdict.answers) / len(verdict.answers)


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
