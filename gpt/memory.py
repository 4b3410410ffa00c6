"""How much memory is free, and the refusal to take more than that.

What is about to be computed is estimated from its shapes, before any of it is made: a system that
runs out of memory ends a process without a message, or takes minutes to do so.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from gpt.errors import OutOfMemory

ALWAYS_FREE = 2**28  # bytes that need no look at how many there are, which takes 0.1 s
CONTROL_GROUPS = {  # of Linux, version 2 and 1: where they are; files with the limit and the usage
    "": ("/sys/fs/cgroup", "memory.max", "memory.current"),
    "memory": ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
}


def check_memory(
    work: str, parts: Mapping[str, float], advice: str, free: int | None = None
) -> None:
    """Raises OutOfMemory if the parts, in bytes, are more than `free`, by default of this machine.

    The message names the work, its larger parts and what to do.
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


def gigabytes(size: float) -> str:
    """`1.3 GB`."""
    return f"{size / 1e9:,.1f} GB"


def free_bytes() -> int:
    """Bytes that this process can still take: those free here, or fewer where a limit is set.

    Limits are those of `ulimit -v` and, in a container, of its control groups.
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
    """For each control group of this process that has a limit, the bytes that are left of it."""
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text("utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if names := CONTROL_GROUPS.get(controllers):
                root, limit, usage = names
                group = Path(f"{root}{path}")
                for folder in (group, *group.parents):
                    with suppress(OSError, ValueError, KeyError):  # `max` is no limit
                        yield (
                            int((folder / limit).read_text("ascii"))
                            - int((folder / usage).read_text("ascii"))
                            + _file_cache(folder)
                        )


def _file_cache(group: Path) -> int:
    """Bytes of files that the system keeps in memory as long as nobody needs it."""
    lines = (group / "memory.stat").read_text("ascii").splitlines()
    stat = {name: int(value) for name, value in map(str.split, lines)}
    kinds = ("active_file", "inactive_file")
    return sum(stat.get(f"total_{kind}", stat[kind]) for kind in kinds)  # with its subgroups
