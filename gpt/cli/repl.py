"""The prompt loop of `gpt sample --interactive`: continue typed texts, change sampling settings."""

import contextlib
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpt import api
from gpt.cli.options import wrapped
from gpt.config.schema import SampleConfig
from gpt.errors import GPTError, UsageError, unescaped
from gpt.sampling.sampler import sampling_rules

HELP = r"""Type the beginning of a text, or an empty line; the model continues it.
  \n, \t, \\       in a text: a newline, a tab, a backslash
  /continue        continue the last text
  /temperature X   above 1: more random; below: more predictable; 0: likeliest
  /top-k N         keep only the N likeliest characters
  /top-p X         keep the fewest, likeliest ones that sum to X or more
  /min-p X         drop characters less likely than X times the most likely one
  /length N        characters to generate
  /seed N          the seed of the next text; the one after it has seed N + 1
  /help, /quit     show this help; leave (or press Ctrl-D)
  //...            a text that begins with /
A command without a value shows the value. Ctrl-C stops the text."""


@dataclass
class Repl:
    """Prompt loop of `gpt sample --interactive` with one model."""

    model: api.Model
    seed: int  # seed of the next text; it is increased by one after each text
    rules: SampleConfig
    stops: Sequence[str] = ()  # strings that end a text
    text: str | None = None  # the last prompt and its continuation

    def run(self, read: Callable[[str], str], show: Callable[[str], object]) -> None:
        """Read lines by `read` and print answers by `show`, until /quit or the end of the input.

        A KeyboardInterrupt stops the current text or discards a half-typed line.
        """
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  (adds editing and a history to `input`)
        show(HELP + "\n")
        while True:
            try:
                line = read("> ")
                if line.strip() == "/quit":
                    return
                self._answer(line, show)
            except KeyboardInterrupt:
                show("\n")
            except GPTError as error:
                show(f"{wrapped(str(error), sys.stdout)}\n")
            except EOFError:
                show("\n")
                return

    def _answer(self, line: str, show: Callable[[str], object]) -> None:
        """Run `line` if it is a command; else sample and show a continuation of `line`."""
        command, _, value = line.strip().partition(" ")
        if line.startswith("/") and not line.startswith("//") and command != "/continue":
            show(f"{self._set(command.removeprefix('/'), value.strip())}\n")
            return
        if command != "/continue":
            self.text = self.model.prepare(unescaped(line.removeprefix("/")))
            show(self.text)
        elif self.text is None:
            raise UsageError("/continue: there is no text yet; type the beginning of one")
        rules = self.rules.model_dump()
        chunks = self.model.sample([self.text], seed=self.seed, stops=self.stops, rules=rules)
        self.seed += 1
        for chunk in chunks:
            self.text += chunk.text  # append first, because Ctrl-C may interrupt `show`
            show(chunk.text)
        show("\n")

    def _set(self, command: str, value: str) -> str:
        """Run `command`, such as `top-k`; return its output. An empty `value` changes nothing."""
        name = command.replace("-", "_")
        if command == "help":
            return HELP
        if command == "seed":
            if value and not value.isdecimal():
                raise UsageError(f"/seed: expected a whole number from 0 on, got {value}")
            self.seed = int(value or self.seed)
            return f"seed {self.seed}"
        if name not in SampleConfig.model_fields:
            raise UsageError(f"/{command}: no such command; /help lists all")
        if value:
            new: object = value
            with contextlib.suppress(ValueError):
                new = json.loads(value)
            self.rules = sampling_rules(self.rules, **{name: new})
        now = getattr(self.rules, name)
        return f"{command} {'none' if now is None else now}"
