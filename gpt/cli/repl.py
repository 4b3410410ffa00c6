"""A prompt loop: type how a text begins, see it go on, change how it is drawn, again."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from gpt.errors import UsageError
from gpt.sampling.engine import Engine
from gpt.sampling.generate import generate
from gpt.sampling.prompt import check_prompt, encode_prompt
from gpt.sampling.sampler import SamplingRules
from gpt.text.vocabulary import Vocabulary

HELP = """Type the beginning of a text; the model goes on from it.
  /temperature X   below 1 bolder towards the likely, above 1 wilder; 0 always the likeliest
  /seed N          other draws; the same seed and the same lines repeat what you saw
  /length N        characters to write
  /help            this
  //...            a text that begins with /
Ctrl-C stops the text, Ctrl-D leaves."""


@dataclass
class Repl:
    """A model, how text is drawn from it, and how many texts it has written since the last seed."""

    engine: Engine
    vocabulary: Vocabulary
    length: int | None
    seed: int
    rules: SamplingRules
    stops: list[str] = field(default_factory=list)
    drop_unknown: bool = False
    texts: int = 0

    def run(self, read: Callable[[str], str], show: Callable[[str], object]) -> None:
        """Read lines until there are no more; each is a command or a prompt.

        A KeyboardInterrupt stops the text that is being written, or drops a half-typed line.
        """
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  (gives `input` editing and a history)
        show(HELP + "\n")
        while True:
            try:
                line = read("> ")
                if line.startswith("/") and not line.startswith("//"):
                    show(self.obey(line))
                else:
                    self.go_on(line.removeprefix("/") if line.startswith("//") else line, show)
            except KeyboardInterrupt:
                show("\n")
            except UsageError as error:
                show(f"{error}\n")
            except EOFError:
                show("\n")
                return

    def obey(self, line: str) -> str:
        """Carry out a command; what to show for it. Raises UsageError for one that is none."""
        command, _, value = line[1:].strip().partition(" ")
        try:
            if command == "help":
                return HELP + "\n"
            if command == "temperature":
                self.rules = replace(self.rules, temperature=float(value))
            elif command == "seed" and int(value) >= 0:
                self.seed, self.texts = int(value), 0
            elif command == "length" and int(value) >= 0:
                self.length = int(value)
            else:
                raise ValueError
        except (ValueError, UsageError):
            raise UsageError(
                f"{line}: expected /temperature X, /seed N, /length N (numbers from 0 on) or /help"
            ) from None
        return f"{command} {value.strip()}\n"

    def go_on(self, prompt: str, show: Callable[[str], object]) -> None:
        """Show the prompt and what the model writes after it."""
        prompt = check_prompt(prompt, self.vocabulary, drop_unknown=self.drop_unknown)
        self.texts += 1
        show(prompt)
        for chunk in generate(
            self.engine,
            self.vocabulary,
            [encode_prompt(prompt, self.vocabulary)],
            length=self.length,
            seed=self.seed,
            step=self.texts - 1,
            rules=self.rules,
            stops=self.stops,
        ):
            show(chunk.text)
        show("\n")
