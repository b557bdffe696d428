"""Registers this package's plugins; it imports no torch, so that listing plugins is fast."""

from groupwise.hookspecs import Register, hookimpl


@hookimpl
def register_policies(register: Register) -> None:
    register("language_model_with_critic", "groupwise_ppo.policy:LanguageModelWithCritic")


@hookimpl
def register_algorithms(register: Register) -> None:
    register("ppo", "groupwise_ppo.ppo:PPO")
    register("hybrid_grpo", "groupwise_ppo.hybrid:HybridGRPO")
