"""Where every random draw comes from: the run's seed, what the draw is for, and the step.

Knows no torch: sampling on a CPU does without it.
"""

import hashlib

import numpy as np

LARGEST_SEED = 10**9  # that a config can have


def derive_seed(seed: int, purpose: str, step: int) -> int:
    """A seed that is a pure function of the run's seed, what the draw is for, and the step.

    So no generator's state is ever saved, and no draw disturbs another. (torch's CPU generator
    looks at 32 bits of it: of 100,000 steps about one draws the dropout of another again.)
    """
    digest = hashlib.blake2b(f"{seed}/{purpose}/{step}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def member_seed(seed: int, member: int) -> int:
    """The seed of an ensemble's member, counted from 0: the first has the run's own.

    It can be a run's seed: the member is the model of that run without an ensemble.
    """
    return derive_seed(seed, "member", member) % LARGEST_SEED if member else seed


def uniforms(seed: int, purpose: str, step: int) -> np.random.Generator:
    """A source of random numbers seeded by `derive_seed`, the same for any device."""
    return np.random.Generator(np.random.Philox(derive_seed(seed, purpose, step)))
