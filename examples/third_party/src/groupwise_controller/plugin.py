"""Registers this package's plugins; it imports no torch, so that listing plugins is fast."""

from groupwise.hookspecs import Register, hookimpl


@hookimpl
def register_policies(register: Register) -> None:
    register("controller", "groupwise_controller.policy:Controller")


@hookimpl
def register_rewards(register: Register) -> None:
    register("arrives", "groupwise_controller.rewards:arrives")
    register("smooth_control", "groupwise_controller.rewards:SmoothControl")


@hookimpl
def register_algorithms(register: Register) -> None:
    register("reinforce", "groupwise_controller.algorithm:Reinforce")


@hookimpl
def register_prompts(register: Register) -> None:
    register("controller_targets", "groupwise_controller.prompts:Targets")


@hookimpl
def register_callbacks(register: Register) -> None:
    register("exploration_log", "groupwise_controller.callback:ExplorationLog")
