"""A class as one writes it for TRL's trainer; it knows nothing of Groupwise."""


class WordGame:
    """Guess a word; every guess is answered letter by letter."""

    def __init__(self):
        self.made = 0
        self.secret, self.solved, self.guesses = "", False, []

    def reset(self, word: str = "", **row) -> str | None:
        self.secret, self.solved, self.guesses = word, False, []
        return f" It has {len(word)} letters."

    def guess(self, word: str) -> str:
        """Guess the word.

        Args:
            word: The word that you guess.

        Returns:
            Of each letter a plus if it is right, else a minus.
        """
        if self.solved:
            raise ValueError("the game is over")
        if len(word) != len(self.secret):
            raise ValueError(f"{word!r} has not {len(self.secret)} letters")
        self.guesses.append(word)
        self.solved = word == self.secret
        pairs = zip(word, self.secret, strict=True)
        return "".join("+" if own == other else "-" for own, other in pairs)

    async def hint(self, place: int = 0) -> dict:
        """Ask for a letter of the word.

        Args:
            place: Its place, counted from 0.

        Returns:
            The letter.
        """
        return {"letter": self.secret[place]}

    def _private(self):
        raise AssertionError

    @property
    def score(self):
        raise AssertionError("properties are not read")

    def get_reward(self) -> float:
        return float(self.solved) / max(1, len(self.guesses))


class Silent:
    """Without a reward of its own, and without an observation."""

    def __init__(self):
        self.answer = None

    def reset(self, **row):
        self.answer = None

    def answer_with(self, text: str) -> list:
        """Answer the question.

        Args:
            text: The answer.
        """
        self.answer = text
        return [{"type": "text", "text": "noted"}]


def solved(environments, **columns):
    """A reward as TRL's users write it."""
    return [float(environment.solved) for environment in environments]
