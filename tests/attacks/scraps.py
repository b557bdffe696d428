"""Fragments of text that a model may write, and of text that nobody would."""

_TAGS = (
    *("<think>", "</think>", "<answer>", "</answer>", "<think>\n", "\n</think>\n", "\n<answer>\n"),
    *(
        "\n</answer>",
        "<answer",
        "answer>",
        "<",
        ">",
        "/",
        "\\",
        "\\boxed{",
        "}",
        "{",
        "$",
        "$$",
        "`",
    ),
)
_NUMBERS = (
    *("```", "5", "-5", "+", "\u2212", "\u2013", ",", ".", "1,", "000", "1/", "/ 2", "e9", "E-999"),
    *("^", "%", "0x", "\u0665", "\uff15", "\u00b2", "\U0001d7d3", "Nan", "inf", "None"),
)
_SPACES = (
    " ",
    "\n",
    "\t",
    "\r",
    "\x0b",
    "\x85",
    "\u2028",
    "\xa0",
    "\u200b",
    "\u202e",
    "\ufeff",
    "\0",
)
_LETTERS = (
    *(
        "\ud800",
        "\udfff",
        "\U0010ffff",
        "e\u0301",
        "\u0301",
        "\u0130",
        "\u00df",
        "\ufb01",
        "\u1e9e",
    ),
    *(
        "the sum is ",
        "die Summe ist ",
        "\u4e2d\u6587",
        "\u304b\u306a",
        "\ud55c\uae00",
        "\u0439",
        "\u0e01",
    ),
)
FRAGMENTS = (*_TAGS, *_NUMBERS, *_SPACES, *_LETTERS, "word ")

# Fragments that are repeated to a long text.
UNITS = (
    *FRAGMENTS,
    *("a", "1", "a ", "1 ", "1.", ".1", "1-", "- ", "a\u0439\u4e2d ", "a\u0439\u4e2d", "a\u0301"),
    *("\u0301\u0316", "$a", "\\a", "<a", "<a>", "```a", "1 +", "((", "1)", "1*", "[", "x_", "1 \t"),
    "We add the two numbers, and then we divide their sum by three. ",
    "".join(map(chr, range(0x20, 0x3000))),
)
