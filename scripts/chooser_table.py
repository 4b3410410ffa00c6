#!/usr/bin/env python3
"""Print what `gpt train --minutes 5` would choose on machines and texts that are pretended.

    python scripts/chooser_table.py

Nothing is trained. The paces of the machines are formulas, and pilots that were recorded for
scripts/law describe the texts: how hard they are to predict.
"""

from dataclasses import dataclass, replace
from unittest.mock import patch

import numpy as np
from law.runs import PILOTS, difficulty_of, read_records

from gpt.config.schema import Config
from gpt.recipe.plan import Plan, plan
from gpt.recipe.speed import Pace, Speed, operations_per_character
from gpt.text.corpus import Corpus
from gpt.text.vocabulary import Vocabulary

MINUTES = 5


@dataclass(frozen=True)
class Machine:
    """A pretended machine.

    Attributes:
        name: its name in the table.
        rate: operations per second.
        overhead_s: further seconds for each character.
        launch_s: seconds to launch the kernels of a layer, or None for a CPU. The rest of a step
            launches as many kernels as two layers.
        memory: free bytes.
    """

    name: str
    rate: float
    overhead_s: float
    launch_s: float | None
    memory: float

    def speed(self, V: int) -> Speed:
        """Return the paces of all models, for a vocabulary of `V` ids."""

        def pace(config: Config) -> Pace:
            model, launch_s = config.model, self.launch_s or 0.0
            each_s = operations_per_character(model, V) / self.rate + self.overhead_s
            in_step = config.train.batch_size * model.T
            return Pace(each_s + launch_s * (model.n_layer + 2) / in_step, each_s / 3)

        on_cpu = self.launch_s is None
        return Speed(
            V,
            lambda configs: [pace(config) for config in configs],
            threads=2 if on_cpu else 1,
            launches_kernels=not on_cpu,
        )


@dataclass(frozen=True)
class Text:
    """A pretended text: its length in characters, a recorded pilot, and the expert's choice."""

    name: str
    characters: int
    pilot: str
    expert: str


MACHINES = (
    Machine("two cores", 3e11, 2e-6, None, 16e9),
    Machine("100 times", 3e13, 2e-8, 0.0, 24e9),
    Machine("300 times", 9e13, 7e-9, 0.0, 24e9),
    Machine("H100", 2e14, 0.0, 3e-4, 80e9),
)
TEXTS = (
    Text("1.1 MB", 1_115_394, "tinyshakespeare", "16 to 32 members, or larger ones with dropout"),
    Text("20 MB", 20_000_000, "gutenberg12", "3 to 6 members of 6 to 8 x 256, 3 to 8 passes"),
    Text("1 GB", 1_000_000_000, "gutenberg12", "25 M parameters, 20 characters for each; T 1,024"),
)


def planned(machine: Machine, text: Text) -> Plan:
    """Return the plan for `text` on `machine`."""
    pilots = read_records(PILOTS)
    pilot = next(each for each in pilots if (each["text"], each["minutes"]) == (text.pilot, 2.0))
    train = int(0.9 * text.characters)
    difficulty = difficulty_of(pilot)
    val = text.characters - train
    corpus = Corpus(
        name=text.name,
        ids=np.broadcast_to(np.uint8(0), text.characters),
        vocabulary=Vocabulary("".join(chr(0x4E00 + i) for i in range(difficulty.V))),
        sha256="",
        train_ids=train,
        characters=text.characters,
        val_characters=val,
        val_bytes=val,
        val_first_bytes=1,
    )
    base = Config.model_validate({"device": "cpu", "threads": 2})
    with patch("gpt.recipe.chooser.free_bytes", return_value=int(machine.memory)):
        return plan(
            corpus,
            MINUTES,
            base,
            difficulty=replace(difficulty, train_ids=train),
            speed=machine.speed(difficulty.V),
        )


def row(machine: Machine, text: Text) -> str:
    """Return a row of the table."""
    chosen = planned(machine, text)
    model, train = chosen.config.model, chosen.config.train
    dropout = f", token dropout {model.character_dropout:g}" if model.character_dropout else ""
    seen = train.steps * train.batch_size * model.T / 1e6
    extrapolated = ", extrapolated" if chosen.extrapolated else ""
    return (
        f"| {text.name} | {machine.name} | {model.ensemble} of {model.n_layer} x {model.C}{dropout}"
        f" | {chosen.parameters / model.ensemble / 1e6:.1f} M | {model.T:,} | "
        f"{seen:,.0f} M | {chosen.passes:.2g} | {chosen.seconds:.0f} s | {chosen.val_loss:.2f} ± "
        f"{chosen.uncertainty:.2f}{extrapolated} | {text.expert} |"
    )


def main() -> None:
    """Print the table."""
    print(
        "| text | machine | chosen | parameters of a member | model.T | characters of a member | "
        f"passes | seconds of {60 * MINUTES} | predicted val loss | an expert's choice |\n"
        f"|{'---|' * 10}"
    )
    for text in TEXTS:
        for machine in MACHINES:
            print(row(machine, text), flush=True)


if __name__ == "__main__":
    main()
