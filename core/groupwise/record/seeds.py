"""Seeds: one for each sample, from the run's seed."""

import hashlib


def seed_for(run_seed: int, space: str, draw: int, index: int) -> int:
    """The seed of one sample: a 63-bit hash of run seed, name space, draw and index in group."""
    key = f"{run_seed}/{space}/{draw}/{index}".encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big") >> 1
