"""Measure the free memory, and raise an error before a computation that would need more.

The memory of a computation is estimated from its shapes before anything is allocated. A system that
runs out of memory would kill the process without a message, or swap for minutes. A container's
limits on memory and CPUs are those of its Linux control groups (versions 1 and 2).
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from gpt.errors import OutOfMemory, TrainingError

ALWAYS_FREE = 2**28  # bytes assumed to be free without measuring, which takes 0.1 s

# For version 2 and then version 1 of Linux control groups: the file with the limit in bytes, the
# file with the usage in bytes, and the prefix of the keys in memory.stat.
MEMORY_FILES = (
    ("memory.max", "memory.current", ""),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
)
# files of Linux control groups (version 2, version 1) with the CPU quota and period in microseconds
CPU_FILES = (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us"))


def check_memory(
    work: str, parts: Mapping[str, float], advice: str, free: int | None = None
) -> None:
    """Raise OutOfMemory if the sum of `parts` (bytes) exceeds `free`, by default `free_bytes()`.

    The message has `work` (what is computed), the parts above 5 % of the sum, and the `advice`.
    """
    needed = sum(parts.values())
    if needed <= ALWAYS_FREE and free is None:
        return
    free = free_bytes() if free is None else free
    if needed > free:
        large = {name: size for name, size in parts.items() if size > needed / 20}
        each = ", ".join(f"{name} {gigabytes(size)}" for name, size in large.items())
        raise OutOfMemory(
            f"{work} would take about {gigabytes(needed)} of memory ({each}), and "
            f"{gigabytes(free)} are free; {advice}"
        )


@contextmanager
def explaining_lack_of_memory(problem: str, advice: str) -> Iterator[None]:
    """Raise TrainingError with `problem` and `advice` if torch runs out of memory in the block."""
    try:
        yield
    except RuntimeError as error:
        # torch raises OutOfMemoryError on a GPU, but RuntimeError with this message on a CPU
        if type(error).__name__ != "OutOfMemoryError" and "can't allocate" not in str(error):
            raise
        raise TrainingError(f"{problem} ({str(error).splitlines()[0]:.150}); {advice}") from error


def gigabytes(size: float) -> str:
    """Format a number of bytes: `1.3 GB`."""
    return f"{size / 1e9:,.1f} GB"


def free_bytes() -> int:
    """Return how many bytes this process can still allocate.

    The number is the free memory of the machine, or less if `ulimit -v` or the control group of a
    container sets a limit.
    """
    import psutil

    bounds = [psutil.virtual_memory().available, *_free_in_control_groups()]
    process = psutil.Process()
    if hasattr(process, "rlimit"):  # Linux
        limit, _ = process.rlimit(psutil.RLIMIT_AS)
        if limit != psutil.RLIM_INFINITY:
            bounds.append(limit - process.memory_info().vms)
    return max(0, min(bounds))


def _free_in_control_groups() -> Iterator[int]:
    """Yield the free bytes of each Linux control group that limits this process's memory.

    Cached files count as free, because the system drops them when memory is needed.
    """
    for folder in control_groups("memory"):
        for limit, usage, cached in MEMORY_FILES:
            with suppress(OSError, ValueError, KeyError):  # the limit may be the word `max`
                free = int((folder / limit).read_text()) - int((folder / usage).read_text())
                stat = dict(map(str.split, (folder / "memory.stat").read_text().splitlines()))
                active, inactive = (
                    int(stat[f"{cached}{kind}_file"]) for kind in ("active", "inactive")
                )
                yield free + active + inactive


def control_groups(controller: str, root: Path = Path("/")) -> Iterator[Path]:
    """Yield the folders of this process's control groups for `controller`, and their parents."""
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
