"""The text of one choice of a response: tokens in, characters out."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from gpt.sampling.stopping import Chunk, Detokenizer, StopBuffer
from gpt.serve.batch import Token
from gpt.text.vocabulary import Vocabulary


@dataclass
class ChoicePart:
    """New text of a choice, with its tokens.

    Attributes:
        index: the index of the choice.
        text: the new characters.
        tokens: the new tokens.
        offsets: for each token, the index of its character in the whole text of the choice.
        finish_reason: `stop` or `length` in the last part of a choice.
    """

    index: int
    text: str = ""
    tokens: list[Token] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    finish_reason: str | None = None

    def extend(self, part: "ChoicePart") -> None:
        """Append the next part of the same choice."""
        self.text += part.text
        self.tokens += part.tokens
        self.offsets += part.offsets
        self.finish_reason = part.finish_reason


class ChoiceText:
    """Turns the tokens of a choice into characters, until a stop string or a number of tokens.

    Args:
        index: the index of the choice.
        vocabulary: the vocabulary of the tokens.
        stops: the stop strings.
        length: the number of tokens after which the text ends.
        prompt: the ids before the text, which may end with the first bytes of a character.

    Attributes:
        received: the number of tokens until now, with those of a stop string.
    """

    def __init__(
        self,
        index: int,
        vocabulary: Vocabulary,
        stops: Sequence[str],
        length: int,
        prompt: Sequence[int],
    ) -> None:
        self.index, self.vocabulary, self.length = index, vocabulary, length
        self.received, self._offset = 0, 0
        self._held: list[Token] = []  # tokens whose characters may belong to a stop string
        self._detokenizer = Detokenizer(vocabulary, prompt)
        self._buffer = StopBuffer(index, stops, length)

    def echo(self, prompt: Sequence[Token]) -> ChoicePart:
        """Return the prompt as the first part of the text."""
        part = ChoiceText(self.index, self.vocabulary, (), len(prompt), ()).add(prompt)
        part.finish_reason, self._offset = None, len(part.text)
        return part

    def add(self, tokens: Sequence[Token]) -> ChoicePart:
        """Add tokens; return the characters that can be sent now. Ignore tokens after the end."""
        part = ChoicePart(self.index)
        for token in tokens:
            self.received += 1
            self._held.append(token)
            # the Detokenizer sums a number over the ids of a character: 1 counts these ids
            for character in self._detokenizer.push(token.id, 1.0):
                chunk = self._buffer.push(*character)
                if chunk is not None:
                    self._move(chunk, part)
                    if chunk.stop is not None:
                        part.finish_reason = "stop"
                        return part
            if self.received == self.length:
                self._move(self._buffer.release(len(self._buffer.text)), part)
                part.tokens += self._held  # the first bytes of a character
                part.offsets += [self._offset] * len(self._held)
                part.finish_reason = "length"
                return part
        return part

    def _move(self, chunk: Chunk, part: ChoicePart) -> None:
        """Append the characters of a chunk and their tokens to `part`."""
        part.text += chunk.text
        for count in map(int, chunk.log_probabilities):
            part.tokens += self._held[:count]
            del self._held[:count]
            part.offsets += [self._offset] * count
            self._offset += 1
