"""Seeds of all random draws. Importing this module loads no torch."""

import hashlib

import numpy as np

LARGEST_SEED = 10**9  # largest `seed` of a config


def derive_seed(seed: int, purpose: str, step: int) -> int:
    """Return a 64-bit seed that is a pure function of `seed`, `purpose` and `step`.

    So no generator state is saved, and one kind of draw cannot disturb another. torch's CPU
    generator uses only 32 bits of it: in 100,000 steps, about one repeats another's dropout.
    """
    digest = hashlib.blake2b(f"{seed}/{purpose}/{step}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def member_seed(seed: int, member: int) -> int:
    """Return the seed of an ensemble's member. Member 0 has the seed of the run.

    A run without an ensemble that has this seed trains the same model.
    """
    return derive_seed(seed, "member", member) % LARGEST_SEED if member else seed


def uniforms(seed: int, purpose: str, step: int) -> np.random.Generator:
    """Return a generator seeded by `derive_seed`. Its numbers are the same on every device."""
    return np.random.Generator(np.random.Philox(derive_seed(seed, purpose, step)))
