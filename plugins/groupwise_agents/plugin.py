"""Registers the environments of tools, their tasks, and the reward that environments give."""

from groupwise.hookspecs import Register, hookimpl


@hookimpl
def register_environments(register: Register) -> None:
    register("tools", "groupwise_agents.tools:Tools")
    register("trl", "groupwise_agents.trl.environment:TRLEnvironment")
    register("openenv", "groupwise_agents.openenv.environment:OpenEnv")
    register("agent", "groupwise_agents.agent:Agent", extra="agents")
    register("repository", "groupwise_agents.repository:Repository")


@hookimpl
def register_prompts(register: Register) -> None:
    register("harbor", "groupwise_agents.harbor:HarborTasks")


@hookimpl
def register_rewards(register: Register) -> None:
    register("environment_reward", "groupwise_agents.rewards:environment_reward")
