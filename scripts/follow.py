"""Print the files of gpt/ that a command executes, and the calls between folders.

Example: python scripts/follow.py train my.txt --minutes 1
"""

import inspect
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

PREFIX = f"{ROOT / 'gpt'}/"
files, pairs = set[str](), set[tuple[str, str]]()


def note(frame: FrameType, event: str, argument: Any) -> None:
    """Record a call of a function of gpt/, but not the import of its module and its classes."""
    callee = frame.f_code.co_filename
    is_function = frame.f_code.co_flags & inspect.CO_OPTIMIZED
    if event != "call" or not callee.startswith(PREFIX) or not is_function:
        return
    files.add(callee)
    caller = frame.f_back.f_code.co_filename if frame.f_back else ""
    if caller.startswith(PREFIX) and Path(caller).parent != Path(callee).parent:
        pairs.add((caller, callee))


def main() -> None:
    """Run the command of the arguments, and print what it executed."""
    from gpt.__main__ import main as run

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        run()
    except SystemExit as end:
        code = end.code
    sys.setprofile(None)
    for name in sorted(files):
        print(name.removeprefix(PREFIX))
    print(f"{len(files)} files, {len(pairs)} pairs of files in different folders")
    sys.exit(code)


if __name__ == "__main__":
    main()
