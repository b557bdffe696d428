"""Registers this package's plugins as `module:attribute`, so nothing heavy is imported."""

from groupwise import hookimpl
from groupwise.hookspecs import Register


@hookimpl
def register_rewards(register: Register) -> None:
    """Registers every reward of this package under its name in a configuration."""
    register("proof", "groupwise_proofs.reward:Proof")
    register("invariant", "groupwise_proofs.invariant:Invariant", extra="proofs")
