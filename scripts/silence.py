#!/usr/bin/env python3
"""Measure how long `gpt train` prints nothing in a terminal, and its last line meanwhile.

    python scripts/silence.py TEXT --minutes 1
    python scripts/silence.py --config quickstart

All arguments are those of `gpt train`; the run folder is temporary. Each line printed is a pause of
more than a second: its start, its length, and the line that the terminal shows. A line that ends in
"..." is a status line. The last line is the longest pause without a status line.
"""

import os
import pty
import re
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path

PAUSE_S = 1.0  # shorter pauses are not printed
CONTROL = re.compile(r"\x1b\[[\d;?]*[A-Za-z]")


def main() -> None:
    """Run `gpt train` with the arguments of this script in a pseudo-terminal."""
    leader, follower = pty.openpty()
    termios.tcsetwinsize(leader, (24, 80))  # without a size, no progress bar is shown
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "gpt", "train", *sys.argv[1:]]
        command += ["--run-dir", str(Path(folder, "run"))]
        began = last = time.perf_counter()
        process = subprocess.Popen(command, stdout=follower, stderr=follower)
        os.close(follower)
        shown, longest = "", 0.0
        while chunk := _read(leader):
            now = time.perf_counter()
            if now - last > PAUSE_S:
                print(f"{last - began:6.1f} s  {now - last:5.1f} s  {shown}", flush=True)
                longest = max(longest, 0.0 if shown.endswith("...") else now - last)
            last = now
            lines = re.split(r"[\r\n]+", CONTROL.sub("", chunk.decode(errors="replace")))
            shown = next((line.strip() for line in reversed(lines) if line.strip()), shown)
        code = process.wait()
    print(f"{last - began:.1f} s in all; longest pause without a status line: {longest:.1f} s")
    sys.exit(code)


def _read(descriptor: int) -> bytes:
    """Return the output since the last call, or nothing at its end."""
    try:
        return os.read(descriptor, 2**16)
    except OSError:  # Linux raises it once the last writer has closed the terminal
        return b""


if __name__ == "__main__":
    main()
