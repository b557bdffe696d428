"""Samples: the records of evaluated completions, as a run's files and the report show them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
from torch import Tensor

from groupwise import attachments
from groupwise.environment import ENVIRONMENTS, TURN_REWARDS
from groupwise.evaluation import Sample
from groupwise.policy import Policy
from groupwise.prompt_source import Row
from groupwise.record import Call, Episode
from groupwise.record.gather import judged
from groupwise.rewards import Scores
from groupwise.rollouts import Rollouts


@dataclass(frozen=True, kw_only=True)
class Samples:
    """What the records of a batch have in common.

    greedy: whether its completions are; learner: the label of its cast, "" for the run as a whole;
    multi_turn: whether records say why episodes ended.
    """

    greedy: bool
    learner: str
    multi_turn: bool

    def of_judged(
        self,
        calls: Sequence[Call],
        scores: Scores,
        watched: Scores | None,
        right: Tensor,
        policy: Policy,
        *,
        returned: Sequence[str],
        shown: Sequence[str],
    ) -> list[Sample]:
        """The records of calls that rewards judged.

        scores, watched: of rewards, and of those that are only measured; right: [B], NaN where it
        is not known; policy: whose facts are shown and logged; returned: columns of the
        environment, recorded beside what rewards log; shown: those of them that are for people, as
        texts are that rewards log.
        """
        rollouts = judged(calls, returned)
        rows = range(len(rollouts))
        written = {n: rollouts.facts[n] for n in returned if n not in (ENVIRONMENTS, *shown)}
        facts = _recorded(rollouts, policy)
        logged = {**scores.extra, **(watched.extra if watched else {})}
        texts = [{n: v[row] for n, v in logged.items() if isinstance(v[row], str)} for row in rows]
        extra = {**logged, **written}
        reasons = scores.reasons or [None] * len(rollouts)
        ended = rollouts.ended if self.multi_turn else []
        lengths, truncated = rollouts.lengths.tolist(), rollouts.truncated.tolist()
        return [
            {
                **self._begun(
                    rollouts.prompts[row], rollouts.completions[row], scores.total[row], right[row]
                ),
                **_of_source(calls[row].episode),
                "rewards": _values(scores, row),
                **({"watched": _values(watched, row)} if watched else {}),
                "truncated": truncated[row],
                "draw": int(rollouts.groups[row]),
                "index": calls[row].episode.index,
                "length": lengths[row],
                **({} if reasons[row] is None else {"failed": reasons[row]}),
                **_with_shown(
                    own, {**{name: rollouts.facts[name][row] for name in shown}, **texts[row]}
                ),
                # What rewards logged by TRL's `log_extra`, as text if it is no JSON value.
                **_named("extra", {n: v[row] for n, v in extra.items() if n not in texts[row]}),
                **({"ended": ended[row]} if self.multi_turn else {}),
                **_rewards_of_turns(calls[row]),
            }
            for row, own in zip(rows, facts, strict=True)
        ]

    def of_dead_end(
        self,
        end: Call | Episode,
        scores: Scores,
        right: Tensor,
        watched: Sequence[str] | None,
    ) -> Sample:
        """The record of a reply that failed or was refused, and is not judged, or of an episode
        that failed before any reply.

        scores, right: of one row, what it counts as; watched: the names of rewards that are only
        measured.
        """
        episode, shown = (end.episode, _written(end)) if isinstance(end, Call) else (end, {})
        refused_by = end.refused_by or "" if isinstance(end, Call) else ""
        failure = end.rollout.failure if isinstance(end, Call) else end.failure
        return {
            **self._begun(episode.group.row, "", scores.total[0], right[0]),
            **_of_source(episode),
            "rewards": _values(scores, 0),
            **({"watched": dict.fromkeys(watched)} if watched else {}),
            "truncated": False,
            **({"ended": "refused" if failure is None else "failed"} if self.multi_turn else {}),
            "draw": episode.group.number,
            "index": episode.index,
            "length": 0,
            **({"refused": refused_by} if failure is None else {"failed": failure}),
            **_with_shown({}, shown),
        }

    def _begun(self, row: Row, completion: Any, total: Tensor, right: Tensor) -> dict[str, Any]:
        images = attachments.in_columns(row)
        return {
            "prompt": row["prompt"],
            **({"images": images} if images else {}),
            "completion": completion,
            "total": _or_none(float(total)),
            "right": None if right.isnan() else bool(right),
            "greedy": self.greedy,
            **({"learner": self.learner} if self.learner else {}),
        }


def _recorded(rollouts: Rollouts, policy: Policy) -> list[dict[str, Any]]:
    """For each rollout the policy's facts that its sample records: by name, those that are `logged`
    and those that are `shown`; they are in CPU memory."""
    own = {"logged": policy.logged & rollouts.facts.keys()}
    own |= {"shown": policy.shown & rollouts.facts.keys()}
    return [
        {
            key: {name: _fact(rollouts.facts[name][row]) for name in sorted(names)}
            for key, names in own.items()
            if names
        }
        for row in range(len(rollouts))
    ]


def _fact(value: Any) -> Any:
    """A fact for JSON: None for NaN and infinity, and a string for what JSON has no form for."""
    if hasattr(value, "tolist"):  # a tensor or an array
        value = value.tolist()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _fact(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_fact(inner) for inner in value]
    return value if isinstance(value, str | int | bool | None) else str(value)


def _of_source(episode: Episode) -> dict[str, str]:
    return {"source": episode.group.source} if episode.group.source else {}


def _with_shown(facts: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of a record with these texts and pictures among those that are shown; a picture is
    like the part of a message."""
    shown = {
        name: {"type": "image", "image": value} if attachments.is_open(value) else _plain(value)
        for name, value in own.items()
    }
    return {**facts, "shown": {**facts.get("shown", {}), **shown}} if shown else dict(facts)


def _named(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: {key: _plain(value) for key, value in values.items()}} if values else {}


def _rewards_of_turns(judged: Call) -> dict[str, list[float | None]]:
    """The rewards that the environment gave to the turns of a judged call's rollout, if any."""
    rewards = [call.reward for call in judged.context_calls]
    return {} if rewards == [None] * len(rewards) else {TURN_REWARDS: rewards}


def _written(call: Call) -> dict[str, Any]:
    """The reply by its player's label, a text if it has one."""
    if call.reply is None:
        return {}
    completion = call.reply.completion
    is_text = isinstance(completion, str | list | tuple)
    return {call.label: call.reply.text if is_text else completion}


def _values(scores: Scores, row: int) -> dict[str, float | None]:
    values = map(_or_none, scores.values[row].tolist())
    return dict(zip(scores.names, values, strict=True))


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    elif isinstance(value, Real) and not isinstance(value, int | float):  # a fraction
        value = float(value)
    return value if isinstance(value, str | int | float | bool | None) else str(value)
