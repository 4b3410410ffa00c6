"""The text of one choice of a response: tokens in, characters out."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from gpt.sampling.stopping import Chunk, Detokenizer, StopBuffer
from gpt.serve.batch import Token


@dataclass(eq=False)
class ChoiceText:
    """Turns the tokens of a choice into characters, until a stop string or a number of tokens."""

    detokenizer: Detokenizer
    buffer: StopBuffer  # its `length` is the number of tokens after which the text ends
    text: str = ""  # the characters that can be sent, and were not yet
    tokens: list[Token] = field(default_factory=list)  # those of `text`
    offsets: list[int] = field(default_factory=list)  # index in the choice of a token's character
    finish_reason: str | None = None  # `stop` or `length` at the end of the choice
    received: int = 0  # tokens until now, with those of a stop string
    offset: int = 0  # characters until now, of `text` and before
    held: list[Token] = field(default_factory=list)  # their characters may belong to a stop string

    def add(self, tokens: Sequence[Token]) -> None:
        """Add tokens; append what can be sent to `text`. Ignore tokens after the end.

        The detokenizer adds up a number for each character: here, the number of its tokens.
        """
        for token in tokens:
            self.received += 1
            self.held.append(token)
            for character in self.detokenizer.push(token.id, 1.0):
                chunk = self.buffer.push(*character)
                if chunk is not None:
                    self._move(chunk)
                    if chunk.stop is not None:
                        self.finish_reason = "stop"
                        return
            if self.received == self.buffer.length:
                self._move(self.buffer.release(len(self.buffer.text)))
                self.tokens += self.held  # the first bytes of a character
                self.offsets += [self.offset] * len(self.held)
                self.finish_reason = "length"
                return

    def _move(self, chunk: Chunk) -> None:
        """Append the characters of a chunk to `text`, with their tokens."""
        self.text += chunk.text
        for count in map(int, chunk.log_probabilities):
            self.tokens += self.held[:count]
            del self.held[:count]
            self.offsets += [self.offset] * count
            self.offset += 1
