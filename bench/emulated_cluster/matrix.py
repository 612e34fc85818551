"""Options, cells, link rates, and the table of predicted against measured times. Pure: starts no process."""
import dataclasses
import difflib
import math
import typing

import traffic

ELEMENT_BYTES = {"bf16": 2, "float32": 4}
DIFFERENT = 0.10  # if measured times differ by more than this, a prediction must find the best


class OptionError(Exception):
    """One sentence: which option, what is wrong, what would be right."""


@dataclasses.dataclass
class Options:
    program: str = "build/release/bin/zoetrope"
    shape: str = "1x8192x6x128"
    dtype: str = "bf16"
    layouts: str = "2x2,4x1"
    ratios: str = "0.3,1,3"
    ulysses: str = ""
    directions: str = "forward"
    repeat: str = "3"
    core_share: str = ""
    tries: str = "3"
    window: str = "0.15"
    json: str = ""
    profiles: str = ""

    HELP = {
        "program": "the zoetrope to measure",
        "shape": "shape of the attention, as BxSxHxD: batch, tokens, heads, head size",
        "dtype": "bf16 or float32",
        "layouts": "hosts x ranks per host, all with the same total number of ranks",
        "ratios": "link rates, as the transfer time of a ring of all ranks relative to its compute time",
        "ulysses": "Ulysses degrees; empty: every divisor of the ranks that is at most the heads",
        "directions": "ring directions, as ring_direction= has them",
        "repeat": "timed runs per cell, after a warm-up run",
        "core_share": "share of a core, at most 1: the speed of a device, relative to a core at the start of the run; it is "
                      "kept when the core's speed changes; 'none' sets no limit, and ranks that wait leave their core to "
                      "others; empty: half of the available share, so that there is a reserve when a core becomes slower",
        "tries": "how often a measurement is repeated that the host disturbed",
        "window": "seconds of a measurement of the calibration: many periods of the control groups, because one may contain "
                  "up to one period's share too much",
        "json": "file for everything that was measured",
        "profiles": "folder for the calibrated hardware profiles; empty: they are not kept",
    }


def parse_options(words):
    options = Options()
    names = [field.name for field in dataclasses.fields(Options)]
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise OptionError(f"'{word}' is not key=value; the keys are {', '.join(names)}")
        if name not in names:
            near = difflib.get_close_matches(name, names, 1)
            raise OptionError(f"'{name}' is not a key{f', did you mean {near[0]}' if near else ''}; the keys are "
                              f"{', '.join(names)}")
        setattr(options, name, value)
    return options


def numbers(name, text, convert, least, most, separator=","):
    """The values of one option, each in [least, most]."""
    values = []
    for part in text.split(separator):
        try:
            value = convert(part)
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            kind = "a whole number" if convert is int else "a number"
            raise OptionError(f"{name}={text}: '{part}' must be {kind} from {least:g} to {most:g}")
        values.append(value)
    return values


def number(name, text, convert, least, most):
    """The value of an option that has one."""
    values = numbers(name, text, convert, least, most)
    if len(values) != 1:
        raise OptionError(f"{name}={text}: one number is needed")
    return values[0]


@dataclasses.dataclass(frozen=True)
class Layout:
    hosts: int
    ranks_per_host: int

    @property
    def ranks(self):
        return self.hosts * self.ranks_per_host

    def cores(self, count):
        """Of each host, which of `count` cores it has: its part of them, never more than its devices."""
        if count < self.hosts:
            return [[index * count // self.hosts] for index in range(self.hosts)]
        each = min(count // self.hosts, self.ranks_per_host)
        return [list(range(index * each, (index + 1) * each)) for index in range(self.hosts)]

    def devices_on_a_core(self, count):
        """The most that share one of `count` cores."""
        devices = [0] * count
        for cores in self.cores(count):
            for place in range(self.ranks_per_host):
                devices[cores[place % len(cores)]] += 1
        return max(devices)

    def __str__(self):
        return f"{self.hosts}x{self.ranks_per_host}"


class Setting(typing.NamedTuple):
    ulysses: int
    ring: int
    direction: str

    @property
    def one_way(self):
        return self.direction == "forward"

    @property
    def name(self):
        return f"U{self.ulysses} R{self.ring}" + ("" if self.one_way else f" {self.direction}")

    @property
    def keys(self):
        return [f"ulysses_shards={self.ulysses}", f"ring_direction={self.direction}", "ulysses_attention_chunks=1"]


@dataclasses.dataclass(frozen=True)
class Plan:
    """The options, checked."""
    problem: traffic.Problem
    dtype: str
    layouts: tuple
    ratios: tuple
    degrees: tuple  # (U, R)
    directions: tuple
    repeat: int
    core_share: object  # None: no limit; 0: to be chosen by the number of cores
    tries: int

    @property
    def ranks(self):
        return self.layouts[0].ranks

    def cells(self):
        """The settings of one layout and rate; a direction matters to rings of more than two."""
        for ulysses, ring in self.degrees:
            for direction in self.directions if ring > 2 else self.directions[:1]:
                yield Setting(ulysses, ring, direction)


def make_plan(options):
    extents = numbers("shape", options.shape, int, 1, 2 ** 31, "x")
    if len(extents) != 4:
        raise OptionError(f"shape={options.shape}: must be BxSxHxD (batch, tokens, heads, head size), as 1x8192x6x128")
    if options.dtype not in ELEMENT_BYTES:
        raise OptionError(f"dtype={options.dtype}: must be one of {', '.join(ELEMENT_BYTES)}")
    problem = traffic.Problem(*extents, ELEMENT_BYTES[options.dtype])
    layouts = []
    for text in options.layouts.split(","):
        pair = numbers("layouts", text, int, 1, 200, "x")
        if len(pair) != 2:
            raise OptionError(f"layouts={options.layouts}: '{text}' must be hosts x ranks, as 2x2")
        if pair[0] < 2:
            raise OptionError(f"layouts={options.layouts}: '{text}' is one host, and without a link there is nothing to "
                              "emulate; name at least 2 hosts")
        layouts.append(Layout(*pair))
    ranks = {layout.ranks for layout in layouts}
    if len(ranks) > 1:
        raise OptionError(f"layouts={options.layouts}: they have {' and '.join(map(str, sorted(ranks)))} ranks; give all "
                          "of them the same number, so that one set of link rates serves all")
    ranks = ranks.pop()
    if problem.tokens < ranks:
        raise OptionError(f"shape={options.shape}: {problem.tokens} tokens are fewer than the {ranks} ranks; a ring of all "
                          "of them would send nothing")
    legal = [u for u in range(1, ranks + 1) if ranks % u == 0 and u <= problem.heads]
    chosen = legal
    if options.ulysses:
        chosen = numbers("ulysses", options.ulysses, int, 1, ranks)
        for degree in chosen:
            if degree not in legal:
                raise OptionError(f"ulysses={options.ulysses}: {degree} is not legal for {ranks} ranks and "
                                  f"{problem.heads} heads; legal are {', '.join(map(str, legal))}")
    share = 0.0
    if options.core_share == "none":
        share = None
    elif options.core_share:
        share = number("core_share", options.core_share, float, 0.1, 1)
    number("window", options.window, float, 0.001, 10)
    return Plan(problem, options.dtype, tuple(layouts), tuple(numbers("ratios", options.ratios, float, 0.01, 100)),
                tuple((u, ranks // u) for u in chosen), tuple(options.directions.split(",")),
                number("repeat", options.repeat, int, 1, 1000), share, number("tries", options.tries, int, 1, 100))


# ---- link rates ----

def link_rate(plan, compute_seconds, ratio):
    """Bytes/s at which the hops of a ring of all ranks take `ratio` times its compute; two figures, as a link has."""
    exact = traffic.ring_bytes(plan.problem, plan.ranks) / (ratio * compute_seconds) * 8
    digits = 1 - math.floor(math.log10(exact))
    return round(exact, digits) / 8


# ---- what was measured ----

@dataclasses.dataclass
class Cell:
    layout: str
    ratio: float        # wanted
    rate_mbit: float    # of a link, each way
    ulysses: int
    ring: int
    direction: str
    seconds_min: float
    seconds_median: float
    predicted: float
    link_mb: float      # that the busiest direction of a host's link carried in one run

    @property
    def name(self):
        return Setting(self.ulysses, self.ring, self.direction).name

    @property
    def hybrid(self):
        return self.ulysses > 1 and self.ring > 1

    @property
    def error(self):
        return self.predicted / self.seconds_median - 1


def groups(cells):
    """Cells of the same layout and rate, in order."""
    found = {}
    for cell in cells:
        found.setdefault((cell.layout, cell.ratio), []).append(cell)
    return found


@dataclasses.dataclass(frozen=True)
class Verdict:
    """One layout and rate: which is best, by either, and whether the measurement tells them apart."""
    best_measured: Cell
    best_predicted: Cell
    spread: float  # worst over best, measured
    lead: float    # second over best, measured

    @property
    def found(self):
        """The predicted best is the measured one, or as good but for what counts as equal."""
        return self.best_predicted.seconds_median <= self.best_measured.seconds_median * (1 + DIFFERENT)


def verdict(cells):
    measured = sorted(cells, key=lambda cell: cell.seconds_median)
    best = measured[0].seconds_median
    return Verdict(measured[0], min(cells, key=lambda cell: cell.predicted), measured[-1].seconds_median / best,
                   (measured[1].seconds_median if len(measured) > 1 else math.nan) / best)


def hybrid_sentence(cells):
    """Where U x R with both above 1 wins by measurement, and where it does not."""
    wins, ties, losses = [], [], []
    for (layout, ratio), group in groups(cells).items():
        hybrids = [cell.seconds_median for cell in group if cell.hybrid]
        others = [cell.seconds_median for cell in group if not cell.hybrid]
        if not hybrids or not others:
            continue
        gain = min(others) / min(hybrids) - 1
        place = f"{layout} at {ratio:g} ({gain:+.0%})"
        (wins if gain > DIFFERENT / 2 else losses if gain < -DIFFERENT / 2 else ties).append(place)
    parts = [f"{what}: {', '.join(places)}" for what, places in
             (("wins", wins), ("within 5 % of the best other", ties), ("loses", losses)) if places]
    return "The 2-D hybrid by measurement (best other's time over its own): " + "; ".join(parts) if parts else ""


def table(cells):
    lines = ["hosts x   ratio  link rate   cell             measured, s        predicted   error   link MB  best by",
             "ranks             Mbit/s                       least  median      s                   a run"]
    for (layout, ratio), group in groups(cells).items():
        found = verdict(group)
        for index, cell in enumerate(group):
            best = [name for name, holder in (("measurement", found.best_measured), ("prediction", found.best_predicted))
                    if holder is cell]
            place = f"{layout:<9} {ratio:<6g} {cell.rate_mbit:<10.0f}" if index == 0 else " " * 27
            lines.append(f"{place}  {cell.name:<15} {cell.seconds_min:8.3f} {cell.seconds_median:7.3f} "
                         f"{cell.predicted:10.3f} {cell.error:+9.1%} {cell.link_mb:9.1f}  {' and '.join(best)}".rstrip())
        lines.append(f"{'':27}  worst / best {found.spread:.2f}, second / best {found.lead:.2f}" +
                     ("" if found.found else "; THE PREDICTION CHOOSES ANOTHER"))
    return "\n".join(lines)


def summary(cells):
    verdicts = [verdict(group) for group in groups(cells).values()]
    worst = max(cells, key=lambda cell: abs(cell.error))
    within = sum(abs(cell.error) <= 0.15 for cell in cells)
    wrong = sum(not v.found for v in verdicts)
    lines = [f"Predicted within 15 % of measured in {within} of {len(cells)} cells; largest deviation {worst.error:+.1%}, at "
             f"{worst.layout}, ratio {worst.ratio:g}, {worst.name}.",
             f"Best and worst of a layout and rate differ by up to {max(v.spread for v in verdicts):.2f} times. The best by "
             f"prediction is the best by measurement, or within {DIFFERENT:.0%} of it, in {len(verdicts) - wrong} of "
             f"{len(verdicts)}."]
    hybrid = hybrid_sentence(cells)
    return "\n".join(lines + ([hybrid + "."] if hybrid else []))
