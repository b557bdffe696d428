"""preview: an episode of the first prompt as the policies read it, played without weights."""

from collections.abc import Iterator, Mapping

from groupwise.cli.stage import Stage
from groupwise.config.learners import SOLE
from groupwise.episodes.episode_sampler import EpisodeSampler
from groupwise.experience import failures
from groupwise.kit.errors import UserError
from groupwise.prompt_source import PlacedRow
from groupwise.record import Group
from groupwise.record.gather import judged
from groupwise.scoring.reward_result import excerpt

MOST = 4_000
"""Characters of an episode; the middle of a longer one is left out."""

LONGEST = 40
"""Characters of a column's value."""


def preview(stage: Stage) -> str:
    """What each policy reads in an episode of the first prompt, of a mixture of the first one of
    each source, in which it writes placeholders; "" if it shows nothing.

    What goes wrong is a note. Raises UserError if a policy refuses what it reads.
    """
    rows = stage.rows(len(stage.parts.prompts.each))
    column = stage.parts.config.prompts.label_column
    of = [f" of {row[column]}" if len(rows) > 1 else "" for row in rows]
    return "".join(_episode(stage, row, name) for row, name in zip(rows, of, strict=True))


def _episode(stage: Stage, row: PlacedRow, of: str) -> str:
    """of: " of SOURCE" in a mixture."""
    shown = {label: len(each.transcripts) for label, each in stage.players.items()}
    try:
        with stage.open(1) as sampler:
            ended = [*_ends(stage.play(sampler, Group(0, row)), sampler)]
    except UserError:
        raise
    except Exception as error:  # of the environment: it may need what only a run has
        return f"note: no episode{of} is shown: {type(error).__name__}: {error}\n"
    lines = [*_texts(stage, shown, of), *ended]
    return "\n".join([*lines, ""]) if lines else ""


def _texts(stage: Stage, shown: Mapping[str, int], of: str) -> Iterator[str]:
    """What each policy reads, in lines that are set off; shown: how many texts were before."""
    for label, each in stage.players.items():
        for text in each.transcripts[shown[label] :]:
            whose = "the model" if label == SOLE else repr(label)
            yield f"an episode of the first prompt{of}, as {whose} reads it"
            yield from (f"  | {line}" for line in _shortened(text).split("\n"))


def _ends(group: Group, sampler: EpisodeSampler) -> Iterator[str]:
    """Why it failed, or how it ended and what the environment returned."""
    for reason in failures.described([group], sampler.labels).values():
        yield f"note: with placeholders for what the model writes, {reason}"
    rollouts = judged([*group.judged], sampler.columns)
    facts = rollouts.facts
    for row, word in enumerate(rollouts.ended if sampler.environment.multi_turn else ()):
        if word != "failed":
            columns = [f"{name} {excerpt(facts[name][row], LONGEST)}" for name in sampler.columns]
            yield "; ".join([f"  it ended: {word}", *columns])


def _shortened(text: str) -> str:
    if len(text) <= MOST:
        return text
    half = MOST // 2
    return f"{text[:half]}\n[{len(text) - 2 * half:,} characters left out]\n{text[-half:]}"
