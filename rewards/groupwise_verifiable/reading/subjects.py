"""What prompts ask for and speak of, as patterns: notations, percent, degrees, places, areas."""

import re

NOTATIONS = {
    "fraction": re.compile(
        r"\b(?:as|to|into) an? (?:[a-z]+ ){0,3}fraction|\bcommon fraction", re.I
    ),
    "decimal": re.compile(
        r"\b(?:as|to|into) an? (?:[a-z]+ ){0,2}decimal|in decimal (?:form|not)", re.I
    ),
    "mixed": re.compile(r"\bmixed (?:number|fraction)", re.IGNORECASE),
    "percent": re.compile(r"\b(?:as an?|in) (?:[a-z]+ )?percent|\bas %", re.IGNORECASE),
    "scientific": re.compile(r"\b(?:scientific|exponential|standard) (?:notation|form)", re.I),
    "simplest": re.compile(r"simplest|simplif|lowest terms|reduced? |irreducible", re.IGNORECASE),
}
"""The notations that a prompt asks for in so many words."""

SUBJECTS = {
    "percent": re.compile(
        r"(?<![0-9])(?<![0-9]\s)(?:%\s*\?|\bper\s?cent)|\u767e\u5206", re.IGNORECASE
    ),
    "degrees": re.compile(
        r"degree|°|\\circ|\bangle|\\angle|temperature|rotat|\u89d2|\u5ea6", re.IGNORECASE
    ),
    "radians": re.compile(r"\brad(?:ian)?s?\b|\\pi|\u03c0", re.IGNORECASE),
    "positive": re.compile(
        r"positive|>\s*0|\\ge?q?\s*0|side|length|radius|distance|diagonal|hypoten", re.I
    ),
    "rationalizing": re.compile(r"rationali[sz]", re.IGNORECASE),
    "derivative": re.compile(
        r"derivative|differentiat|'|slope|rate of change|\u5bfc", re.IGNORECASE
    ),
    "calculus": re.compile(r"\bderivative|differentiat|integra|\\i*int(?![a-z])", re.IGNORECASE),
    "size": re.compile(
        r"determinant|\\?det\b|modulus|\\bsize|how many|number of|norm\b|magnitude|absolute",
        re.IGNORECASE,
    ),
    "form": re.compile(r"\bform\b", re.IGNORECASE),
    "equation": re.compile(r"\bequations? (?:of|for)\b|\b(?:tangent|normal) line", re.IGNORECASE),
    "place": re.compile(
        r"\b(?:which|what) (?:[a-z]+ ){0,2}(?:position|place|rank|row|floor|day|term|month|year)\b"
        r"|\bwhere in (?:the|a)\b",
        re.IGNORECASE,
    ),
    "share": re.compile(
        r"\b(?:how (?:many|much|far|long|fast)|what)\b[^.?!0-9]*\b(?:each|every|per|apiece|equal)",
        re.IGNORECASE,
    ),
    "least": re.compile(r"\b(?:least|minimum|minimal|smallest|fewest|lowest)\b", re.IGNORECASE),
    "most": re.compile(r"\b(?:most|maximum|maximal|largest|greatest|highest|can)\b", re.IGNORECASE),
    "chance": re.compile(r"probab|chance|likel|odds|fraction|proportion", re.IGNORECASE),
    "change": re.compile(r"\bby (?:how|what)\b", re.IGNORECASE),
    "permutation": re.compile("permut|cycle", re.IGNORECASE),
    "remainder": re.compile(r"remainder|modulo|\\p?mod", re.IGNORECASE),
    "times": re.compile(r"\btime\b|clock|\bwhen\b|[0-9]\s?[ap]\.?m\b", re.IGNORECASE),
    "bases": re.compile(r"\bbases?\b|\bbinary|\boctal|hexadecimal", re.IGNORECASE),
    "points": re.compile(
        r"\bpoints?\b|\bordered\b|coordinate|vert(?:ex|ices)|vector|intersect|\bpairs?\b|system",
        re.IGNORECASE,
    ),
    "product": re.compile(r"\bproduct\b", re.IGNORECASE),
    "ratio": re.compile(r"\bratio|proportion|odds", re.IGNORECASE),
    "percentage": re.compile(
        r"\b(?:what|which|how many)(?: is the)?(?: [a-z]+)? (?:%|per\s?cent)", re.IGNORECASE
    ),
    "area": re.compile(r"\barea|surface|square|region", re.IGNORECASE),
    "rate": re.compile(r"\bper\b|\brate|speed|velocity|\beach\b|\bevery\b", re.IGNORECASE),
    "volume": re.compile(r"volume|capacity|cub(?:e|ic)|space", re.IGNORECASE),
}
"""What a prompt is about, where an answer is read by it."""
