"""Words: the games of `examples/word_game.yaml`, one for each row, and how guesses are answered."""

import random
from itertools import product

LETTERS = "abcd"
WORDS = tuple(map("".join, product(LETTERS, repeat=3)))
GUESSES = 4
PROMPT = "Guess the word."


def marks(guess: str, word: str) -> str:
    """Each letter of a guess with `+` if it is right, else with `-`: `a+ b- d+`."""
    pairs = zip(guess, word, strict=True)
    return " ".join(own + ("+" if own == other else "-") for own, other in pairs)


class Words:
    """Rows with the same prompt, each with its number and the word to guess."""

    key = "game"  # decides what is held out, since all prompts are the same

    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, index: int) -> dict[str, str | int]:
        number = range(len(self))[index]
        word = random.Random(number).choice(WORDS)
        return {"prompt": PROMPT, "game": number, "word": word}
