"""Seeds of all random draws. This module does not import torch."""

import hashlib

import numpy as np

LARGEST_SEED = 10**9  # largest `seed` of a config


def derive_seed(seed: int, purpose: str, step: int) -> int:
    """Return a 64-bit seed that is a pure function of `seed`, `purpose` and `step`.

    Checkpoints therefore contain no generator state, and more draws for one purpose do not change
    the draws for another. torch's CPU generator uses only 32 bits of a seed: in a run of 100,000
    steps, about one pair of steps has the same dropout masks.
    """
    digest = hashlib.blake2b(f"{seed}/{purpose}/{step}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def member_seed(seed: int, member: int) -> int:
    """Return the seed of ensemble member number `member` in a run with the seed `seed`.

    Member 0 has the run's seed. A single model that is trained with the returned seed equals the
    member.
    """
    return derive_seed(seed, "member", member) % LARGEST_SEED if member else seed


def random_stream(seed: int, purpose: str, step: int) -> np.random.Generator:
    """Return a numpy generator for one `purpose` and `step`, seeded by `derive_seed`."""
    return np.random.Generator(np.random.Philox(derive_seed(seed, purpose, step)))
