"""Verifiers: an environment of verifiers, whose agents are answered by the run's policy."""

import asyncio
from collections.abc import Sequence
from contextvars import Context
from typing import Any

import verifiers.v1 as vf
from pydantic import Field
from verifiers.v1.configs.client import EvalClientConfig

from groupwise.environment import Outcome
from groupwise.kit.errors import UserError
from groupwise.prompt_source import Row
from groupwise_agents.endpoint.address import Address
from groupwise_agents.endpoint.environment import Served
from groupwise_agents.endpoint.session import Session
from groupwise_verifiers.tasks import LoadedTasks, loaded

NO_KEY = "GROUPWISE_NO_KEY"
"""An environment variable that need not exist: the address has the key."""


class Verifiers(Served):
    """An environment of verifiers 0.4, with its own tasks, harness, tools and rewards, unmodified.

    Its agents call the endpoint, which samples and records the tokens: verifiers renders none. The
    last completion of each agent run is judged, with that run's weighted reward as the column
    `reward`, its rewards and metrics under their names, and its seat as `agent`. Runs of seats that
    are not trainable (a judge) have None as reward, so nothing of them is learned.
    """

    class Config(Served.Config):
        env: dict[str, Any] = Field(
            description="verifiers' configuration of the environment: `taskset`, `agent`, ..."
        )
        columns: tuple[str, ...] = Field(
            ("reward",), description="which of its rewards and metrics rewards and samples receive"
        )

    config: Config

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.env = loaded(config.env)
        self.tasks = LoadedTasks(self.env)
        self._serving: asyncio.Task[None] | None = None
        self._ready, self._end = asyncio.Event(), asyncio.Event()

    def columns(self, labels: Sequence[str]) -> Sequence[str]:
        return [*super().columns(labels), "agent"]

    async def _open(self) -> None:
        """Start the servers of the environment's tools, once, and wait until they are ready.

        Raises UserError where they cannot start.
        """
        if self._serving is None:
            self._serving = asyncio.create_task(self._serve(), context=Context())  # of no episode
        ready = asyncio.create_task(self._ready.wait())
        await asyncio.wait({self._serving, ready}, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if self._serving.done():
            error = None if self._serving.cancelled() else self._serving.exception()
            reason = error or "they were cancelled"
            raise UserError(f"verifiers: the servers of its tools do not run: {reason}") from error

    async def _serve(self) -> None:
        async with self.env.serving():  # entered and left by one task
            self._ready.set()
            await self._end.wait()

    async def close(self) -> None:
        if self._serving is not None:
            self._end.set()
            await asyncio.wait({self._serving})
        await super().close()

    async def run(self, address: Address, row: Row) -> vf.Episode:
        await self._open()
        (slot,) = self.env.slots(self.tasks[row["task"]], n=1)
        # One configuration for all episodes, whose connections are then shared.
        client = EvalClientConfig(base_url=self.endpoint.common_url, api_key_var=NO_KEY)
        context = vf.ModelContext(address.model, client, vf.SamplingConfig())

        def begins(trace: vf.Trace) -> None:
            self.endpoint.name(address.api_key, trace.id)

        return await self.env.run_slot(slot, context, on_trace=begins)

    def outcome(self, session: Session, returned: vf.Episode) -> Outcome:
        """The last reply of each trace, with its columns. Raises RuntimeError for an episode that
        failed."""
        if not returned.ok:
            errors = [*returned.errors, *(e for trace in returned.traces for e in trace.errors)]
            raise RuntimeError("; ".join(f"{error.type}: {error.message}" for error in errors))
        return [
            (session.latest[trace.id], {**session.columns, **self._columns(trace)})
            for trace in returned.traces
            if trace.id in session.latest
        ]

    def _columns(self, trace: vf.Trace) -> dict[str, Any]:
        own = {name: value and value.score for name, value in trace.rewards.items()}
        known = {**trace.metrics, **own, "reward": trace.reward}
        if not trace.agent.trainable:
            known["reward"] = None
        return {"agent": trace.agent.name} | {name: known.get(name) for name in self.config.columns}
