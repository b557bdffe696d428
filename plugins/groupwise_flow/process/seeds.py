"""Seeds for draws that are independent of the initial noise, which a rollout's own seed names."""

import hashlib


def hashed(name: str) -> int:
    """A pseudo-random number of 64 bits, the same in every process."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big")
