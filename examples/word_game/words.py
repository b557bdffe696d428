"""Words: the games of `examples/word_game.yaml`, one for each row, and how guesses are answered."""

import random

WORDS = (
    *("ant", "ape", "asp", "bat", "bee", "boa", "bug", "cat", "cod", "cow", "cub", "doe"),
    *("dog", "eel", "elk", "emu", "ewe", "fly", "fox", "gnu", "hen", "hog", "jay", "kid"),
    *("kit", "koi", "nit", "owl", "pig", "pug", "ram", "rat", "sow", "tit", "yak"),
)
GUESSES = 4


def marks(guess: str, word: str) -> str:
    """Of each letter of a guess `+` if it is at its place, `?` if at another, else `-`."""
    pairs = zip(guess, word, strict=True)
    return " ".join(a + ("+" if a == b else "?" if a in word else "-") for a, b in pairs)


class Words:
    """Rows with the same prompt, each with its number and the word to guess."""

    key = "game"  # decides what is held out, since all prompts are the same

    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, index: int) -> dict[str, str | int]:
        number = range(len(self))[index]
        word = random.Random(number).choice(WORDS)
        return {"prompt": "Guess the animal.", "game": number, "word": word}
