#!/usr/bin/env python3
"""Measure `gpt eval`: the learning rate of --dynamic.

python scripts/bench_eval.py adaptive TEXT...     adaptive loss by learning rate
"""

import argparse
import tempfile
from pathlib import Path

from gpt import api
from gpt.evaluation.adaptive_loss import adaptive_loss
from gpt.evaluation.loss import evaluate, scored_val
from gpt.text.corpus import load_corpus
from gpt.text.sources import open_source

ADAPTIVE_RATES = (3e-4, 1e-3, 2e-3, 4e-3)
TRAIN_STEPS = 40  # of shakespeare_fast


def adaptive(*texts: str) -> None:
    """Print adaptive losses by learning rate on a held-out part of the train split of each text.

    The train split of a text is written to a file of its own. Models are trained on the first nine
    tenths of that file, and evaluated on its last tenth. The val split of the text is not used.
    """
    for text in texts:
        whole = Path(text).read_text("utf-8")
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, Path(text).name)
            file.write_text(whole[: int(0.9 * len(whole))], "utf-8")
            ids = scored_val(load_corpus(open_source(str(file))))
            run = api.train(
                "shakespeare_fast",
                text=str(file),
                settings={"train.steps": TRAIN_STEPS},
                run_dir=Path(folder, "run"),
            ).run
            model = api.load(run)
            network, vocabulary, counts = model.module, model.vocabulary, model.checkpoint.mixture
            for name, mixture in (("with counts", counts), ("network alone", None)):
                losses = {0.0: evaluate(network, ids, vocabulary, mixture=mixture)}
                for rate in ADAPTIVE_RATES:
                    losses[rate] = adaptive_loss(network, ids, vocabulary, mixture, rate)
                shown = ", ".join(f"{rate:g}: {loss:.4f}" for rate, loss in losses.items())
                print(f"{file.name}, {name}: {shown}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["adaptive"])
    parser.add_argument("arguments", nargs="*")
    args = parser.parse_args()
    globals()[args.what](*args.arguments)
