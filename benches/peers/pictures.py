"""Pictures of what `compare` measured, one for each network: peaks and step times, both as shares of the side's own plain step.

They are SVG without scripts, narrow enough for a telephone, in the colours of Rekindle's own pictures (`crates/rekindle-cli/src/plot/chart.rs`).
"""

import math
import re
from html import escape

# As on light paper, and on a dark screen.
PAPER, TEXT, SOFT, GRID = "#FFFFFF", "#1A1C1E", "#5B626A", "#E2E5E8"
COLOURS = {"PyTorch": "#D55E00", "Rekindle": "#0072B2"}
ON_DARK = {PAPER: "#15181C", TEXT: "#ECEEF0", SOFT: "#A7AFB8", GRID: "#2B3138", "#D55E00": "#F0803C", "#0072B2": "#3A96D0"}

# In pixels: the picture, the plot between its axes, the legend with its lines and second column, half a mark, and a digit of a label.
WIDTH, LEFT, TOP, RIGHT, BOTTOM = 400, 46, 58, 388, 318
LEGEND, LINE, COLUMN = BOTTOM + 60, 19, 244
HALF, DIGIT = 5, 7

SQUARE = [(-4.5, -4.5), (4.5, -4.5), (4.5, 4.5), (-4.5, 4.5)]
DIAMOND = [(0, -6), (6, 0), (0, 6), (-6, 0)]
TRIANGLE = [(0, -6), (6, 4.5), (-6, 4.5)]
CIRCLE = [(round(5 * math.cos(turn), 1), round(5 * math.sin(turn), 1)) for turn in (math.tau * k / 24 for k in range(24))]

# The ways of each side: what they are called in the results, with the label beside the mark, the mark, and its text in the legend.
WAYS = [
    ("PyTorch", r"`checkpoint_sequential`, (\d+) segments", SQUARE, "checkpoint_sequential"),
    ("PyTorch", r"`checkpoint` of each block()", DIAMOND, "checkpoint of each block"),
    ("PyTorch", r"the same, products kept()", TRIANGLE, "the same, products kept"),
    ("PyTorch", r"`torch.compile`, .* = ([\d.]+)`", CIRCLE, "torch.compile, its budget"),
    ("Rekindle", r"`--segments (\d+)`", SQUARE, "--segments"),
    ("Rekindle", r"`--budget`, (\d+%)", CIRCLE, "--budget"),
]


def tag(name, content="", **attributes):
    written = "".join(f' {key.replace("_", "-")}="{value}"' for key, value in attributes.items())
    return f"<{name}{written}>{content}</{name}>"


def shape(corners, side, x, y, hint=""):
    """A mark: PyTorch's are hollow, Rekindle's filled."""
    points = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in corners)
    inner, ring, width = ("none", COLOURS[side], 2) if side == "PyTorch" else (COLOURS[side], PAPER, 1)
    return tag("polygon", tag("title", escape(hint)) if hint else "", points=points, fill=inner, stroke=ring, stroke_width=width)


def cross(x, y):
    return tag("path", d=f"M{x - 6:.1f},{y:.1f}h12m-6,-6v12", stroke=TEXT, stroke_width=2)


def whisker(colour, x, low, high):
    return tag("path", d=f"M{x:.1f},{low:.1f}V{high:.1f}m-3,0h6", stroke=colour, fill="none")


class Axis:
    """From the least to the largest value, with some room at both ends, in pixels from `start` to `end`."""

    def __init__(self, values, start, end):
        room = 0.09 * (max(values) - min(values))
        self.low, self.high = min(values) - room, max(values) + room
        self.start, self.end = start, end

    def at(self, value):
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self):
        """Four to nine multiples of a round number, and the digits that tell them apart."""
        step = next(step for step in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10) if (self.high - self.low) / step < 9)
        return [step * k for k in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)], 1 if step >= 0.1 else 2


def points(runs):
    """Of each way with numbers: side, name, peak and step time as in the table, and the slowest round, as shares of the plain step."""
    # The first run of a compiled network is not a round.
    rounds = len(runs["PyTorch, plain"])
    best = {
        name: (max(run["peak_bytes"] for run in of), min(run["step_s"] for run in of), max(run["step_s"] for run in of[-rounds:]))
        for name, of in runs.items()
        if not any("error" in run for run in of)
    }
    for name, values in best.items():
        side, way = name.split(", ", 1)
        peak, step, _ = best[f"{side}, plain"]
        yield side, way, values[0] / peak, values[1] / step, values[2] / step


def label(text, x, y, taken):
    """A text beside a mark, where it covers nothing; the place is then taken. Where there is no room, none."""
    width = DIGIT * (len(text) + 0.6 * text.count("%") - 0.5 * text.count(".") - text.count(","))
    beside = [(8, 4), (-8 - width, 4), (-width / 2, -9), (-width / 2, 18)]
    beside += [(6, -6), (-6 - width, -6), (6, 15), (-6 - width, 15)]
    beside += [(13, 4), (-13 - width, 4), (-width / 2, -15), (-width / 2, 24), (-2, 22), (2 - width, 22)]
    for dx, dy in beside:
        box = x + dx, y + dy - 9, x + dx + width, y + dy
        inside = box[0] > LEFT + 2 and box[2] < RIGHT + 8 and box[1] > TOP - 8 and box[3] < BOTTOM - 2
        if inside and all(box[2] <= a[0] or a[2] <= box[0] or box[3] <= a[1] or a[3] <= box[1] for a in taken):
            taken.append(box)
            return tag("text", text, x=f"{box[0]:.1f}", y=f"{box[3]:.1f}", font_size=12)
    return ""


def legend(used):
    """Two columns: the ways of each side."""
    columns = {"PyTorch": [("", "PyTorch (hollow)")], "Rekindle": [("", "Rekindle (filled)")]}
    for side, _, corners, text in used:
        columns[side].append((shape(corners, side, 6, 0), text))
    columns["Rekindle"] += [(cross(6, 0), "plain, of both"), (whisker(TEXT, 6, 6, -6), "slowest round")]
    rows = max(len(column) for column in columns.values())
    entries = [
        tag("g", mark + tag("text", text, x=20 if mark else 0, dy=4), transform=f"translate({14 + COLUMN * place} {LEGEND + LINE * row})")
        for place, column in enumerate(columns.values())
        for row, (mark, text) in enumerate(column)
    ]
    return entries, LEGEND + LINE * rows


def picture(network, runs):
    """The picture of one network's runs, as SVG."""
    found = list(points(runs))
    x_axis = Axis([peak for _, _, peak, _, _ in found], LEFT, RIGHT)
    y_axis = Axis([step for _, _, _, *steps in found for step in steps], BOTTOM, TOP)
    drawn = []
    shares, digits = y_axis.ticks()
    for share in shares:
        y = f"{y_axis.at(share):.1f}"
        drawn.append(tag("line", x1=LEFT, x2=RIGHT, y1=y, y2=y, stroke=GRID))
        drawn.append(tag("text", f"{share:.{digits}f}x", x=LEFT, y=y, dx=-6, dy=4, text_anchor="end", fill=SOFT))
    for share in x_axis.ticks()[0]:
        drawn.append(tag("text", f"{share:.0%}", x=f"{x_axis.at(share):.1f}", y=BOTTOM, dy=17, text_anchor="middle", fill=SOFT))
    drawn.append(tag("path", d=f"M{LEFT},{TOP}V{BOTTOM}H{RIGHT}", stroke=SOFT, fill="none"))
    drawn.append(tag("text", "peak, as a share of the own plain peak", x=(LEFT + RIGHT) / 2, y=BOTTOM, dy=35, text_anchor="middle", fill=SOFT))

    whiskers, marks, taken, labels = [], [], [], {}
    for side, way, peak, step, slowest in found:
        x, y, high = x_axis.at(peak), y_axis.at(step), y_axis.at(slowest)
        if y - high > HALF:
            whiskers.append(whisker(COLOURS[side], x, y - HALF, high))
            taken.append((x - 4, high - 1, x + 4, y))
        taken.append((x - HALF - 1, y - HALF - 1, x + HALF + 1, y + HALF + 1))
        if way == "plain":
            continue
        text, corners = next((match[1], corners) for of, name, corners, _ in WAYS if of == side and (match := re.fullmatch(name, way)))
        hint = f"{side}, {way.replace('`', '')}: {peak:.0%}, {step:.2f}x to {slowest:.2f}x"
        marks.append(shape(corners, side, x, y, hint))
        # Marks of one kind at one place share a label.
        place = next((one for one in labels if one[0] == side and math.dist(one[1:], (x, y)) < HALF), (side, x, y))
        labels[place] = f"{labels[place]}, {text}" if place in labels else text
    # Hollow ones over filled ones.
    marks = [cross(x_axis.at(1), y_axis.at(1)), *reversed(marks)]
    written = [label(text, x, y, taken) for (_, x, y), text in labels.items() if text]

    used = [way for way in WAYS if any(side == way[0] and re.fullmatch(way[1], name) for side, name, *_ in found)]
    entries, height = legend(used)
    dark = "".join(f'[fill="{one}"]{{fill:{other}}}[stroke="{one}"]{{stroke:{other}}}' for one, other in ON_DARK.items())
    content = [
        tag("style", f"@media screen and (prefers-color-scheme:dark){{{dark}}}"),
        tag("rect", width=WIDTH, height=height, fill=PAPER),
        tag("text", network, x=14, y=22, font_size=16),
        tag("text", "step time, as a multiple of the own plain step", x=14, y=44, fill=SOFT),
        *drawn, *whiskers, *marks, *written, *entries,
    ]  # fmt: skip
    return tag(
        "svg", "".join(content), role="img", aria_label=f"{network}: peaks and step times of PyTorch's and Rekindle's ways to save memory",
        xmlns="http://www.w3.org/2000/svg", width=WIDTH, height=height, viewBox=f"0 0 {WIDTH} {height}", fill=TEXT,
        font_family="Arial,Helvetica,sans-serif", font_size=13, font_variant_numeric="tabular-nums",
    ) + "\n"  # fmt: skip


def draw(numbers, folder):
    """Writes `peers-NETWORK.svg` of each network of a results file."""
    for network, runs in numbers.items():
        (folder / f"peers-{network}.svg").write_text(picture(network, runs))
