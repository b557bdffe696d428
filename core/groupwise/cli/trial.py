"""trial: what every reward gives for the first prompts, of completions that no model wrote."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing

from groupwise.building.parts import Parts
from groupwise.cli.stage import Stage
from groupwise.evaluator.watches import DefaultWatches
from groupwise.prompt_source import PlacedRow, Row
from groupwise.record import Group
from groupwise.record.gather import judged
from groupwise.rewards import OWN_ARGUMENTS, Reward, Scores
from groupwise.rewards.reward import REFERENCES
from groupwise.rewards.run_state import RunState
from groupwise.rollouts import Rollouts
from groupwise.scoring.gold import stated
from groupwise.scoring.scorer import Scorer

ROWS, SIZE = 3, 2
"""Prompts, and completions of each: rewards that compare completions need two."""
GOLD = "the right answer"
Gold = Callable[[Row], str | None]


def trial(stage: Stage) -> str:
    """A table of rewards: what each gives for an empty completion (a grey picture) and, if a reward
    can state it, for the right answer; and which is the accuracy.

    Rewards that load a model, or need what only a run has, are not called. Raises RewardError for
    one that fails.
    """
    parts = stage.parts
    called = [r for r in parts.measures.values() if r.members.load is None]
    gold, rows = _gold(parts), stage.rows(max(ROWS, len(parts.prompts.each)))
    try:
        batches = _played(stage, rows, gold)
    except Exception as error:  # the environment may need what only a run has
        return f"note: no reward is called: {type(error).__name__}: {error}\n"
    unknown = {reward.name: _unknown(reward, next(iter(batches.values()))) for reward in called}
    called = [reward for reward in called if not unknown[reward.name]]
    columns: dict[str, Scores] = {}
    if called:
        state = RunState(max_steps=parts.config.train.steps)
        with closing(Scorer(called)) as scorer:
            columns = {title: scorer(rollouts, state) for title, rollouts in batches.items()}
    text = None if gold is None else stated(gold, rows[0])
    right = [] if text is None else [f"  the right answer to the first prompt: {text!r:.120}"]
    watched = _watched(parts, next(iter(batches.values())))
    return "\n".join([*aligned(_table(parts, len(rows), columns, unknown)), *right, *watched, ""])


def _watched(parts: Parts, rollouts: Rollouts) -> list[str]:
    """What an evaluation measures of such completions beside the rewards."""
    if not (parts.held_out and parts.config.evaluation.default_watches):
        return []
    watches = DefaultWatches({reward.name for reward in parts.measures.values()})
    names = watches.of(type(rollouts.completions[0]))
    return [f"  watched by default at evaluations: {', '.join(names)}"] if names else []


def _table(
    parts: Parts, count: int, columns: Mapping[str, Scores], unknown: Mapping[str, str]
) -> Iterator[Sequence[str]]:
    """Lines of cells: a head, and a line for each reward.

    count: of prompts; columns: scores by what was judged; unknown: by reward that loads no model,
    an argument that only a run has, "" if it was called.
    """
    yield f"rewards for the first {count} prompts", *(f"of {title}" for title in columns), ""
    for name in (reward.name for reward in parts.measures.values()):
        marks = [f"accuracy: right at {parts.accuracy.threshold:g}"] * (name == parts.accuracy.name)
        cells = ["-"] * len(columns)
        if unknown.get(name) == "":
            cells = [_values(scores, name) for scores in columns.values()]
        else:
            why = f"reads `{unknown[name]}`" if name in unknown else "loads a model"
            marks.append(f"not called, since it {why}")
        yield f"  {name}", *cells, "; ".join(marks)


def _gold(parts: Parts) -> Gold | None:
    """States the right completion of a row, by a reward that judges it: the accuracy, if it can."""
    every = sorted(parts.measures.values(), key=lambda reward: reward.name != parts.accuracy.name)
    known = [reward for reward in every if reward.members.gold_completion is not None]

    def gold(row: Row) -> str | None:
        own = (r.members.gold_completion for r in known if r.judges(row))
        return next((make(row) for make in own if make is not None), None)

    return gold if known else None


def _played(stage: Stage, rows: Sequence[PlacedRow], gold: Gold | None) -> dict[str, Rollouts]:
    """By title, what rewards judge: the episodes of each row in which that is written."""
    (*_, last) = stage.parts.players.judged
    texts = {stage.players[last].blank: [""] * len(rows)}
    written = [stated(gold, row) if gold is not None else None for row in rows]
    if any(text is not None for text in written):
        texts[GOLD] = [text or "" for text in written]
    with stage.open(SIZE) as sampler:
        return {
            title: judged(
                [
                    call
                    for number, (row, text) in enumerate(zip(rows, written, strict=True))
                    for call in stage.play(sampler, Group(number, row), says=text).judged
                ],
                sampler.columns,
            )
            for title, written in texts.items()
        }


def _unknown(reward: Reward, rollouts: Rollouts) -> str:
    """An argument without which a reward cannot be called, and which only a run has; else ""."""
    rows = [row for row in rollouts.prompts if reward.judges(row)]
    known = {*OWN_ARGUMENTS, REFERENCES, *rollouts.facts, *reward.bound, *(rows[0] if rows else ())}
    return min(reward.parameters[1] - known, default="")


def _values(scores: Scores, name: str) -> str:
    """The values of different prompts; one if all are equal."""
    values = scores.column(name)[::SIZE].tolist()
    words = ["None" if value != value else f"{value:.3g}" for value in values]  # noqa: PLR0124
    return words[0] if len(set(words)) == 1 else ", ".join(words)


def aligned(lines: Iterable[Sequence[str]]) -> list[str]:
    """Lines of cells as text in columns."""
    table = [*lines]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in table
    ]
