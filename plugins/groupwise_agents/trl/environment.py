"""TRLEnvironment: classes for the `environment_factory` of TRL's trainers, as an environment."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import Field

from groupwise.environment import ENVIRONMENTS, Environment, Player
from groupwise.kit.copies import kept
from groupwise.kit.errors import UserError, did_you_mean
from groupwise.prompt_source import Row
from groupwise.registry import import_target
from groupwise_agents.beginnings import Beginnings, plain_attributes
from groupwise_agents.content import NOT_SELF_CONTAINED, is_self_contained, joined
from groupwise_agents.conversation import COLUMNS, converse, messages_of
from groupwise_agents.limits import Limits
from groupwise_agents.ordered import OrderedToolbox
from groupwise_agents.tool import Tool, Unavailable
from groupwise_agents.trl.instance import content
from groupwise_agents.trl.pool import Pool

Factory = Callable[[], Any]
CHOICE = "environment"
"""The column of a row that names its class, where there are several."""


class TRLEnvironment(Environment):
    """An object with state whose methods the model calls: a class for TRL's `environment_factory`.

    Take it to train on a class that was written for TRL, as it is. For each episode `reset(**row)`
    is called, and what it returns is appended to the prompt; the public methods are tools; at the
    end `get_reward()`, if there is one, is the column `reward`, which the reward
    `environment_reward` reads. Rewards have the objects as `environments`.

    An object's methods never run at the same time; sync ones run in threads. Objects are reused,
    once the step of their episode is over.
    """

    class Config(Limits):
        factory: str | dict[str, str] = Field(
            description="a class without arguments, or a function that makes such objects, as "
            "`module:Class`; or several by name, of which the column `environment` chooses"
        )
        tools: list[str] = Field(
            [], description="further tools, functions without state, as `module:function`"
        )

    def __init__(
        self,
        factory: Config | Factory | Mapping[str, Factory],
        *,
        tools: Sequence[Tool | Callable[..., Any]] = (),
        **limits: Any,
    ) -> None:
        if isinstance(factory, TRLEnvironment.Config):
            self.limits: Limits = factory
            tools = [import_target(name, f"tool {name!r}") for name in factory.tools]
            factory = _imported(factory.factory)
        else:
            self.limits = Limits(**limits)
        self.tools = [Tool.of(tool) for tool in tools]
        self.has_choice = isinstance(factory, Mapping)
        named = factory if isinstance(factory, Mapping) else {"": factory}
        if not named:
            raise UserError("factory: expected a class, or several by name, found none")
        self.pools = {
            name: Pool(each, name or getattr(each, "__name__", "factory"))
            for name, each in named.items()
        }
        self._beginnings = {
            name: Beginnings(
                pool.name,
                "`reset(self, seed, **row)` receives a seed that is the same for all of them, or "
                "let a column of the data set decide",
            )
            for name, pool in self.pools.items()
        }
        for pool in self.pools.values():
            OrderedToolbox([*self.tools, *pool.tools])  # no two of one name

    def casts(self, labels: Sequence[str]) -> Mapping[str, Sequence[str]]:
        if len(labels) > 1:
            raise UserError(f"one policy calls the tools, and there are {len(labels)} players")
        return super().casts(labels)

    def columns(self, labels: Sequence[str]) -> Sequence[str]:
        scored = any(pool.has_reward for pool in self.pools.values())
        return [*COLUMNS, *(["reward"] if scored else []), ENVIRONMENTS]

    def logged(self, labels: Sequence[str]) -> Sequence[str]:
        return COLUMNS

    def opening(self, row: Row) -> Row:
        tools = [*self.tools, *self.pools[self._chosen(row)].tools]
        schemas = [tool.schema for tool in tools]
        return {**row, "prompt": messages_of(row), "tools": schemas}

    async def play(
        self, row: Row, players: Mapping[str, Player], seed: int = 0
    ) -> Mapping[str, Any]:
        (player,) = players.values()
        name = self._chosen(row)
        pool, deadline = self.pools[name], self.limits.deadline
        instance = await pool.take()
        lease = pool.lease(instance)
        columns = {key: value for key, value in row.items() if key != CHOICE or not self.has_choice}
        observation = kept(await instance.reset(columns, seed, deadline))
        if instance.resets == 1:  # later ones may count their episodes
            own = {"observation": observation, **plain_attributes(instance.target)}
            self._beginnings[name].observe(seed, own)
        toolbox = OrderedToolbox([*self.tools, *instance.tools], deadline=deadline)
        talk = await converse(player, opened(row, observation), toolbox, self.limits)
        talk.columns["call_errors"] += instance.errors
        reward = await instance.reward(deadline)
        returned = {"reward": reward, ENVIRONMENTS: instance.target, "_lease": lease}
        return {**talk.outcome, **returned}

    def _chosen(self, row: Row) -> str:
        if not self.has_choice:
            return ""
        name = row.get(CHOICE)
        if name not in self.pools:
            known = ", ".join(self.pools)
            hint = did_you_mean(str(name), self.pools)
            raise UserError(
                f"a row has {name!r} in its column {CHOICE!r}{hint}; `factory` has {known}"
            )
        return str(name)


def opened(row: Row, observation: Any) -> Sequence[Mapping[str, Any]]:
    """The prompt of a row, with what `reset` returned at the end of its last message.

    Raises Unavailable for a picture that `reset` has not opened itself.
    """
    messages = messages_of(row)
    if observation is None:
        return messages
    *before, last = messages
    shown = content(observation)
    if not is_self_contained(shown):
        raise Unavailable(f"reset: {NOT_SELF_CONTAINED}")
    return [*before, {**last, "content": joined(content(last["content"]), shown)}]


def _imported(names: str | Mapping[str, str]) -> Factory | Mapping[str, Factory]:
    if isinstance(names, str):
        own: Factory = import_target(names, f"environment {names!r}")
        return own
    return {key: import_target(name, f"environment {name!r}") for key, name in names.items()}
