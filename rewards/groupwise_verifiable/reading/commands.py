r"""Commands of LaTeX in another look than the one that is read: `\dfrac` is `\frac`.

Sizes, colours, bold type and spaces say nothing, and go.
"""

import re

_DROPPED = (
    "left right middle big bigl bigr bigm Big Bigl Bigr Bigm bigg biggl biggr biggm Bigg Biggl "
    "Biggr Biggm textstyle displaystyle limits tiny small normalsize large Large LARGE huge Huge "
    "overrightarrow textcolor colorbox underline underbrace overbrace uline boxed fbox bm "
    "boldsymbol bold vec "
    "mathcal mathscr mathnormal mathopen mathclose mathbin mathrel mathord ensuremath checkmark "
    "blacksquare square Box qed"
)
_COMMANDS = {
    **dict.fromkeys(_DROPPED.split(), " "),
    **dict.fromkeys(["nfrac", "dfrac", "tfrac", "cfrac", "sfrac", "nicefrac", "xfrac"], r"\frac"),
    **dict.fromkeys(("dbinom", "tbinom"), r"\binom"),
    **dict.fromkeys(["le", "leq", "leqslant", "leqq"], r" \le "),
    **dict.fromkeys(["ge", "geq", "geqslant", "geqq"], r" \ge "),
    **dict.fromkeys(["ldots", "dots", "cdots", "dotsc", "dotsb"], r"\ldots "),
    **dict.fromkeys(("varnothing", "empty"), r"\emptyset "),
    **dict.fromkeys(["Rightarrow", "Longrightarrow", "implies", "leadsto"], r"\implies "),
    **dict.fromkeys(("simeq", "doteq", "sim"), r"\approx "),
    **dict.fromkeys(("pounds", "textsterling"), "£"),
    **dict.fromkeys(("euro", "texteuro"), "€"),
    **dict.fromkeys(("yen", "textyen"), "¥"),
    **dict.fromkeys(("textdollar", "mathdollar"), r"\$"),
    **dict.fromkeys(("degree", "degrees", "textdegree"), r"^\circ "),
    **dict.fromkeys(("top", "intercal"), " T"),
    **dict.fromkeys(("vert", "lvert", "rvert", "lVert", "rVert", "Vert"), "|"),
    **dict.fromkeys(("smallsetminus", "backslash"), r"\setminus "),
    "neq": r" \ne ",
    "lt": "<",
    "gt": ">",
    "lbrace": r"\{",
    "rbrace": r"\}",
    "lbrack": "[",
    "rbrack": "]",
    "bigcup": r"\cup ",
    "wedge": r"\land ",
    "vee": r"\lor ",
    "lnot": r"\neg ",
    "colon": ":",
    "ast": r"\cdot ",
    "cr": r"\\ ",
    "Pr": "P",
    "measuredangle": r"\angle ",
    "Reals": r"\mathbbR ",
}
_COMMAND = re.compile(r"\\([a-zA-Z]+|\\)")


def spelled_out(text: str) -> str:
    """Returns a text with each command by the name that the grammar reads."""
    return _COMMAND.sub(lambda match: _COMMANDS.get(match[1], match[0]), text)
