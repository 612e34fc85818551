#!/usr/bin/env python3
"""Kills, stops, stalls and slows down ranks of runs and fills their disks at random moments, and checks that the right rank is
named, that every process ends in time and that nothing is left in shared memory. Prints a report; exit code 1 where a check
fails.

    tools/chaos.py PROGRAM MODEL [tries=100] [seed=1] [ranks=3] [timeout=4] [kinds=kill,stop,…]
    tools/chaos.py PROGRAM MODEL try=17 seed=1        repeats one of them
    tools/chaos.py PROGRAM MODEL kinds=cut            alone: cuts links between hosts that are network namespaces

kill    a process of the run is killed
stop    a process is stopped (SIGSTOP)
stall   the main thread of a process is stopped, while its others run
thread  ranks are threads: the thread of one is stopped
crawl   the main thread of a process runs for some milliseconds a second, so that its steps outlast the deadline
slow    a process is stopped for less than the deadline, again and again: this run must end well
restart a rank of `zoetrope run` is killed, and then perhaps another: it must go on with those that are left, to the end
full    the disk of the journal fills up: the run must go on without, say so and make its video; or that of the output: it
        must end with one sentence and leave nothing there
cut     the link of one of two emulated hosts with two ranks each goes down
Needs Linux, mpirun (Open MPI), for `stall`, `thread` and `crawl` the right to trace processes, for `full` the right to mount,
and for `cut` what bench/emulated_cluster needs.
"""
import collections
import ctypes
import os
import pathlib
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests" / "cli"), str(ROOT / "bench" / "emulated_cluster")]
import cluster  # noqa: E402
import inside  # noqa: E402
import matrix  # noqa: E402
from harness import MPI_ENV, environment_of, rank_processes, shared_memory_of  # noqa: E402

KINDS = ("kill", "stop", "stall", "thread", "crawl", "slow", "restart", "full")
FOLDER = "ZOETROPE_CHAOS_FOLDER"  # in the namespaces of hosts: a folder of the run
AFTER_DEADLINE = 5.0  # seconds in which all have to end
CRAWL = 1.0  # seconds between two times in which a rank that crawls may compute
START = 120.0  # seconds until a run denoises
SEIZE, INTERRUPT, CONT = 0x4206, 0x4207, 7  # of ptrace
ALL_CHILDREN = 0x40000000  # __WALL of waitpid
HOST = socket.gethostname()


class StoppedThread:
    """Stops one thread of a process that is not ours, and collects it when its process has ended."""

    def __init__(self, thread):
        self.thread = thread
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
        self.request(SEIZE)
        self.request(INTERRUPT)
        self.collect(wait=True)

    def request(self, number):
        if self.libc.ptrace(number, self.thread, None, None) != 0:
            raise OSError(ctypes.get_errno(), f"tracing thread {self.thread}")

    def run_for(self, seconds):
        """Lets it compute for so long, and stops it again; it may end meanwhile."""
        computed = pathlib.Path(f"/proc/{self.thread}/schedstat")  # nanoseconds, of this thread
        try:
            end = int(computed.read_text().split()[0]) + seconds * 1e9
            self.request(CONT)
            until(lambda: int(computed.read_text().split()[0]) >= end, 0.5)
            self.request(INTERRUPT)
            self.collect(wait=True)
        except (OSError, IndexError):
            pass

    def collect(self, wait=False):
        """A traced thread whose process is ended stays until its tracer has heard of it."""
        try:
            while True:
                found, status = os.waitpid(self.thread, ALL_CHILDREN | (0 if wait else os.WNOHANG))
                if found == 0 or wait:
                    return
                if os.WIFSTOPPED(status):
                    continue
        except ChildProcessError:
            pass


class Try:
    def __init__(self, settings, number):
        self.settings, self.number = settings, number
        self.random = random.Random(settings.seed * 1_000_003 + number)
        self.kind = self.random.choice(settings.kinds)
        self.ranks = 2 if self.kind == "crawl" else settings.ranks
        self.rank = self.random.randrange(self.ranks)
        self.delay = self.random.random() * 1.5
        self.wrong = []
        self.killed = []  # ranks, one after the other
        self.disk = None  # a folder that the run finds as `disk`
        self.seconds = None  # from what was done to the rank to the end of the last process

    def command(self):
        steps = 300 if self.kind == "slow" else 1000
        # Of `crawl` ranks meet once a step, which takes several of the times in which its rank may compute.
        data, side = (2, 192) if self.kind == "crawl" else (1, 96)
        words = [self.settings.program, "generate", self.settings.model, "prompt=a red ball", f"width={side}", f"height={side}",
                 "num_frames=33", f"num_inference_steps={steps}", "threads=1", "output=clip.gif", "summary=none",
                 f"data_parallelism={data}", f"comm_timeout={self.settings.timeout}"]
        if data == 1:
            words.append("attention=ring")
        if self.kind == "thread":
            return words + [f"ranks={self.ranks}"]
        return ["mpirun", "-n", str(self.ranks), *words]

    def environment(self):
        return {**os.environ, **MPI_ENV, "ZOETROPE_MEASURE": "no"}

    def run(self):
        with tempfile.TemporaryDirectory(prefix="zoetrope_chaos_") as folder:
            said = pathlib.Path(folder) / "said"
            if self.disk:
                (pathlib.Path(folder) / "disk").symlink_to(self.disk)
            with open(said, "wb") as errors:
                process = subprocess.Popen(self.command(), cwd=folder, stdout=subprocess.DEVNULL, stderr=errors,
                                           env=self.environment())
            try:
                self.disturb(process, said)
            finally:
                if process.poll() is None:
                    process.kill()
                    process.wait()
            text = said.read_text(errors="replace")
            self.check_text(text, process.returncode)
            left = [name for name in os.listdir(folder) if name not in ("said", "clip.gif", "disk")]
            # Rank 0 writes; killed, it can remove nothing.
            if left and 0 not in self.killed:
                self.wrong.append(f"left behind: {left}")
        if self.wrong:
            print(f"try {self.number}: {self.kind} of rank {self.rank}: {'; '.join(self.wrong)}\n{text}", flush=True)

    def disturb(self, process, said):
        until(lambda: b"Denoise: step 1 of" in said.read_bytes() or process.poll() is not None, START)
        if process.poll() is not None:
            raise SystemExit(f"The run ended before it denoised:\n{said.read_text(errors='replace')}")
        processes = {0: process.pid} if self.kind == "thread" else rank_processes(process.pid)
        self.shared_memory = list if self.kind == "thread" else shared_memory_of(processes[0])
        time.sleep(self.delay)
        begin = time.monotonic()
        if self.kind == "slow":
            self.slow_down(process, processes[self.rank])
            return
        traced = None
        if self.kind == "kill":
            self.killed = [self.rank]
            os.kill(processes[self.rank], signal.SIGKILL)
        elif self.kind == "stop":
            os.kill(processes[self.rank], signal.SIGSTOP)
        elif self.kind in ("stall", "crawl"):
            traced = StoppedThread(processes[self.rank])
        else:
            traced = StoppedThread(thread_of_rank(process.pid, self.rank))

        def ended():
            if self.kind == "crawl":
                nonlocal begin
                # The wait that outlasts its deadline is one of the first few; seen when the rank has run once more.
                if b"zoetrope: " not in said.read_bytes():
                    time.sleep(CRAWL)
                    traced.run_for(0.008)
                    begin = time.monotonic() - self.settings.timeout
            if traced:
                traced.collect()
            return process.poll() is not None and not any(runs(p) for p in processes.values())
        if self.kind == "thread" and not until(ended, self.settings.timeout + AFTER_DEADLINE):
            # Stopped while it held the lock of all ranks, which no rank does that stalls by itself: out of it, and again.
            traced.run_for(0.001)
            begin = time.monotonic()
        if not until(ended, self.settings.timeout + 60):
            self.wrong.append("it does not end")
            for p in processes.values():
                if runs(p):
                    os.kill(p, signal.SIGKILL)
            until(ended, AFTER_DEADLINE)
        self.seconds = time.monotonic() - begin
        if left := self.shared_memory():
            self.wrong.append(f"in /dev/shm: {left}")
        late = self.seconds - self.settings.timeout
        if late > AFTER_DEADLINE + (CRAWL if self.kind == "crawl" else 0):
            self.wrong.append(f"ended {late:.1f} s after the deadline")

    def slow_down(self, process, victim):
        """Never for so long that a wait could pass its deadline, also where one lasts through several stops."""
        for _ in range(5):
            if process.poll() is not None:
                break
            try:
                os.kill(victim, signal.SIGSTOP)
                time.sleep(self.settings.timeout / 4)
                os.kill(victim, signal.SIGCONT)
            except ProcessLookupError:
                break
            time.sleep(self.settings.timeout / 8)
        try:
            process.wait(timeout=START)
        except subprocess.TimeoutExpired:
            self.wrong.append("it does not end")
        if left := self.shared_memory():
            self.wrong.append(f"in /dev/shm: {left}")

    def check_text(self, text, code):
        if self.kind == "slow":
            if code != 0:
                self.wrong.append(f"exit code {code} of a run that is only slow")
            return
        if code == 0:
            self.wrong.append("exit code 0")
        stalled = "is stalled: it last entered '"
        # The thread may be stopped while it holds the lock that the thread which answers needs. How often one that
        # crawls enters something new depends on the machine.
        words = {"kill": ["is dead: its process has ended"], "stop": ["is dead: no sign of life for"],
                 "stall": [stalled, "is dead: no sign of life for"], "thread": [stalled],
                 "crawl": ["is slow: it last entered '", stalled]}[self.kind]
        sentences = [line for line in text.splitlines() if line.startswith("zoetrope: ")]
        if len(sentences) != 1:
            self.wrong.append(f"{len(sentences)} sentences")
        elif not any(f"rank {self.rank} on {HOST} {reason}" in sentences[0] for reason in words):
            self.wrong.append("another rank or another reason is named")
        lines = [line for line in text.splitlines() if re.match(r"  rank \d+ on ", line)]
        if sorted(int(line.split()[1]) for line in lines) != list(range(self.ranks)):
            self.wrong.append(f"{len(lines)} lines on who waits for whom")


class RestartTry(Try):
    """`zoetrope run`, whose ranks are grandchildren of it."""

    def command(self):
        words = [word for word in super().command()[3:] if not word.startswith(("num_inference_steps", "comm_timeout", "attention"))]
        return [words[0], "run", *words[2:], f"ranks={self.ranks}", "num_inference_steps=400", "mpirun_arguments=--oversubscribe",
                "journal=j"]

    @staticmethod
    def processes(process):
        children = subprocess.run(["pgrep", "-P", str(process.pid)], text=True, stdout=subprocess.PIPE).stdout.split()
        return next(filter(None, (rank_processes(int(child)) for child in children)), {})

    def disturb(self, process, said):
        for left in range(self.ranks, self.random.randrange(1, self.ranks), -1):
            # Not before a record of this start: what was begun from nothing is begun from nothing again.
            goes_on = b"Denoise: step" if left == self.ranks else b"Goes on after step"
            if not until(lambda: process.poll() is not None or said.read_bytes().count(goes_on) >= max(1, self.ranks - left)
                         and len(self.processes(process)) == left, START) or process.poll() is not None:
                break
            time.sleep(self.delay)
            ranks = self.processes(process)
            if len(ranks) != left:
                break
            rank = self.random.choice(sorted(ranks))
            shared = shared_memory_of(ranks[rank])
            os.kill(ranks[rank], signal.SIGKILL)
            self.killed.append(rank)
            if not until(lambda: not any(runs(p) for p in ranks.values()), self.settings.timeout + 60):
                self.wrong.append("the job of the rank that was lost does not end")
            if not until(lambda: not shared(), AFTER_DEADLINE):  # mpirun removes it, behind its ranks
                self.wrong.append(f"in /dev/shm: {shared()}")
        try:
            process.wait(timeout=2 * START)
        except subprocess.TimeoutExpired:
            self.wrong.append("it does not end")

    def check_text(self, text, code):
        if code != 0:
            self.wrong.append(f"exit code {code}")
        if not self.killed:
            self.wrong.append("nothing was killed: the run is too short")
        for count, rank in enumerate(self.killed, 1):
            left = self.ranks - count
            if f"Lost rank {rank}: goes on from j on {left} rank" not in text:
                self.wrong.append(f"not said: lost rank {rank}, goes on on {left}")


class FullTry(Try):
    """One process with a small disk of its own, which is filled."""

    def __init__(self, settings, number):
        super().__init__(settings, number)
        self.output = self.random.choice((True, False))

    def command(self):
        words = [word for word in super().command()[3:] if not word.startswith(("num_inference_steps", "comm_timeout", "output"))]
        return [*words, f"ranks={self.ranks}", "num_inference_steps=150",
                *(("output=disk/clip.gif", "journal=none") if self.output else ("output=clip.gif", "journal=disk/j"))]

    def run(self):
        with tempfile.TemporaryDirectory(prefix="zoetrope_chaos_disk_") as disk:
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", disk], check=True)
            try:
                self.disk = disk
                super().run()
            finally:
                subprocess.run(["umount", disk], check=True)

    def disturb(self, process, said):
        until(lambda: b"Denoise: step 1 of" in said.read_bytes() or process.poll() is not None, START)
        time.sleep(self.delay)
        self.running = process.poll() is None
        with open(pathlib.Path(self.disk) / "filler", "wb", buffering=0) as filler:
            for size in (1 << 16, 1 << 12, 1):
                try:
                    while True:
                        filler.write(b"x" * size)
                except OSError:
                    pass
        try:
            process.wait(timeout=START)
        except subprocess.TimeoutExpired:
            self.wrong.append("it does not end")

    def check_text(self, text, code):
        if not self.running:
            self.wrong.append("the run had ended: it is too short")
        sentences = [line for line in text.splitlines() if line.startswith("zoetrope: ")]
        note = "Note: the journal cannot be written, and the run goes on without: "
        if self.output and (code in (0, -6, -11) or len(sentences) != 1 or "No space left" not in text):
            self.wrong.append(f"exit code {code}, {len(sentences)} sentences")
        if not self.output and (code != 0 or text.count(note) != 1):
            self.wrong.append(f"exit code {code}, {text.count(note)} notes on the journal")
        if left := [name for name in os.listdir(self.disk) if name != "filler" and (self.output or name != "j")]:
            self.wrong.append(f"left on the disk: {left}")


class CutTry(Try):
    """Inside the namespaces of a run of its own: see in_namespaces()."""
    HOSTS, EACH = 2, 2

    def __init__(self, settings, number, hosts):
        super().__init__(settings, number)
        self.hosts = hosts
        self.cut = self.random.randrange(self.HOSTS)
        self.rank = [self.cut * self.EACH + place for place in range(self.EACH)]

    def command(self):
        where = ",".join(f"{self.hosts.host(index)}:{self.EACH}" for index in range(self.HOSTS))
        return ["mpirun", "--host", where, "--map-by", "slot", "-n", str(self.HOSTS * self.EACH), *super().command()[3:]]

    def environment(self):
        return {**self.hosts.environment(), "ZOETROPE_MEASURE": "no"}

    def disturb(self, process, said):
        until(lambda: b"Denoise: step 1 of" in said.read_bytes() or process.poll() is not None, START)
        if process.poll() is not None:
            raise SystemExit(f"The run ended before it denoised:\n{said.read_text(errors='replace')}")
        processes = [int(path.name) for path in pathlib.Path("/proc").iterdir()
                     if path.name.isdigit() and "OMPI_COMM_WORLD_RANK" in environment_of(path.name)]
        time.sleep(self.delay)
        begin = time.monotonic()
        cluster.call("ip", "link", "set", f"port{self.cut}", "down")
        until(lambda: not any(runs(p) for p in processes), self.settings.timeout + 60)
        self.seconds = time.monotonic() - begin
        if self.seconds > self.settings.timeout + AFTER_DEADLINE:
            self.wrong.append(f"ended {self.seconds - self.settings.timeout:.1f} s after the deadline")
        # What mpirun itself does about a daemon that it cannot reach is its own.
        until(lambda: process.poll() is not None, AFTER_DEADLINE)

    def check_text(self, text, code):
        sentences = [line for line in text.splitlines() if line.startswith("zoetrope: ")]
        names = [f"rank {rank} on {self.hosts.host(self.cut)} is dead: no sign of life" for rank in self.rank]
        if len(sentences) != 1 or not any(name in sentences[0] for name in names):
            self.wrong.append(f"{len(sentences)} sentences, or another rank is named")


def in_namespaces(words):
    """Runs this script again where it may make hosts; all of it ends with this process."""
    with tempfile.TemporaryDirectory(prefix="zoetrope_chaos_") as folder:
        return subprocess.run(["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--net", "--uts",
                               sys.executable, __file__, *words], env={**os.environ, FOLDER: folder}).returncode


def runs(process):
    try:
        return pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def thread_of_rank(process, rank):
    for task in pathlib.Path(f"/proc/{process}/task").iterdir():
        if (task / "comm").read_text().strip() == f"rank {rank}":
            return int(task.name)
    raise SystemExit(f"process {process} has no thread of rank {rank}")


def until(condition, seconds):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


class Settings:
    def __init__(self, program, model, *words):
        self.program, self.model = (str(pathlib.Path(path).resolve()) for path in (program, model))
        keys = {"tries": "100", "seed": "1", "ranks": "3", "timeout": "4", "kinds": ",".join(KINDS), "try": ""}
        for word in words:
            key, _, value = word.partition("=")
            if key not in keys:
                raise SystemExit(f"{word}: the keys are {', '.join(keys)}")
            keys[key] = value
        self.tries, self.seed, self.ranks = int(keys["tries"]), int(keys["seed"]), int(keys["ranks"])
        self.timeout = float(keys["timeout"])
        self.kinds = keys["kinds"].split(",")
        self.numbers = [int(keys["try"])] if keys["try"] else range(self.tries)
        if self.kinds != ["cut"] and (unknown := set(self.kinds) - set(KINDS)):
            raise SystemExit(f"kinds={keys['kinds']}: {', '.join(sorted(unknown))} is none of {', '.join(KINDS)}")


def main(words):
    if len(words) < 2:
        print(__doc__.strip())
        return 2
    settings = Settings(*words)
    tries = []
    if settings.kinds == ["cut"]:
        if FOLDER not in os.environ:
            return in_namespaces(words)
        inside.mount_private(os.environ[FOLDER])
        for number in settings.numbers:
            with cluster.Cluster(os.environ[FOLDER], matrix.Layout(CutTry.HOSTS, CutTry.EACH), None) as hosts:
                tries.append(CutTry(settings, number, hosts))
                tries[-1].run()
    else:
        for number in settings.numbers:
            kind = Try(settings, number).kind
            tries.append({"restart": RestartTry, "full": FullTry}.get(kind, Try)(settings, number))
            tries[-1].run()
    print(f"{len(tries)} tries, seed {settings.seed}, deadline {settings.timeout:g} s")
    by_kind = collections.defaultdict(list)
    for one in tries:
        by_kind[one.kind].append(one)
    for kind in settings.kinds:
        seconds = [one.seconds for one in by_kind[kind] if one.seconds is not None]
        times = f", ended after {statistics.median(seconds):.1f} s (median), {max(seconds):.1f} s (most)" if seconds else ""
        right = sum(not one.wrong for one in by_kind[kind])
        print(f"  {kind:<7} {right} of {len(by_kind[kind])} as they should be{times}")
    return 1 if any(one.wrong for one in tries) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
