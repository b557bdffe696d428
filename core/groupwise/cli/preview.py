"""preview: an episode of the first prompt as the policies read it, played without weights."""

from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

from groupwise.config.learners import SOLE
from groupwise.policy import Policy
from groupwise.prompts.draws import Draw
from groupwise.rehearsal import Rehearsal
from groupwise.run.parts import Parts
from groupwise.training.episode_sampler import EpisodeSampler
from groupwise.training.episodes import Episodes
from groupwise.training.sampling import Sampling

PATIENCE = 20.0
"""Seconds that the environment may take between two completions."""
MOST = 4_000
"""Characters of an episode; the middle of a longer one is left out."""


def preview(parts: Parts, policies: Mapping[str, type[Policy]], settings: Mapping[str, Any]) -> str:
    """What each policy reads in an episode of the first prompt, in which it writes placeholders;
    "" if one of them cannot show it. What goes wrong is a note.

    settings: the `Config` of each policy. Raises UserError if a policy refuses what it reads.
    """
    players = dict[str, Rehearsal]()
    try:
        for label, own in settings.items():
            rehearsal = policies[label].rehearsal(own)
            if isinstance(rehearsal, Rehearsal):
                players[label] = rehearsal
        if players.keys() != policies.keys():
            return ""
        ended = _played(parts, players)
    except Exception as error:  # of the environment: it may need what only a run has
        for each in players.values():
            if each.fault is not None:
                raise each.fault from error
        return f"note: no episode is shown: {type(error).__name__}: {error}\n"
    return "\n".join([*_texts(players), *ended, ""])


def _played(parts: Parts, players: Mapping[str, Rehearsal]) -> list[str]:
    """Play an episode of the first prompt; returns lines on how it ended."""
    samplings = {label: Sampling(each, each, seed=0, batch=1) for label, each in players.items()}
    receivers = [players[label] for label in parts.players.receivers]
    environment, rows = parts.players.environment, parts.prompts.rows()
    row = next(
        row for row in rows if not any(each.skips(environment.opening(row)) for each in receivers)
    )
    with closing(
        EpisodeSampler(environment, samplings, dict.fromkeys(samplings, 1), deadline=PATIENCE)
    ) as sampler:
        sampler.follow({}, 0)
        return [*_ends(Episodes.concat([*sampler.draw([Draw(0, row)])]), sampler)]


def _texts(players: Mapping[str, Rehearsal]) -> Iterator[str]:
    """What each policy reads, in lines that are set off."""
    for label, each in players.items():
        for text in each.transcripts:
            whose = "the model" if label == SOLE else repr(label)
            yield f"an episode of the first prompt, as {whose} reads it"
            yield from (f"  | {line}" for line in _shortened(text).split("\n"))


def _ends(episodes: Episodes, sampler: EpisodeSampler) -> Iterator[str]:
    """Why it failed, or how it ended and what the environment returned."""
    for reason in episodes.failures.values():
        yield f"note: with placeholders for what the model writes, {reason}"
    facts = episodes.judged.facts
    for row, word in enumerate(episodes.judged.ended if sampler.environment.multi_turn else ()):
        if word != "failed":
            columns = [f"{name} {facts[name][row]!r:.40}" for name in sampler.columns]
            yield "; ".join([f"  it ended: {word}", *columns])


def _shortened(text: str) -> str:
    if len(text) <= MOST:
        return text
    half = MOST // 2
    return f"{text[:half]}\n[{len(text) - 2 * half:,} characters left out]\n{text[-half:]}"
