"""`python -m gpt`, and `gpt`."""

import os
import sys
from contextlib import suppress

from gpt.errors import INTERRUPTED


def main() -> None:
    """Run the command line.

    Ctrl-C while it is still being loaded ends it without a traceback; and whenever it does, no
    thread is waited for, which may have long to compute.
    """
    # An OpenMP thread that spins as it waits starves the one it waits for when the cores are shared
    # with anything else, and one that sleeps at once is slow to wake: it is to spin for some
    # microseconds. scripts/bench.py threads measures it. Read when torch is loaded.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    try:
        from gpt.cli.main import main as run

        run()
    except (KeyboardInterrupt, SystemExit) as done:
        if isinstance(done, SystemExit) and done.code != INTERRUPTED:
            raise
        with suppress(OSError, ValueError):
            sys.stdout.flush()
        os._exit(INTERRUPTED)


if __name__ == "__main__":
    main()
