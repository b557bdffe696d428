"""Canary: a fixed text that servers score after each transfer, to see whether the weights arrived.

A server may say that it has loaded weights, and go on with older ones, or with a part of them. With
D [n] the change of the policy's log-probs of the text's tokens since an earlier transfer, and E [n]
that of a server's, the slope of E on D,

    b = <D, E> / <D, D>,

is 1 if the weights arrived and 0 if none did. Log-probs are rounded: with s^2 the variance of
E - D by rounding alone, b of weights that arrived falls short of 1 by at most s^2 / mean D^2, since
errors of D flatten a slope (regression dilution), and by chance by a few times s / sqrt(sum D^2).
While the policy has moved little, this is much, and the change is measured from the same transfer.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from accelerate import PartialState
from torch import Tensor

from groupwise.kit import processes
from groupwise.kit.errors import UserError
from groupwise_llm.codec.contexts import Context
from groupwise_llm.policy import LanguageModel
from groupwise_llm.vllm.fleet import Fleet
from groupwise_llm.vllm.probe import check_gap
from groupwise_llm.vllm.prompt import family_of, prompt_of
from groupwise_llm.vllm.server import Server

LEAST = {"float32": 0.95, "bf16": 0.75}
"""Slope below which the weights did not arrive, by the precision of policy and server. In bf16 the
policy keeps what is no matrix in float32, where changes arrive sooner than in the server."""
DEVIATIONS = 3.0
"""Standard errors of the slope that are allowed for."""
ROUNDING = 1e-5
"""Nats that are taken for rounding in any case: above that of float32."""


Check = Callable[[], Mapping[str, float]]
"""Waits for the servers' scores, and returns the `mean` and `max` of |policy - server|, in nats.
Raises UserError where the weights did not arrive."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The text at one transfer. policy, server: log-probs [n] of its tokens, in nats; norms: of the
    tensors that were sent, in the server's dtype."""

    policy: Tensor
    server: Tensor
    norms: Mapping[str, float]

    @property
    def gaps(self) -> Tensor:
        """[n], how far the server's log-probs are from the policy's."""
        return self.server - self.policy


class Canary:
    """row, context: the text; the tokens after the prompt are scored."""

    def __init__(
        self, fleet: Fleet, policy: LanguageModel, row: Mapping[str, Any], context: Context
    ) -> None:
        self.fleet, self.policy = fleet, policy
        self._rollouts = policy.assemble([row], [context])
        self._prompt = prompt_of(context, family_of(policy))
        self._ids = context.completion_ids
        self._readings: dict[str, Reading] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="canary")

    @torch.no_grad()
    def begin(self, norms: Mapping[str, float], *, model: str | None) -> Check:
        """Have every server score the text. A collective, as what it returns, which waits for them.

        The servers must not get further weights before: what runs there may keep the text waiting.

        norms: of the tensors that were sent, known on the first process; model: the name of
        adapters.
        """
        outputs = frozenset({"log_probs"})
        ours = self.policy.forward(self._rollouts, outputs=outputs, temperature=1.0).log_probs
        assert ours is not None
        ours = ours.squeeze(0).double().cpu()
        norms, scored = dict(norms), None
        if PartialState().is_main_process:
            scored = self._thread.submit(self._scored, model)
        return lambda: processes.first(lambda: self._compare(ours, scored, norms), patient=True)

    def _scored(self, model: str | None) -> dict[Server, Sequence[float]]:
        theirs: dict[Server, Sequence[float]] = {}

        def score(server: Server) -> None:
            theirs[server] = server.score(self._prompt, self._ids, model=model)

        self.fleet.each(score)
        return theirs

    def _compare(
        self,
        ours: Tensor,
        scored: Future[dict[Server, Sequence[float]]] | None,
        norms: Mapping[str, float],
    ) -> Mapping[str, float]:
        assert scored is not None
        theirs, gaps = scored.result(), []
        for server, scores in theirs.items():
            now = Reading(
                policy=ours, server=torch.tensor(scores, dtype=torch.float64), norms=norms
            )
            gaps.append(now.gaps.abs())
            if server.url not in self._readings:
                check_gap(server, float(now.gaps.abs().mean()), self.policy)
            before = self._readings.setdefault(server.url, now)
            if before.norms == norms:
                continue
            slope, shortfall = arrived(before, now)
            least = LEAST[self.policy.config.precision]
            if slope + shortfall < least:
                raise UserError(_refusal(server, slope, before, now))
            if shortfall < 1 - least:  # else a part of the weights would not have been noticed
                self._readings[server.url] = now
        every = torch.cat(gaps)
        return {"mean": float(every.mean()), "max": float(every.max())}


def arrived(before: Reading, now: Reading) -> tuple[float, float]:
    """The slope of the server's change on the policy's, and how far rounding may have put it below
    1; (nan, inf) for a policy that has not moved."""
    ours, theirs = now.policy - before.policy, now.server - before.server
    moved = ours.square().mean().sqrt()
    if not moved > 0:
        return math.nan, math.inf
    slope = float((ours * theirs).sum() / ours.square().sum())
    rounding = max(ROUNDING, math.sqrt(2) * float(before.gaps.square().mean().sqrt()))
    share = rounding / float(moved)
    if not theirs.any():  # to the last bit, which weights that arrived never are
        return 0.0, share / 2
    return slope, share**2 + DEVIATIONS * share / math.sqrt(len(ours))


def _refusal(server: Server, slope: float, before: Reading, now: Reading) -> str:
    moved = float((now.policy - before.policy).abs().mean())
    theirs = float((now.server - before.server).abs().mean())
    return (
        f"sampler: the vLLM server at {server.url} says that it has loaded the new weights, but "
        f"computes with others: on a fixed text of {len(now.policy)} tokens the policy's log-probs "
        f"have changed by {moved:.2g} nats on average, and the server's by {theirs:.2g}; the slope "
        f"is {slope:.2f}, and 1 where all weights arrive. Does it skip weights (its own log), or "
        f"answer by the base model? --resume continues from the last checkpoint"
    )
