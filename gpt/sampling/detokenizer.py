"""The ids of a sample as characters, as they come: of a byte model, several make one."""

import codecs
from collections.abc import Sequence

from gpt.text.vocabulary import Vocabulary

LONGEST_CHARACTER = 4  # bytes of UTF-8


class Detokenizer:
    """The characters of one sample, each with its log-probability: of bytes, the sum of theirs.

    Bytes that are no UTF-8 become U+FFFD, as in `Vocabulary.decode` of all of them. Where a prompt
    ends amid a character, the sample's first bytes complete it.
    """

    def __init__(self, vocabulary: Vocabulary, prompt: Sequence[int] = ()) -> None:
        self.names = vocabulary.names
        self.utf8 = None
        self.waiting: list[float] = []  # of the bytes of a character that is not complete
        if vocabulary.is_bytes:
            self.utf8 = codecs.getincrementaldecoder("utf-8")("replace")
            for byte in prompt[1 - LONGEST_CHARACTER :]:
                self.push(byte, 0.0)

    def push(self, id_: int, log_probability: float) -> list[tuple[str, float]]:
        """The characters that end with this id: of bytes none, one, or two.

        Two where those that wait are no character, and the byte is one of its own.
        """
        if self.utf8 is None:
            return [(self.names[id_], log_probability)]
        self.waiting.append(log_probability)
        text = self.utf8.decode(bytes([id_]))
        complete = len(self.waiting) - len(self.utf8.getstate()[0])
        start, characters = 0, []
        for end, character in enumerate(text, complete - len(text) + 1):
            characters.append((character, sum(self.waiting[start:end])))
            start = end
        del self.waiting[:complete]
        return characters
