#!/usr/bin/env python3
"""Measures whether the clips of the demo's checkpoint show what their prompts say: colour, shape, way and background.

    check_demo.py PROGRAM MODEL [clips=40] [seed=1]   generates clips and measures them; exit 1 below 90 %
    check_demo.py frames FOLDER                       says what a folder of PNG frames shows
    check_demo.py --self-test                         measures drawn clips of every scene, and expects each to be named

Needs Python alone. Colours are the nearest of those that the checkpoint was trained on (train_demo.py). A shape is named
after the drawn one of the same area and centre that overlaps it most. Its way is that of its centre from the first to
the last frame.
"""
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import zlib

DRAWN = 48  # pixels of a side of drawn clips: half of the checkpoint's, which is quicker
COLOURS = {"red": (230, 31, 31), "green": (31, 191, 51), "blue": (31, 64, 217), "yellow": (242, 217, 26)}
BACKGROUNDS = {"white": (242, 242, 242), "black": (15, 15, 15)}
SHAPES = ("triangle", "ball", "square")
LEAST_OVERLAP = 0.7  # intersection over union with a shape of another class is up to 0.83
WAYS = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}
LEAST_TRAVEL = 0.2  # of the frame's width
WANTED = 0.9


def scenes():
    return [(colour, shape, way, ground) for colour in COLOURS for shape in SHAPES for way in WAYS for ground in BACKGROUNDS]


def prompt_of(scene):
    colour, shape, way, ground = scene
    return f"a {colour} {shape} moves {way} on a {ground} background"


# --- PNG, as `zoetrope generate` writes it: 8 bits, RGB, not interlaced ------------------------------------------------


def read_png(path):
    """Rows of (r, g, b)."""
    data, packed = path.read_bytes(), b""
    width, height, bits, kind, _, _, interlaced = struct.unpack(">IIBBBBB", data[16:29])
    if (bits, kind, interlaced) != (8, 2, 0):
        raise SystemExit(f"{path}: is no plain RGB picture of 8 bits")
    at = 8
    while at < len(data):
        length, name = struct.unpack(">I4s", data[at:at + 8])
        if name == b"IDAT":
            packed += data[at + 8:at + 8 + length]
        at += 12 + length
    raw, stride = zlib.decompress(packed), 3 * width
    rows, above = [], bytes(stride)
    for y in range(height):
        method, line = raw[y * (stride + 1)], bytearray(raw[y * (stride + 1) + 1:(y + 1) * (stride + 1)])
        for i in range(stride):
            left, corner = (line[i - 3], above[i - 3]) if i >= 3 else (0, 0)
            up = above[i]
            if method == 1:
                guess = left
            elif method == 2:
                guess = up
            elif method == 3:
                guess = (left + up) // 2
            elif method == 4:
                estimate = left + up - corner
                guess = min((abs(estimate - left), 0, left), (abs(estimate - up), 1, up), (abs(estimate - corner), 2, corner))[2]
            else:
                break
            line[i] = (line[i] + guess) & 255
        above = bytes(line)
        rows.append([tuple(above[i:i + 3]) for i in range(0, stride, 3)])
    return rows


# --- what a clip shows ---------------------------------------------------------------------------------------------------


def distance(a, b):
    return sum((x - y) ** 2 for x, y in zip(a, b)) ** 0.5


def nearest(colour, named):
    return min(named, key=lambda name: distance(colour, named[name]))


def median(values):
    return sorted(values)[len(values) // 2]


def mean(pixels):
    return tuple(sum(pixel[c] for pixel in pixels) / len(pixels) for c in range(3))


def largest_part(mask):
    """The largest connected set of the points in `mask`."""
    best, rest = set(), set(mask)
    while len(rest) > len(best):
        part, edge = set(), [rest.pop()]
        while edge:
            x, y = edge.pop()
            part.add((x, y))
            for point in ((x + 1, y), (x - 1, y), (x, y + 1), (x, y - 1)):
                if point in rest:
                    rest.remove(point)
                    edge.append(point)
        best = max(best, part, key=len)
    return best


def inside(shape, dx, dy, radius):
    """Whether a point beside the middle of a drawn shape is in it."""
    if shape == "ball":
        return dx * dx + dy * dy < radius * radius
    if shape == "square":
        return max(abs(dx), abs(dy)) < 0.88 * radius
    return dy < 0.75 * radius and 2 * abs(dx) - dy < 1.25 * radius


def overlaps(part, centre):
    """Intersection over union of the points with each drawn shape of their area and centre of mass."""
    area, found = len(part), {}
    for shape in SHAPES:
        radius = {"ball": (area / 3.14159) ** 0.5, "square": area ** 0.5 / 2 / 0.88, "triangle": (area / 2) ** 0.5}[shape]
        lower = radius * (0.75 - 2 / 3) if shape == "triangle" else 0  # of its centre of mass below its middle
        reach = range(-int(2 * radius), int(2 * radius) + 2)
        drawn = {(round(centre[0]) + i, round(centre[1]) + j) for i in reach for j in reach
                 if inside(shape, round(centre[0]) + i - centre[0], round(centre[1]) + j - centre[1] + lower, radius)}
        found[shape] = len(part & drawn) / len(part | drawn)
    return found


def measure_frame(rows):
    """(background, colour, overlaps, centre) of one frame; None where no single shape is seen."""
    height, width = len(rows), len(rows[0])
    edge = rows[0] + rows[-1] + [row[0] for row in rows] + [row[-1] for row in rows]
    ground = tuple(median([pixel[c] for pixel in edge]) for c in range(3))
    half = min(distance(ground, colour) for colour in COLOURS.values()) / 2
    mask = {(x, y) for y in range(height) for x in range(width) if distance(rows[y][x], ground) > half}
    part = largest_part(mask)
    if not 0.02 < len(part) / (width * height) < 0.25 or len(part) < 0.9 * len(mask):
        return None
    xs, ys = [x for x, _ in part], [y for _, y in part]
    wide, high = max(xs) - min(xs) + 1, max(ys) - min(ys) + 1
    if not 0.6 < wide / high < 1.7:
        return None
    inner = [rows[y][x] for x, y in part if {(x + 1, y), (x - 1, y), (x, y + 1), (x, y - 1)} <= part]
    centre = (sum(xs) / len(xs), sum(ys) / len(ys))
    return ground, mean(inner), overlaps(part, centre), (centre[0] / width, centre[1] / height)


def measure(frames):
    """(colour, shape, way, background) of a clip, "none" for what is not there."""
    seen = [measure_frame(frame) for frame in frames]
    if None in seen:
        return "none", "none", "none", "none"
    first, last = seen[0], seen[-1]
    dx, dy = last[3][0] - first[3][0], last[3][1] - first[3][1]
    way = max(WAYS, key=lambda name: dx * WAYS[name][0] + dy * WAYS[name][1])
    if max(abs(dx), abs(dy)) < LEAST_TRAVEL or min(abs(dx), abs(dy)) > 0.5 * max(abs(dx), abs(dy)):
        way = "none"
    overlap = {name: sum(frame[2][name] for frame in seen) / len(seen) for name in SHAPES}
    shape = max(SHAPES, key=overlap.get)
    if overlap[shape] < LEAST_OVERLAP:
        shape = "none"
    colours, grounds = [nearest(frame[1], COLOURS) for frame in seen], [nearest(frame[0], BACKGROUNDS) for frame in seen]
    return (colours[0] if len(set(colours)) == 1 else "none", shape, way, grounds[0] if len(set(grounds)) == 1 else "none")


def measure_folder(folder):
    files = sorted(folder.glob("*.png"))
    if not files:
        raise SystemExit(f"{folder}: holds no .png file")
    return measure([read_png(file) for file in files[::4]])  # every fourth frame: the first and last are among 4k + 1


# --- the three uses --------------------------------------------------------------------------------------------------------


def check(program, model, clips, seed):
    chosen = scenes()
    random.Random(seed).shuffle(chosen)
    chosen = [chosen[i % len(chosen)] for i in range(clips)]
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "prompts.txt").write_text("".join(prompt_of(scene) + "\n" for scene in chosen))
        run = subprocess.run([program, "generate", str(pathlib.Path(__file__).parent.parent / "configs/demo.yml"), f"model={model}",
                        f"prompts={folder}/prompts.txt", f"output={folder}/clip/", f"seed={seed}", "summary=none"],
                       stderr=subprocess.PIPE, text=True)
        if run.returncode != 0:
            raise SystemExit(run.stderr.strip().split("\n")[-1])
        seen = [measure_folder(folder / f"clip_{i:03}" if clips > 1 else folder / "clip") for i in range(clips)]
    right = [0] * 5
    for scene, found in zip(chosen, seen):
        same = [a == b for a, b in zip(scene, found)]
        right = [count + one for count, one in zip(right, [*same, all(same)])]
        if not all(same):
            print(f"'{prompt_of(scene)}' shows: {', '.join(found)}")
    for name, count in zip(("colour", "shape", "way", "background", "all four"), right):
        print(f"{name:<11} {count} of {clips}")
    return 0 if min(right[:4]) >= WANTED * clips else 1


def drawn(scene, random_state):
    """Three frames of a scene, drawn without smoothing."""
    colour, shape, way, ground = scene
    radius, across = random_state.uniform(7.5, 9), random_state.uniform(-7, 7)
    frames = []
    for along in (-13, 1, 13):
        x0 = DRAWN / 2 + (along * WAYS[way][0] or across)
        y0 = DRAWN / 2 + (along * WAYS[way][1] or across)
        frame = []
        for y in range(DRAWN):
            row = []
            for x in range(DRAWN):
                dx, dy = x + 0.5 - x0, y + 0.5 - y0
                row.append(COLOURS[colour] if inside(shape, dx, dy, radius) else BACKGROUNDS[ground])
            frame.append(row)
        frames.append(frame)
    return frames


def self_test():
    random_state, wrong = random.Random(1), 0
    for scene in scenes():
        frames = drawn(scene, random_state)
        found = measure(frames)
        if found != scene:
            wrong += 1
            print(f"{scene} was taken for {found}")
        resting = measure(frames[:1] * 3)
        if resting != (*scene[:2], "none", scene[3]):
            wrong += 1
            print(f"{scene} at rest was taken for {resting}")
    empty = [[BACKGROUNDS["white"]] * DRAWN] * DRAWN
    if measure([empty] * 3) != ("none",) * 4:
        wrong += 1
        print("an empty clip shows something")
    return 1 if wrong else 0


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    if len(sys.argv) == 3 and sys.argv[1] == "frames":
        print(", ".join(measure_folder(pathlib.Path(sys.argv[2]))))
        return 0
    words = [word for word in sys.argv[1:] if "=" not in word]
    settings = {"clips": 40, "seed": 1, **{key: int(value) for key, value in (word.split("=") for word in sys.argv[1:] if "=" in word)}}
    if len(words) != 2 or set(settings) != {"clips", "seed"}:
        print(__doc__, file=sys.stderr)
        return 2
    return check(*words, settings["clips"], settings["seed"])


if __name__ == "__main__":
    sys.exit(main())
