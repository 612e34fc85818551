"""What the scripts of this folder share: the program and the model that they run, how a run is started, interrupted or
given ranks, what a refusal must look like, and safetensors files as plain bytes. Has no test of its own.
"""
import fcntl
import json
import os
import pathlib
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import time

# Figures of the machine at hand are no matter of these tests, and three seconds to measure it would be many of them.
os.environ.setdefault("ZOETROPE_MEASURE", "no")
PROGRAM = MODEL = None
SMALL = ["height=32", "width=32", "num_frames=5", "num_inference_steps=2", "dtype=float32", "prompt=a red cat"]
MPI_ENV = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
           "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
           "OMPI_MCA_btl": "self,vader,tcp", "OMPI_MCA_hwloc_base_binding_policy": "none",
           "OMPI_MCA_mpi_yield_when_idle": "1"}
if "ASAN_OPTIONS" in os.environ:
    # Open MPI is built without frame pointers: only full unwinding finds whose leak it is.
    MPI_ENV["ASAN_OPTIONS"] = os.environ["ASAN_OPTIONS"] + ":fast_unwind_on_malloc=0"
SLOWER = int(os.environ.get("ZOETROPE_TEST_TIMEOUT_SCALE", "1"))  # sanitizers
PATIENCE = 600 * SLOWER  # seconds for a command: a busy machine needs ten times as long as an idle one


class Skip(Exception):
    pass


def unreported(result):
    """The result, unless a sanitizer found something: its exit code alone would pass for a refusal."""
    for words in ("Sanitizer: ", "runtime error: "):
        assert words not in result.stderr, f"a sanitizer's report:\n{result.stderr}"
    return result


def run_script(tests, use):
    """Lists the tests, or runs the one named last in a folder of its own, after `use` was given the words before it."""
    if sys.argv[1:] == ["--list"]:
        print(";".join(tests))
        return 0
    *words, name = sys.argv[1:]
    use(*words)
    with tempfile.TemporaryDirectory(prefix="zoetrope_cli_") as cwd:
        try:
            tests[name](cwd)
        except Skip as reason:
            print(f"skipped: {reason}")
            return 77
    print(f"{name}: passed")
    return 0


def run(arguments, cwd, timeout=PATIENCE, env=None):
    return unreported(subprocess.run(
        [str(a) for a in arguments], cwd=cwd, timeout=timeout, text=True, errors="replace",
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **(env or {})}))


def generate(cwd, *arguments, model=None, **options):
    return run([PROGRAM, "generate", model or MODEL, *SMALL, *arguments], cwd, **options)


def files_in(folder):
    return sorted(str(p.relative_to(folder)) for p in pathlib.Path(folder).rglob("*"))


def sentence(result):
    lines = [line for line in result.stderr.splitlines() if line.startswith("zoetrope: ")]
    assert len(lines) == 1, f"{len(lines)} error lines instead of one:\n{result.stderr}"
    return lines[0]


def refused(cwd, result, *words, left=()):
    """Exit code, one sentence that holds every word, and no file but `left`."""
    assert result.returncode not in (0, -11, -6, 134, 139), f"exit code {result.returncode}\n{result.stderr}"
    line = sentence(result)
    for word in words:
        assert word in line, f"'{word}' is not in: {line}"
    found = [f for f in files_in(cwd) if not any(f == k or f.startswith(k + "/") for k in left)]
    assert not found, f"left behind: {found}"


def configs_only(cwd):
    """A copy of the model without its weights and its tokenizer."""
    folder = pathlib.Path(cwd) / "configs"
    configs = [f"{component}/config.json" for component in ("transformer", "text_encoder", "vae")]
    for file in ("model_index.json", "scheduler/scheduler_config.json", *configs):
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(pathlib.Path(MODEL) / file, folder / file)
    return folder


def latents(folder):
    """The dump without its metadata, which names no model."""
    return (pathlib.Path(folder) / "run.safetensors").read_bytes()


def read_tensors(path):
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    return {name: (e["dtype"], e["shape"], data[8 + size + e["data_offsets"][0]:8 + size + e["data_offsets"][1]])
            for name, e in header.items() if name != "__metadata__"}


def write_tensors(path, tensors):
    header, body = {}, b""
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def rewrite(path, change):
    tensors = read_tensors(path)
    change(tensors)
    write_tensors(path, tensors)


def copy_model(cwd):
    target = pathlib.Path(cwd) / "model"
    shutil.copytree(MODEL, target)
    return target


class Paused:
    """A run that cannot end before it is released, however fast it is. Its standard error is a pipe that takes one line:
    until that line has been read, the run pauses at the next one. Progress has a line per tenth, so a run of a
    thousand steps whose first line was read is somewhere in its first two hundred steps."""

    def __init__(self, cwd, command, environment=None):
        self.reader, writer = one_line_pipe()
        self.seen, self.out = "", tempfile.TemporaryFile()
        self.process = self.start(command, writer, cwd=cwd, stdout=self.out, env={**os.environ, **(environment or {})})
        os.close(writer)

    def start(self, command, writer, **options):
        return subprocess.Popen([str(word) for word in command], stderr=writer, **options)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.reader)
        self.out.close()

    def read_line(self):
        line = os.read(self.reader, 1 << 16).decode(errors="replace")
        self.seen += line
        return line

    def until(self, words):
        while words not in self.seen:
            assert self.read_line(), f"ended before '{words}':\n{self.seen}"

    def until_still(self):
        """Until the run waits for its next line to be read: one is in the pipe, and no thread computes."""
        def still():
            waiting = fcntl.ioctl(self.reader, termios.FIONREAD, bytes(4))
            try:
                states = [stat.read_text().rpartition(")")[2].split()[0]
                          for stat in pathlib.Path(f"/proc/{self.process.pid}/task").glob("*/stat")]
            except OSError:  # a thread has ended meanwhile
                return False
            return waiting != bytes(4) and set(states) == {"S"}
        until(still, "the run does not pause")

    def send(self, *signals):
        for number in signals:
            self.process.send_signal(number)

    def release(self):
        """Lets the run go on to its end, and gives back its result."""
        while self.read_line():
            pass
        self.process.wait(timeout=120 * SLOWER)
        self.out.seek(0)
        return unreported(subprocess.CompletedProcess([], self.process.returncode,
                                                      self.out.read().decode(errors="replace"), self.errors()))

    def errors(self):
        return self.seen


def one_line_pipe():
    """A pipe that takes one write() at a time: packets (O_DIRECT, see pipe(2)) in a buffer of one page."""
    reader, writer = os.pipe2(os.O_DIRECT | os.O_CLOEXEC)
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 1)
    return reader, writer


class PausedMpi(Paused):
    """Under mpirun, which reads the standard error of all ranks however much comes: rank 0 is given the pipe directly."""

    def __init__(self, cwd, ranks, arguments, mpirun_words=()):
        self.said = tempfile.TemporaryFile()  # by mpirun, and by the other ranks
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.bind("")  # an abstract address, made up by the kernel: no file
        self.socket.listen(1)
        address = self.socket.getsockname().decode("latin-1")[1:]
        command = mpirun((1, arguments), (ranks - 1, arguments))
        command[1:1] = mpirun_words
        at = command.index(PROGRAM)
        command[at:at] = [sys.executable, "-c", TAKES_THE_PIPE, address]
        super().__init__(cwd, command, MPI_ENV)

    def start(self, command, writer, **options):
        process = super().start(command, self.said, **options)
        self.socket.settimeout(120 * SLOWER)
        with self.socket.accept()[0] as rank_0:
            socket.send_fds(rank_0, [b"0"], [writer])
        return process

    def __exit__(self, *_):
        super().__exit__()
        self.socket.close()
        self.said.close()

    def errors(self):
        self.said.seek(0)
        return self.seen + self.said.read().decode(errors="replace")


# The program with standard error as received: `python3 -c TAKES_THE_PIPE ADDRESS PROGRAM ARGUMENT…`.
TAKES_THE_PIPE = """
import os, socket, sys
client = socket.socket(socket.AF_UNIX)
client.connect(b"\\0" + sys.argv[1].encode("latin-1"))
os.dup2(socket.recv_fds(client, 1, 1)[1][0], 2)
os.execv(sys.argv[2], sys.argv[2:])
"""


def interrupt(cwd, wait_for, *arguments, signals=(signal.SIGINT,)):
    """Pauses a long run behind the line with `wait_for`, sends the signals, releases it, and gives back its result. Between
    two signals the run pauses."""
    with Paused(cwd, [PROGRAM, "generate", MODEL, *SMALL, *arguments]) as paused:
        paused.until(wait_for)
        if len(signals) > 1:
            paused.until_still()
        paused.send(*signals)
        return paused.release()


def until(condition, what, seconds=60 * SLOWER):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def cpu_seconds(process):
    """What the process has computed so far, all threads together."""
    fields = pathlib.Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# Ten lines of progress, so that a paused run is far from its end.
MANY_STEPS = ["num_inference_steps=1000"]
MANY_FRAMES = ["num_inference_steps=1", "num_frames=801"]


def mpirun(*blocks):
    if not shutil.which("mpirun"):
        raise Skip("mpirun is not installed")
    words = ["mpirun"]
    for i, (count, arguments) in enumerate(blocks):
        words += ([":"] if i else []) + ["-n", str(count), PROGRAM, "generate", MODEL, *SMALL, *arguments]
    return words


def run_on_hosts(hosts, command, cwd, env, of_last=":"):
    """A rank for each entry, which sees its entry as the name of its host; the last begins with a command of its own."""
    if subprocess.run(["unshare", "--uts", "hostname", "probe"], stdout=subprocess.DEVNULL,
                      stderr=subprocess.DEVNULL).returncode:
        raise Skip("host names of one's own need CAP_SYS_ADMIN")
    if not shutil.which("mpirun"):
        raise Skip("mpirun is not installed")
    script = (f"set -- {' '.join(hosts)}; shift $OMPI_COMM_WORLD_RANK; hostname $1; [ $2 ] || {{ {of_last}; }}; "
              f"exec {shlex.join(map(str, command))}")
    return run(["mpirun", "-n", str(len(hosts)), "unshare", "--uts", "sh", "-c", script], cwd, env=env)


def without_profiles(cwd):
    """The beginning of a command that sees no file of configs/hardware/."""
    hidden = pathlib.Path(__file__).resolve().parents[2] / "configs" / "hardware"
    # A folder of nothing over it, in a mount namespace of this command's own.
    alone = ["unshare", "-rm", "sh", "-c", f"mount -t tmpfs none '{hidden}' && exec \"$@\"", "sh"]
    if not shutil.which("unshare") or run([*alone, "true"], cwd).returncode != 0:
        raise Skip("this user may not mount")
    return alone


def environment_of(process):
    try:
        words = pathlib.Path(f"/proc/{process}/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:  # it has ended
        return {}
    return dict(word.split("=", 1) for word in words if "=" in word)


def rank_processes(mpirun_process):
    """The process ids of the ranks that run on this host, by rank."""
    children = subprocess.run(["pgrep", "-P", str(mpirun_process)], text=True, stdout=subprocess.PIPE).stdout.split()
    found = {process: environment_of(process).get("OMPI_COMM_WORLD_RANK") for process in map(int, children)}
    return {int(rank): process for process, rank in found.items() if rank is not None}


def shared_memory_of(process):
    """A function that lists what the MPI job of this process has in /dev/shm, also when it has ended."""
    job = f"{int(environment_of(process)['PMIX_NAMESPACE']):x}"
    return lambda: [path.name for path in pathlib.Path("/dev/shm").iterdir() if job in path.name.split(".")]


def use(program, model=None):
    global PROGRAM, MODEL
    PROGRAM, MODEL = program, model
