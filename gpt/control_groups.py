"""Limits of Linux control groups (versions 1 and 2), which containers set for their processes."""

import math
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

# files of a CPU quota and its period, in microseconds, in version 2 (one file) and version 1
CPU_FILES = (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us"))


def control_groups(controller: str, root: Path = Path("/")) -> Iterator[Path]:
    """Yield the folders of this process's control groups for `controller`, with their parents."""
    base = root / "sys/fs/cgroup"
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text("utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and controller not in controllers.split(","):
                continue
            group = (base / controller if controllers else base) / path.lstrip("/")
            yield from (group, *group.parents)


def cpu_limit(root: Path = Path("/")) -> int | None:
    """Return how many CPUs the control groups allow, at least 1; None if there is no limit."""
    limits = []
    for folder in control_groups("cpu", root):
        for names in CPU_FILES:
            with suppress(OSError, ValueError):  # without a limit, the quota is `max` or -1
                content = " ".join((folder / name).read_text("utf-8") for name in names)
                quota, period = map(int, content.split())
                if quota > 0:
                    limits.append(quota / period)
    return max(1, math.ceil(min(limits))) if limits else None
