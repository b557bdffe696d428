"""Draw the pictures of docs/architecture.md.

python docs/pictures/architecture.py
"""

from concepts import BLUE, GREEN, HERE, ORANGE, SOFT, arrow, box, line, svg, text

FLOORS = [
    [("command line", "train, resume, check, eval")],
    [
        ("run", "the loop, resuming"),
        ("building", "sections to parts"),
        ("recording", "files, warnings"),
    ],
    [
        ("experience", "judged groups"),
        ("learning", "updates of weights"),
        ("evaluation", "held-out prompts"),
    ],
    [("episodes", "play, sample"), ("scoring", "call rewards"), ("plugins", "names to objects")],
    [
        ("algorithms", "GRPO, its parts"),
        ("environments", "built in"),
        ("prompts", "rows, draws"),
        ("storage", "files of a run"),
    ],
    [("record", "Group, Episode, Call"), ("config", "YAML to sections")],
    [("contract", "Policy, Sampler, Environment, Reward, Algorithm, Callback, hooks, data types")],
    [("kit", "errors, options, processes, memory: what authors import besides")],
]
"""Of the core, from top to bottom."""
SHARED = ("shared", "messages, sandbox, laws")
"""Packages without plugins."""
OUTSIDE = [
    (("policies", "language models, images"), BLUE),
    (("algorithms", "variants of GRPO"), BLUE),
    (("environments, data", "tools, files, tables"), BLUE),
    (("tools of a run", "console, report, commands"), BLUE),
    (("rewards", "verifiers, CLIP, judges"), GREEN),
    (("yours", "a package or a file"), GREEN),
]


def house() -> str:
    drawn = text(250, 20, "core", at="middle", weight=600)
    drawn += text(620, 20, "plugins and rewards", at="middle", weight=600)
    for floor, rooms in enumerate(FLOORS):
        width = (490 - 8 * (len(rooms) - 1)) / len(rooms)
        colour = ORANGE if floor >= len(FLOORS) - 2 else SOFT
        for number, (name, note) in enumerate(rooms):
            x, y = 8 + number * (width + 8), 32 + 54 * floor
            drawn += box(x, y, width, 46, name, colour=colour, note=note)
    for number, ((name, note), colour) in enumerate(OUTSIDE):
        drawn += box(530, 32 + 46 * number, 190, 40, name, colour=colour, note=note)
    drawn += arrow(625, 302, 625, 314)
    drawn += box(530, 316, 190, 40, SHARED[0], colour=SOFT, note=SHARED[1])
    drawn += line(625, 356, 625, 379, "#24292f") + arrow(625, 379, 502, 379)
    drawn += line(625, 379, 625, 433, "#24292f") + arrow(625, 433, 502, 433)
    return drawn + text(632, 410, "imports", size=11)


def step() -> str:
    upper = [
        ("draw prompts", "Groups", SOFT),
        ("play", "Episodes, Calls", SOFT),
        ("sample", "Rollouts [B, T]", BLUE),
        ("judge", "Scores [B, R]", GREEN),
        ("credit, refill", "lists of Groups", SOFT),
    ]
    lower = [
        ("replay, gather", "Rollouts, Scores", SOFT),
        ("targets", "advantages, weights", ORANGE),
        ("forward", "log-probs [b, t]", BLUE),
        ("loss", "[b, t], then a sum", ORANGE),
        ("optimizer", "new weights", SOFT),
    ]
    drawn = text(365, 18, "the record: what is learned is written on it", at="middle", size=12)
    for y, parts in ((28, upper), (138, lower)):
        for number, (name, note, colour) in enumerate(parts):
            x = 8 + 145 * number
            drawn += box(x, y, 132, 52, name, colour=colour, note=note)
            if number:
                drawn += arrow(x - 13, y + 26, x - 2, y + 26)
    drawn += line(654, 80, 654, 104, "#24292f") + line(654, 104, 74, 104, "#24292f")
    drawn += arrow(74, 104, 74, 134)
    drawn += text(365, 126, "tensors: gathered once for each learner", at="middle", size=12)
    drawn += line(654, 190, 654, 212, "#24292f") + line(654, 212, 364, 212, "#24292f")
    return drawn + text(356, 216, "the sampler follows the new weights", at="end", size=12)


if __name__ == "__main__":
    for draw, height in ((house, 470), (step, 226)):
        path = HERE / f"architecture_{draw.__name__}.svg"
        path.write_text(svg(draw(), height), encoding="utf-8")
