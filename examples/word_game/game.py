"""WordGame: a class as one writes it for the `environment_factory` of TRL's trainers."""

from word_game.words import GUESSES, WORDS, marks


class WordGame:
    """Four guesses for a word of three letters, each of them a, b, c or d."""

    def __init__(self) -> None:
        self.word, self.left, self.solved = "", 0, False

    def reset(self, word: str, **row: object) -> None:
        """Begin a game; called with all columns of a row."""
        self.word, self.left, self.solved = word, GUESSES, False

    def guess(self, word: str) -> str:
        """Guess the word.

        Args:
            word: three letters, each of them a, b, c or d

        Returns:
            Each letter with a plus if it is right, else with a minus.
        """
        if self.solved or not self.left:
            raise ValueError("the game is over")
        if word not in WORDS:
            raise ValueError(f"{word!r} is not three of the letters a, b, c and d")
        self.left -= 1
        self.solved = word == self.word
        return marks(word, self.word)

    def get_reward(self) -> float:
        """1 if it was guessed, else 0."""
        return float(self.solved)
