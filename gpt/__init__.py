"""A character-level GPT that you train, watch and sample from the command line.

The modules follow the way of the data; each imports only from those above its own:

    errors, files, seeds, config what can go wrong, safe writing, all chance, what was asked for
    device, run                  where it runs, the folder it writes
    text                         characters in, batches out
    model                        batches in, logits out
    stored, checkpoint           a model on disk, whole or not at all
    sampling                     a model in, characters out
    inspection                   a model in, pictures out
    training                     batches in, checkpoints out
    lessons                      the same attention built up from averaging
    cli                          the commands
"""

import os
import time

# An OpenMP thread that spins as it waits starves the one it waits for when the cores are shared
# with anything else, and one that sleeps at once is slow to wake: it is to spin for some
# microseconds. scripts/bench.py threads measures it. Read when torch is loaded.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

STARTED = time.perf_counter()  # as near to the start of the process as Python gets
__version__ = "0.1.0"
