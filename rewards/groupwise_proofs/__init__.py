"""Proofs: rewards that a theorem, or an invariant, earns only when a prover accepts it."""
