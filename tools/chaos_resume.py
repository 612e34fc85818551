#!/usr/bin/env python3
"""Kills runs at random moments and lets them go on until they end, and checks that each makes the video of a run that was
left alone, without making more than one step or latent frame twice. Prints a report; exit code 1 where a try fails.

    tools/chaos_resume.py PROGRAM MODEL [tries=200] [seed=1] [report=FILE]

A try has threads or MPI, one to three ranks, and is killed one to three times: the whole job, or one rank of it. Half of them
go on with another number of ranks. Before some go on, the newest record of their journal is cut short or has a byte changed.
"""
import itertools
import json
import os
import pathlib
import pty
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time

sys.dont_write_bytecode = True
from check_demo import read_png  # noqa: E402

STEPS, FRAMES = 24, 33
KEYS = ["prompt=a red ball moves left", "height=64", "width=96", f"num_frames={FRAMES}", f"num_inference_steps={STEPS}",
        "dtype=float32", "deterministic=true", "attention=ulysses", "vae_parallel=default", "seed=7"]
MPI_ENV = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
           "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
           "OMPI_MCA_hwloc_base_binding_policy": "none", "ZOETROPE_MEASURE": "no"}
# Rank 0 writes its progress to a terminal, which gets a word of every step.
ON_TERMINAL = "import os, sys; os.dup2(os.open(sys.argv[1], os.O_WRONLY | os.O_NOCTTY), 2); os.execv(sys.argv[2], sys.argv[2:])"
PATIENCE = 300  # seconds for a run that takes one or two


class Terminal:
    """What a program writes to a terminal, read by a thread."""

    def __init__(self):
        self.reader, self.writer = pty.openpty()
        self.name = os.ttyname(self.writer)
        self.text = b""
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()

    def read(self):
        while True:
            try:
                part = os.read(self.reader, 1 << 16)
            except OSError:
                return
            if not part:
                return
            self.text += part

    def close(self):
        os.close(self.writer)
        self.thread.join(timeout=10)
        os.close(self.reader)

    def seen(self, title):
        """The last `done/total` of a bar."""
        found = re.findall(rf"{title} \[[#.]*\] (\d+)/".encode(), self.text)
        return int(found[-1]) if found else None


class Job:
    def __init__(self, program, cwd, mpi, ranks, words):
        self.terminal = Terminal()
        self.mpi = mpi
        program = [sys.executable, "-c", ON_TERMINAL, self.terminal.name, program, "generate", *words]
        if mpi:
            command = ["mpirun", "-n", "1", *program, "threads=1"]
            if ranks > 1:
                command += [":", "-n", str(ranks - 1), *program[4:], "threads=1"]
        else:
            command = [*program, f"ranks={ranks}", f"threads={ranks}"]
        self.process = subprocess.Popen(command, cwd=cwd, env={**os.environ, **MPI_ENV}, start_new_session=True,
                                        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    def ranks(self):
        found = []
        for folder in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, ValueError):
                continue
            if parent == self.process.pid:
                found.append(int(folder.name))
        return found

    def kill(self, everyone, draw):
        victims = self.ranks() if self.mpi else []
        if victims and not everyone:
            os.kill(draw.choice(victims), signal.SIGKILL)  # mpirun ends the others
        else:
            for victim in [self.process.pid, *victims]:
                try:
                    os.kill(victim, signal.SIGKILL)
                except ProcessLookupError:
                    pass

    def wait(self):
        errors = self.process.communicate(timeout=PATIENCE)[1].decode(errors="replace")
        end = time.monotonic() + PATIENCE
        while self.mpi and self.ranks() and time.monotonic() < end:
            time.sleep(0.01)
        self.terminal.close()
        return self.process.returncode, self.terminal.text.decode(errors="replace") + errors


def frames_of(folder):
    """The packed pixels of each frame, without the tags that say how the run was started."""
    frames = []
    for file in sorted(pathlib.Path(folder).glob("*.png")):
        data, at, packed = file.read_bytes(), 8, b""
        while at < len(data):
            length, name = struct.unpack(">I4s", data[at:at + 8])
            packed += data[at + 8:at + 8 + length] if name == b"IDAT" else b""
            at += 12 + length
        frames.append(packed)
    return frames


def damage(journal, draw):
    state = journal / "state.safetensors"
    if not state.exists() or not (journal / "previous.safetensors").exists():
        return False
    data = bytearray(state.read_bytes())
    if draw.random() < 0.5:
        data = data[:draw.randrange(len(data))]
    else:
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    state.write_bytes(data)
    return True


def place(text):
    """Where a run says that it goes on, as (steps, frames)."""
    if found := re.search(r"Goes on after step (\d+)", text):
        return int(found.group(1)), 0
    if found := re.search(r"Goes on after (\d+) decoded frames", text):
        return STEPS, int(found.group(1))
    return (STEPS, 0) if "Goes on with the decoding" in text else None


class Chaos:
    def __init__(self, program, model, tries, seed):
        self.program, self.model, self.tries = str(pathlib.Path(program).resolve()), str(pathlib.Path(model).resolve()), tries
        self.draw = random.Random(seed)
        self.report = {"tries": tries, "seed": seed, "kills": 0, "kills_in_denoising": 0, "kills_in_decoding": 0,
                       "damaged_records": 0, "threads": 0, "mpi": 0, "other_ranks": 0, "ended_before_the_kill": 0,
                       "most_steps_made_twice": 0, "most_frames_made_twice": 0, "largest_pixel_difference": 0, "failures": []}

    def whole(self, cwd, ranks):
        """The frames of a run that is left alone, and its seconds."""
        words = [self.model, *KEYS, f"output=whole_{ranks}/"]
        begin = time.monotonic()
        code, text = Job(self.program, cwd, False, ranks, words).wait()
        if code != 0:
            raise SystemExit(f"a run that is left alone fails: {text}")
        return frames_of(pathlib.Path(cwd) / f"whole_{ranks}"), time.monotonic() - begin

    def one(self, cwd, wholes):
        draw, report = self.draw, self.report
        mpi, ranks = draw.random() < 0.5, draw.randint(1, 3)
        report["mpi" if mpi else "threads"] += 1
        journal, output = pathlib.Path(cwd) / "j", pathlib.Path(cwd) / "clip"
        shutil.rmtree(journal, ignore_errors=True)
        shutil.rmtree(output, ignore_errors=True)
        first, layouts, kills = True, {ranks}, draw.randint(1, 3)
        before = None  # what the killed run had done, as far as it was shown
        damaged = False
        while True:
            words = [self.model, *KEYS, "output=clip/", "journal=j"] if first else ["resume=j"]
            seconds = wholes[ranks][1]
            job = Job(self.program, cwd, mpi, ranks, words)
            kill = kills > 0
            if kill:
                kills -= 1
                time.sleep(draw.uniform(0.1, 1) * seconds)
                # Most of the time is the start of the program: one more wait, for something worth losing.
                end = time.monotonic() + draw.uniform(0, 1) * seconds
                while job.process.poll() is None and time.monotonic() < end and not job.terminal.seen("Denoise"):
                    time.sleep(0.005)
                if job.process.poll() is None:
                    job.kill(draw.random() < 0.5, draw)
                    report["kills"] += 1
            code, text = job.wait()
            if before is not None and (place(text) or code == 0):  # else it was killed before it said so
                self.check_place(before, place(text), damaged, text)
            if code == 0:
                report["ended_before_the_kill"] += kill
                break
            if not kill:
                raise AssertionError(f"a run does not go on: exit code {code}\n{text}")
            steps, frames = job.terminal.seen("Denoise"), job.terminal.seen("Decode")
            begun = journal.exists() and any((journal / f"{name}.safetensors").exists() for name in ("state", "previous"))
            if frames is not None:
                report["kills_in_decoding"] += 1
            elif steps is not None:
                report["kills_in_denoising"] += 1
            if not begun:
                if steps:
                    raise AssertionError(f"no journal after step {steps}")
                shutil.rmtree(journal, ignore_errors=True)
                first, before = True, None
                continue
            first = False
            done = max([(steps or 0, 0)] + ([(STEPS, frames)] if frames is not None else []))
            before = max(done, before) if before is not None else done
            damaged = draw.random() < 0.1 and damage(journal, draw)
            report["damaged_records"] += damaged
            if draw.random() < 0.5:
                ranks, mpi = draw.randint(1, 3), draw.random() < 0.5
                layouts.add(ranks)
        report["other_ranks"] += len(layouts) > 1
        made = frames_of(output)
        if journal.exists():
            raise AssertionError("the journal of a complete run is still there")
        if len(layouts) == 1 and made == wholes[ranks][0]:
            return
        if len(layouts) == 1:
            raise AssertionError("the same layout gives other bits")
        self.compare(output, pathlib.Path(cwd) / "whole_1")

    def check_place(self, before, now, damaged, text):
        if now is None:
            raise AssertionError(f"does not say where it goes on: {text}")
        steps = before[0] - now[0]
        frames = before[1] - now[1] if now[0] == STEPS else 0
        if not damaged:
            self.report["most_steps_made_twice"] = max(self.report["most_steps_made_twice"], steps)
            self.report["most_frames_made_twice"] = max(self.report["most_frames_made_twice"], frames)
            # A latent frame is four frames, and the last one is complete when its file is.
            if steps > 1 or frames > 4:
                raise AssertionError(f"{before} was done and it goes on at {now}")

    def compare(self, made, whole):
        """Frames of another layout, in which sums have another order."""
        names = [sorted(folder.glob("*.png")) for folder in (made, whole)]
        if len(names[0]) != len(names[1]):
            raise AssertionError(f"{len(names[0])} frames instead of {len(names[1])}")
        for pair in zip(*names):
            a, b = (itertools.chain.from_iterable(itertools.chain.from_iterable(read_png(file))) for file in pair)
            worst = max(abs(x - y) for x, y in zip(a, b))
            self.report["largest_pixel_difference"] = max(self.report["largest_pixel_difference"], worst)
            if worst > 1:
                raise AssertionError(f"another layout is off by {worst} of 255")

    def run(self):
        with tempfile.TemporaryDirectory(prefix="zoetrope_chaos_") as cwd:
            wholes = {ranks: self.whole(cwd, ranks) for ranks in (1, 2, 3)}
            for number in range(self.tries):
                try:
                    self.one(cwd, wholes)
                except (AssertionError, subprocess.TimeoutExpired) as error:
                    self.report["failures"].append(f"try {number}: {error}")
                if sys.stderr.isatty():
                    print(f"\r{number + 1} of {self.tries}, {len(self.report['failures'])} failed", end="", file=sys.stderr)
        return self.report


def main():
    program, model, *words = sys.argv[1:]
    options = dict(word.split("=", 1) for word in words)
    report = Chaos(program, model, int(options.pop("tries", 200)), int(options.pop("seed", 1))).run() if not (
        set(options) - {"tries", "seed", "report"}) else sys.exit(f"unknown: {options}")
    text = json.dumps(report, indent=1)
    print(text)
    if "report" in options:
        pathlib.Path(options["report"]).write_text(text + "\n")
    return 1 if report["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
