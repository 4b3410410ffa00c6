"""Damaged checkpoint files: each must be read, or refused with one message."""

import random
import shutil
from pathlib import Path

import torch

from faults.tally import Tally
from gpt.errors import GPTError
from gpt.runs.format import FILES, INDEX, MANIFEST, step_folder
from gpt.runs.read import read_checkpoint, read_index, read_to_resume
from gpt.runs.weights import load_model
from gpt.runs.write import manifest_of

CPU = torch.device("cpu")


def damaged_files(folder: Path, run: Path, count: int, seed: int) -> Tally:
    """Damage checkpoint files in `count` ways, half of them with new hashes, and read them.

    Each must be read, or refused with a GPTError.
    """
    tally, draws = Tally("damaged files", tries=count), random.Random(seed)
    copy = folder / "copy"
    shutil.copytree(run, copy)
    folder = copy / "checkpoints"
    place = step_folder(folder, read_index(folder).last)
    files = [*(place / name for name in (*FILES, MANIFEST)), folder / INDEX]
    contents = {path: path.read_bytes() for path in files}
    for number in range(count):
        path = draws.choice(files)
        path.write_bytes(mutate(contents[path], draws))
        if path.name in FILES and number % 2:
            (place / MANIFEST).write_bytes(
                manifest_of({name: (place / name).read_bytes() for name in FILES})
            )
        try:
            read_all(copy)
            tally.outcomes["read"] += 1
        except GPTError as error:
            tally.outcomes[f"{path.name}: {type(error).__name__}"] += 1
        except BaseException as error:
            tally.crashes.append(f"{path.name} {number}: {type(error).__name__}: {error}")
        for changed in (path, place / MANIFEST):
            changed.write_bytes(contents[changed])
    shutil.rmtree(copy)
    return tally


def read_all(run: Path) -> None:
    """Read a checkpoint as sampling and as resuming does."""
    data = read_checkpoint(run, "last")
    load_model(data, CPU)
    read_to_resume(run, data.step)


def mutate(content: bytes, draws: random.Random) -> bytes:
    """Flip, cut, repeat, insert or replace some bytes, or change a number."""
    changed = bytearray(content)
    for _ in range(draws.choice([1, 1, 1, 2, 8])):
        at = draws.randrange(min(len(changed), draws.choice([200, 2000, 10**9])) or 1)
        match draws.randrange(7):
            case 0:
                changed[at : at + 1] = bytes([draws.randrange(256)])
            case 1:
                del changed[at:]
            case 2:
                del changed[at : at + draws.randrange(1, 64)]
            case 3:
                changed[at:at] = changed[at : at + draws.randrange(1, 64)] * draws.randrange(1, 99)
            case 4:
                changed[at:at] = draws.randbytes(draws.randrange(1, 64))
            case 5:
                changed = bytearray(draws.randbytes(draws.randrange(64)))
            case 6:
                old = str(draws.choice([13, 24, 2, 3, 10, 0])).encode()
                new = draws.choice([b"-1", b"999999999999", b"0", b"1e400", b"null", b"[" * 5000])
                changed = bytearray(bytes(changed).replace(old, new, 1))
    return bytes(changed)
