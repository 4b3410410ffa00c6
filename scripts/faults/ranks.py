"""Runs under torchrun: a worker is killed, or the link between two hosts is cut."""

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from faults.tally import Tally
from faults.work import Work, bits, differences, log_of, remove, stderr, tiny, told
from gpt.config.schema import Config
from gpt.config.yaml import to_yaml
from gpt.errors import GPTError
from gpt.runs.read import read_checkpoint

TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
START_S = 12.0  # seconds until workers train, at most
HOSTS = ("gpt-host-0", "gpt-host-1")  # network namespaces
ADDRESSES = ("10.77.0.1", "10.77.0.2")
PORT = 29777
ENDED_S = 60  # seconds in which ranks must end after the link is cut


def killed_ranks(work: Work, kills: int, seed: int, ranks: int = 2) -> Tally:
    """Kill a worker of a job at random moments, again and again, until the job is finished.

    torchrun restarts the workers. They must end with the bits of an undisturbed job.
    """
    tally = Tally(f"killed of {ranks} ranks")
    draws, config = random.Random(seed), tiny(2500, every=20)
    run = work.folder / "undisturbed"
    if code := _start(work, config, run, ("--standalone", f"--nproc-per-node={ranks}")).wait():
        raise RuntimeError(f"an undisturbed job ended with {code}: {told(run)}")
    undisturbed = bits(run)
    run = work.folder / "killed"
    with tally.timed():
        while tally.tries < kills:
            restarts = f"--max-restarts={kills - tally.tries}"
            options = ("--standalone", f"--nproc-per-node={ranks}", restarts)
            job = _start(work, config, run, options)
            while tally.tries < kills and job.poll() is None:
                with suppress(subprocess.TimeoutExpired):
                    job.wait(draws.uniform(0, 2 * START_S))
                with suppress(IndexError, psutil.NoSuchProcess):
                    workers = psutil.Process(job.pid).children()
                    workers[draws.randrange(ranks)].kill()
                    tally.tries += 1
            if code := job.wait():
                tally.lost.append(f"exit code {code}: {_messages(run)}")
            else:
                tally.changed += differences(run, undisturbed)
            remove(run)
    remove(work.folder / "undisturbed")
    return tally


def cut_links(work: Work, cuts: int) -> Tally:
    """Cut the link between two hosts (network namespaces) while they train together.

    Both must end with a message within a minute, and one process must be able to resume the run.
    """
    tally = Tally("cut links")
    try:
        with _hosts():
            pass
    except (OSError, subprocess.CalledProcessError) as error:
        tally.skipped = f"network namespaces: {error}"
        return tally
    config, run = tiny(100_000, every=20, warmup_steps=5), work.folder / "two-hosts"
    with tally.timed():
        for _ in range(cuts):
            tally.tries += 1
            with _hosts() as cut:
                jobs = [_start_host(work, config, run, host) for host in (0, 1)]
                while not (run / "checkpoints" / "step-40").exists():
                    if any(job.poll() for job in jobs):
                        raise RuntimeError(f"two hosts ended: {_messages(run)}")
                    time.sleep(0.1)
                cut()
                _check_ended(jobs, run, tally)
                for job in jobs:
                    job.kill()
            try:
                step = read_checkpoint(run, "last").step
            except GPTError as error:
                tally.lost.append(str(error))
            else:
                if wrong := work.finish(tiny(step + 10, every=20, warmup_steps=5), run):
                    tally.lost.append(wrong)
            remove(run)
    return tally


def _check_ended(jobs: Sequence[subprocess.Popen[bytes]], run: Path, tally: Tally) -> None:
    deadline = time.monotonic() + ENDED_S
    try:
        codes = [job.wait(max(0.0, deadline - time.monotonic())) for job in jobs]
    except subprocess.TimeoutExpired:
        tally.crashes.append(f"not ended after {ENDED_S} s: {_messages(run)}")
    else:
        said = _messages(run)
        if 0 in codes or len(said) != len(jobs) or "did not answer" not in " ".join(said):
            tally.crashes.append(f"exit codes {codes}: {said}")
        tally.outcomes[f"{ENDED_S - round(deadline - time.monotonic())} s"] += 1


def _messages(run: Path) -> list[str]:
    """Return the messages of our program, without those of torchrun."""
    return [line for line in stderr(run).splitlines() if line.startswith("gpt: ")]


def _start_host(work: Work, config: Config, run: Path, host: int) -> subprocess.Popen[bytes]:
    options = ("--nnodes=2", f"--node-rank={host}", "--nproc-per-node=1")
    endpoint = (f"--master-addr={ADDRESSES[0]}", f"--master-port={PORT}")
    inside = ("ip", "netns", "exec", HOSTS[host])
    return _start(work, config, run, (*options, *endpoint), inside=inside, interface=f"gpt{host}")


def _start(
    work: Work,
    config: Config,
    run: Path,
    options: Sequence[str],
    *,
    inside: Sequence[str] = (),
    interface: str | None = None,
) -> subprocess.Popen[bytes]:
    """Start torchrun; append its stderr to the log of the run."""
    path = run.with_suffix(".yaml")
    path.write_text(to_yaml(config), "utf-8")
    command = ["-m", "gpt", "train", work.corpus.name, "--config", str(path), "--run-dir", str(run)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    if interface:
        environment["GLOO_SOCKET_IFNAME"] = interface
    with log_of(run).open("ab") as log:
        return subprocess.Popen(
            [*inside, *TORCHRUN, *options, *command],
            stdout=subprocess.DEVNULL,
            stderr=log,
            env=environment,
        )


@contextmanager
def _hosts() -> Iterator[Callable[[], None]]:
    """Make two joined network namespaces; yield a function that cuts the link. Needs root."""

    def ip(*arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True, capture_output=True)

    try:
        for host in HOSTS:
            ip("netns", "add", host)
        ip("link", "add", "gpt0", "netns", HOSTS[0], "type", "veth", "peer", "name", "gpt1")
        ip("link", "set", "gpt1", "netns", HOSTS[1])
        for i, host in enumerate(HOSTS):
            ip("-n", host, "address", "add", f"{ADDRESSES[i]}/24", "dev", f"gpt{i}")
            for device in ("lo", f"gpt{i}"):
                ip("-n", host, "link", "set", device, "up")
        yield lambda: ip("-n", HOSTS[1], "link", "set", "gpt1", "down")
    finally:
        for host in HOSTS:
            subprocess.run(["ip", "netns", "del", host], capture_output=True)
