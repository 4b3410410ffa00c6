"""A prompt loop: type the beginning of a text, see it continued, change a rule, again."""

import contextlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

from gpt import api
from gpt.cli.options import wrapped
from gpt.config.schema import SampleConfig
from gpt.errors import GPTError, UsageError, unescaped

HELP = r"""Type the beginning of a text; the model continues it.
  \n, \t, \\       in a text: a newline, a tab, a backslash
  /continue        continue the last text
  /temperature X   above 1: more random; below: more predictable; 0: likeliest
  /top-k N         only from the N likeliest characters; none: from all
  /top-p X         only from the likeliest, whose probabilities sum to X
  /min-p X         drop characters less likely than X times the most likely one
  /length N        characters to generate
  /seed N          the seed of the next text; the one after it takes N + 1
  /run NAME        another run
  /help, /quit     this; leave (so does Ctrl-D)
  //...            a text that begins with /
A command without a value shows the value. Ctrl-C stops the text."""

RULES = {  # what is expected of each value
    "temperature": (float, "a number from 0 on"),
    "top-k": (int, "a number from 1 on, or none"),
    "top-p": (float, "a number from 0 to 1"),
    "min-p": (float, "a number from 0 to 1"),
    "length": (int, "a number of characters from 0 on"),
}


class Repl:
    """A model, how its text is sampled, and the text that /continue continues.

    `until_stop`: a text has no length; a stop string ends it, or Ctrl-C.
    """

    def __init__(
        self,
        model: api.Model,
        seed: int,
        rules: SampleConfig,
        *,
        stops: Sequence[str] = (),
        until_stop: bool = False,
        ban: str = "",
        drop_unknown: bool = False,
    ) -> None:
        self.model, self.seed, self.rules, self.ban = model, seed, rules, ban
        self.stops, self.until_stop, self.drop_unknown = stops, until_stop, drop_unknown
        self.text: str | None = None

    def run(self, read: Callable[[str], str], show: Callable[[str], object]) -> None:
        """Read lines until there are no more, or /quit; each is a command or a prompt.

        A KeyboardInterrupt stops the text that is being generated, or drops a half-typed line.
        """
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  (gives `input` editing and a history)
        show(HELP + "\n")
        while True:
            try:
                line = read("> ")
                command, _, value = line.strip().partition(" ")
                if command == "/quit":
                    return
                if command == "/continue":
                    self._continue(show)
                elif line.startswith("/") and not line.startswith("//"):
                    show(f"{self._obey(command.removeprefix('/'), value.strip())}\n")
                else:
                    text = line.removeprefix("/") if line.startswith("//") else line
                    self._start(unescaped(text), show)
            except KeyboardInterrupt:
                show("\n")
            except GPTError as error:
                show(f"{wrapped(str(error), sys.stdout)}\n")
            except EOFError:
                show("\n")
                return

    def _start(self, prompt: str, show: Callable[[str], object]) -> None:
        self.text = self.model.prepare(prompt, drop_unknown=self.drop_unknown)
        show(self.text)
        self._continue(show)

    def _continue(self, show: Callable[[str], object]) -> None:
        if self.text is None:
            raise UsageError("/continue: there is no text yet; type the beginning of one")
        rules: dict[str, Any] = self.rules.model_dump()
        if self.until_stop:
            rules["length"] = None
        if self.rules.top_k is None:  # all, whatever the run's config says
            rules["top_k"] = len(self.model.vocabulary)
        chunks = self.model.sample(
            [self.text],
            seed=self.seed,
            stops=self.stops,
            until_stop=self.until_stop,
            ban=self.ban,
            **rules,
        )
        self.seed += 1
        for chunk in chunks:
            self.text += chunk.text
            show(chunk.text)
        show("\n")

    def _obey(self, command: str, value: str) -> str:
        """Carry out a command that generates nothing; what to show for it.

        Raises UsageError if there is no such command, or for a wrong value.
        """
        if command == "help":
            return HELP
        if command in RULES:
            return self._rule(command, value)
        if command == "seed":
            if value and not value.isdecimal():
                raise UsageError(f"/seed: expected a number from 0 on, got {value}")
            self.seed = int(value or self.seed)
            return f"seed {self.seed}"
        if command == "run":
            if value:
                self.model = api.load(value, device=self.model.device)
            return self.model.summary()
        raise UsageError(f"/{command}: no such command; /help lists them")

    def _rule(self, command: str, value: str) -> str:
        kind, expected = RULES[command]
        key = command.replace("-", "_")
        if value:
            try:
                new = None if (command, value) == ("top-k", "none") else kind(value)
                self.rules = SampleConfig.model_validate(self.rules.model_dump() | {key: new})
            except ValueError:
                raise UsageError(f"/{command}: expected {expected}, got {value}") from None
            self.until_stop &= command != "length"
        if command == "length" and self.until_stop:
            return "length: until a stop string"
        now = getattr(self.rules, key)
        return f"{command} {'none' if now is None else now}"
