"""What the scripts of this folder share: the program and the model that they run, how a run is started, interrupted or
given ranks, what a refusal must look like, and safetensors files as plain bytes. Has no test of its own.
"""
import json
import os
import pathlib
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

PROGRAM = MODEL = None
SMALL = ["height=32", "width=32", "num_frames=5", "num_inference_steps=2", "dtype=float32", "prompt=a red cat"]
MPI_ENV = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
           "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
           "OMPI_MCA_btl": "self,vader,tcp", "OMPI_MCA_hwloc_base_binding_policy": "none"}
if "ASAN_OPTIONS" in os.environ:
    # Open MPI is built without frame pointers: only full unwinding finds whose leak it is.
    MPI_ENV["ASAN_OPTIONS"] = os.environ["ASAN_OPTIONS"] + ":fast_unwind_on_malloc=0"
SLOWER = int(os.environ.get("ZOETROPE_TEST_TIMEOUT_SCALE", "1"))  # sanitizers


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


def run(arguments, cwd, timeout=240, env=None):
    return unreported(subprocess.run(
        [str(a) for a in arguments], cwd=cwd, timeout=timeout * SLOWER, text=True, errors="replace",
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


def interrupt(cwd, wait_for, *arguments, signals=(signal.SIGINT,), environment=None, command=None):
    """Starts a long run, sends the signals once `wait_for` stands on standard error, and gives back the result."""
    process = subprocess.Popen(
        command or [PROGRAM, "generate", MODEL, *SMALL, *arguments], cwd=cwd, text=True, errors="replace",
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **(environment or {})})
    seen = ""
    while wait_for not in seen:
        line = process.stderr.readline()
        assert line, f"ended before '{wait_for}':\n{seen}"
        seen += line
    begin = time.time()
    for number in signals:
        process.send_signal(number)
    out, err = process.communicate(timeout=120 * SLOWER)
    return unreported(subprocess.CompletedProcess([], process.returncode, out, seen + err)), time.time() - begin


# Layers that take long beside two calls of kill().
LONG_STEPS = ["height=256", "width=256", "num_frames=81", "num_inference_steps=100"]


def mpirun(*blocks):
    if not shutil.which("mpirun"):
        raise Skip("mpirun is not installed")
    words = ["mpirun"]
    for i, (count, arguments) in enumerate(blocks):
        words += ([":"] if i else []) + ["-n", str(count), PROGRAM, "generate", MODEL, *SMALL, *arguments]
    return words


def use(program, model=None):
    global PROGRAM, MODEL
    PROGRAM, MODEL = program, model
