"""Assembly: how finished episodes ended is written on their calls."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from groupwise.environment import ENDED, Columns, Environment, Reply
from groupwise.episodes import turn_rewards, turns
from groupwise.episodes.calls import join_rollouts
from groupwise.episodes.sampling import Sampling
from groupwise.kit.errors import UserError
from groupwise.record import Call, Episode, Group, Rollout
from groupwise.record.gather import write
from groupwise.rollouts import Rollouts


class Assembly:
    """Finishes groups: assembles rollouts of several turns, and notes which calls are judged.

    Made before their first turn: no older weights draw any than those that are followed then.

    samplings: of the players, by label; trained: whether players are trained on the rollouts;
    compared: whether the players' rollouts are compared with each other.
    """

    def __init__(
        self,
        environment: Environment,
        samplings: Mapping[str, Sampling],
        *,
        trained: bool,
        compared: bool,
    ) -> None:
        self.samplings, self.trained, self.compared = samplings, trained, compared
        self._oldest = {label: sampling.version for label, sampling in samplings.items()}
        self.judged = environment.judged([*samplings])

    def finish(self, groups: Sequence[Group]) -> None:
        """Write on the calls of these groups, of which all episodes are over, how they ended."""
        episodes = [episode for group in groups for episode in group.episodes]
        for episode in episodes:
            episode.calls = episode.drawn
        rollouts = {
            label: self._rollouts(label, [c for e in episodes for c in e.calls if c.label == label])
            for label in self.samplings
        }
        for episode in episodes:
            self._judge(episode)
        for rollout in (own for of_player in rollouts.values() for own in of_player):
            _end(rollout)
        judged = [call for episode in episodes for call in episode.judged]
        turn_rewards.write(judged, rollouts)
        _check_judged(judged)
        if self.compared:
            check_kinds(judged)
        for call in (call for episode in episodes for call in episode.calls):
            if not call.episode.plain:  # else rewards may read a policy's facts where they are
                call.rollout.move_facts()
            call.context = call.drawn = None  # else they hold what rewards free
            if call.refused_by is None and call.rollout.failure is None:  # others may be shown
                call.reply = None
        for episode in episodes:
            episode.outcome = None

    def _rollouts(self, label: str, calls: Sequence[Call]) -> list[Rollout]:
        """A player's rollouts, in order."""
        join_rollouts(calls)
        rollouts = [*dict.fromkeys(call.rollout for call in calls)]
        if calls and calls[0].context is not None:
            sampling = self.samplings[label]
            contexts = [rollout.calls[-1].context for rollout in rollouts]
            rows = [rollout.row for rollout in rollouts]
            batch = sampling.assemble(rows, contexts, self._oldest[label])
            if self.trained:
                turns.compare(sampling.turn_sampler, batch, rollouts)
                batch = _of_own_turns(batch, rollouts)
            write(batch, rollouts, trained=self.trained)
        for rollout in rollouts:
            rollout.failure = rollout.failure or rollout.episode.failure
        return rollouts

    def _judge(self, episode: Episode) -> None:
        """Note the calls whose completions rewards judge, each with the columns of its episode."""
        outcome = episode.outcome
        if outcome is None or isinstance(outcome, Mapping):
            last = [call for call in episode.calls if not call.is_followed]
            judged = {call: None for end in last if (call := self._latest_judged(end)) is not None}
            # Of a rollout the last: an earlier reply may have been answered beside it.
            ends = {[c for c in call.rollout.calls if c in judged][-1] for call in judged}
            pairs = [(call, outcome or {}) for call in judged if call in ends]
        else:
            returned = outcome if isinstance(outcome, Sequence) else [outcome]
            pairs = [_pair(each) for each in returned]
        for call, columns in pairs:
            call.columns = columns
            episode.judged.append(call)

    def _latest_judged(self, call: Call) -> Call | None:
        """The call, or the latest one before it, whose player is judged; none before a refused
        one."""
        line = (call, *(call.ancestors if call.refused_by is None else ()))
        return next((each for each in line if each.label in self.judged), None)


def _of_own_turns(batch: Rollouts, rollouts: Sequence[Rollout]) -> Rollouts:
    """The same with the decisions of each rollout's own turns: those that its context began with
    are of another one."""
    before = [len(rollout.first.context_calls) - 1 for rollout in rollouts]
    if not any(before):
        return batch
    if batch.turns is None:
        raise UserError(
            "environment: `play` goes on in a context in several ways, but the sampler does not "
            "say where turns end: a TurnSampler's `assemble` sets `Rollouts.turns`"
        )
    pairs = [*zip(batch.turns, before, strict=True)]
    counts = [sum(turn.decisions for turn in own[:count]) for own, count in pairs]
    others = torch.tensor(counts, device=batch.mask.device).unsqueeze(1)
    mask = batch.mask & (batch.mask.cumsum(dim=1) > others)
    return replace(batch, mask=mask, turns=[own[count:] for own, count in pairs])


def _end(rollout: Rollout) -> None:
    """Write why a rollout ended.

    "length", and a context without room, truncate it. Any other word of `play` says that its last
    completion was not cut off, though it may have reached a limit that `play` set.
    """
    words = (_word_of(call, call.columns) for call in rollout.calls if call.columns is not None)
    word = next(filter(None, words), None)
    rollout.ended = "length" if rollout.calls[-1].is_cut else word or rollout.ended


def _word_of(call: Call, columns: Columns) -> str | None:
    """The environment's word for why the episode of a judged call ended; None for its player's own
    end. Raises UserError if it is not a word, or "failed"."""
    word = columns.get(ENDED, call.episode.ended)
    if word is None or word == "stop":
        return None
    if not isinstance(word, str) or not word or word == "failed":
        advice = "; raise an exception to fail the episode" if word == "failed" else ""
        raise UserError(
            f"environment: `play` returned {word!r} as why the episode ended (`{ENDED}`), expected "
            f"a word like 'turns' or 'tool'{advice}"
        )
    return word


def _check_judged(calls: Sequence[Call]) -> None:
    if len({call.rollout for call in calls}) < len(calls):
        raise UserError(
            "environment: `play` returned several replies that are turns of one rollout, which "
            "has one reward; return the last of them"
        )


def _pair(returned: object) -> tuple[Call, Columns]:
    """A reply and its columns, of what `play` returned; raises UserError for anything else."""
    match returned:
        case (Reply(source=call), Mapping() as columns):
            return call, columns
    raise UserError(
        f"environment: `play` returned {returned!r:.200}, expected a mapping with columns, "
        f"(reply, columns) pairs in a list, or None"
    )


def check_kinds(judged: Sequence[Call]) -> None:
    """Raise UserError if completions of casts that share groups differ in type: no reward could
    compare them."""
    kinds = {call.label: type(call.rollout.completion).__name__ for call in reversed(judged)}
    if len(set(kinds.values())) > 1:
        each = ", ".join(f"{label!r} {kinds[label]}" for label in reversed(kinds))
        raise UserError(
            f"the players whose completions are compared return different types ({each}), which no "
            f"reward can compare; the casts of an environment (the policies of a pool) need "
            f"completions of the same form"
        )
