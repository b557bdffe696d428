"""A cursor over the tokens of a text."""

from groupwise_verifiable.reading.tokens import Token

END = Token("end", "")


class UnreadableError(ValueError):
    """A text that the grammar does not read."""


class Stream:
    """Steps over tokens; names: letters that are unknowns and no units."""

    def __init__(self, stream: list[Token], names: frozenset[str]) -> None:
        self.stream, self.names = stream, names
        self.position = self.depth = self.bars = 0
        self.in_set = False  # where a colon or a bar separates

    @property
    def next(self) -> Token:
        return self.stream[self.position] if self.position < len(self.stream) else END

    def after(self, count: int = 1) -> Token:
        place = self.position + count
        return self.stream[place] if place < len(self.stream) else END

    def take(self, *spellings: str) -> str | None:
        """The next token's text if it is a sign or command among these, and steps over it."""
        token = self.next
        if token.kind in ("sign", "command") and token.text in spellings:
            self.position += 1
            return token.text
        return None

    def take_words(self, *words: str) -> str | None:
        token = self.next
        if token.kind == "word" and token.text.lower() in words:
            self.position += 1
            return token.text.lower()
        return None

    def words(self) -> str:
        """The words that come next, also joined by hyphens."""
        words: list[str] = []
        while self.next.kind == "word" or (
            self.next.text in ("-", "'") and words and self.after().kind == "word"
        ):
            if self.next.kind == "word" and words and self.next.text.lower() in ("and", "or"):
                break
            words.append(self.next.text)
            self.position += 1
        return " ".join(words).replace(" - ", "-").replace(" ' ", "'")
