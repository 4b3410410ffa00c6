"""The field's words: whoever knows PyTorch or nanoGPT has nothing to translate in this code."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXTS = [
    ROOT / "README.md",
    *(ROOT / "configs").rglob("*.yaml"),
    *(path for kind in ("py", "js", "md") for path in (ROOT / "gpt").rglob(f"*.{kind}")),
]

PHRASES = {  # a space is any gap between two words, also from one line of a comment to the next
    r"foret(ell|old)\w*|speaks of|bits of choice": "predict",
    r"bend(s|ing)?|bent": "activation, nonlinearity",
    r"hear[sd]?|characters? (is|are) asked": "attend to, query, receive (a signal)",
    r"hidden characters?|characters? (is|are|were) hidden": "token dropout",
    r"bold(ness|ly|er|est)": "learning rate, peak",
    r"wild(ly|er|est)": "more random",
    r"(is|are|was|were|of|that) no (finite )?numbers?": "NaN or infinite",
    r"not taken": "skipped",
    r"(go|goes|going|went|gone) back": "roll back",
    r"mend(s|ed|ing)?": "repair",
    r"whole (or not|one|ones|checkpoints?|cop(y|ies))|no whole|(is|are|was|be|it) whole": "intact",
    r"anew": "rebuild, recompute, again",
    r"by heart": "overfit, memorise",
    r"(go|goes|going|went|gone) on": "resume, continue, recover",
    r"readings?(?= of the (val )?loss)|last readings?": "evaluation",
    r"(in|into|more|many|fewer) (\w+ )?pieces": "micro-batches, chunks",
    r"shared? out": "workers",
    r"(heads?|characters?|who)( it)? looks? at|(is|are) looked at": "query or key position",
}

RETIRED = {  # identifiers, and the parameters of a checkpoint
    "Reader|NumpyReader|TorchReader": "Engine",
    "Writer": "Generator",
    "Decoding": "SamplingRules",
    "Piece": "Chunk",
    "Stored|read_stored|write_stored": "CheckpointData, read_checkpoint",
    "_Told|_Held|Conversation": "BestEffortStream, StopBuffer, Repl",
    r"kept(?=\()|go_back_to_whole|foretold": "context_after_overflow, rollback, estimate",
    "AT_ONCE|MEMORY|ENOUGH|EACH": "a name with its unit",
    r"characters\.weight|earlier\.\S*weight": "token_embedding.weight, ngram_embeddings.N.weight",
}


def found(pattern: str) -> list[str]:
    """Where it stands, as file:line: match."""
    places = []
    for path in TEXTS:
        text = path.read_text("utf-8")
        for match in re.finditer(pattern, text):
            line = text.count("\n", 0, match.start()) + 1
            places.append(f"{path.relative_to(ROOT)}:{line}: {' '.join(match.group().split())}")
    return places


@pytest.mark.parametrize("phrase", PHRASES)
def test_a_term_of_the_field_is_not_paraphrased(phrase: str) -> None:
    pattern = rf"(?i)(?<![\w/-])({phrase})(?![\w-])".replace(" ", r"""[\s#"']+""")
    assert found(pattern) == [], f"write: {PHRASES[phrase]}"


@pytest.mark.parametrize("names", RETIRED)
def test_a_name_that_was_replaced_does_not_come_back(names: str) -> None:
    assert found(rf"(?<!\w)({names})(?!\w)") == [], f"its new name: {RETIRED[names]}"
