#!/usr/bin/env python3
"""A cluster on one machine: hosts as network namespaces joined by links of a given rate, Zoetrope under mpirun across them,
every Ulysses x ring measured and compared with what the planner predicts from a calibration made in the same place.

    bench/emulated_cluster/run.py [key=value…]          --help lists the keys
    bench/emulated_cluster/run.py clean                 only removes what killed runs have left

Needs root (CAP_SYS_ADMIN and CAP_NET_ADMIN), iproute2, util-linux, Open MPI 4, and a kernel with veth, bridge and tbf; reports
in one sentence which of them is missing. Nothing outlives the run: all processes are in a PID namespace that ends with
this program, even if it is killed, and namespaces and links end with the processes. A killed run can leave an empty folder
and empty control groups; the next run, or the word `clean`, removes them."""
import contextlib
import ctypes
import dataclasses
import fcntl
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))
sys.dont_write_bytecode = True
import cluster  # noqa: E402
import matrix  # noqa: E402
from program_keys import words_of  # noqa: E402

TOOLS = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux", "nsenter": "util-linux", "taskset": "util-linux",
         "mount": "mount", "mpirun": "Open MPI 4"}
CAP_NET_ADMIN, CAP_SYS_ADMIN = 12, 21
PR_SET_PDEATHSIG = 1
PROBE = ("ip link add probe0 type veth peer name probe1 && ip link add probe2 type bridge && "
         "tc qdisc add dev probe0 root tbf rate 1mbit burst 10kb limit 10kb")
PROBE_PREFIX = "zoetrope_probe_"  # of a control group; not a prefix of leftovers
PATIENCE = 15.0  # seconds for the kernel to end processes


class Refusal(Exception):
    """One sentence."""


# ---- may we? ----

def check_rights(options, plan):
    if sys.platform != "linux":
        raise Refusal("needs Linux, whose network namespaces are its hosts")
    if not os.access(options.program, os.X_OK):
        raise Refusal(f"program={options.program}: no program is there; build zoetrope_program or name another")
    if options.directions != matrix.Options.directions:
        legal = words_of(options.program, "attention", "ring_direction")
        for word in plan.directions:
            if word not in legal:
                raise Refusal(f"directions={options.directions}: '{word}' must be one of {', '.join(legal)}")
    keeper = pathlib.Path(options.program).parent / cluster.KEEPER
    if plan.core_share is not None and not os.access(keeper, os.X_OK):
        raise Refusal(f"program={options.program}: {cluster.KEEPER}, which keeps devices at their speed, is not in its folder; "
                      f"build {cluster.KEEPER}, or measure without (core_share=none)")
    for tool, package in TOOLS.items():
        if shutil.which(tool) is None:
            raise Refusal(f"'{tool}' is not installed; it comes with {package}")
    status = pathlib.Path("/proc/self/status").read_text()
    capabilities = int(next(line.split()[1] for line in status.splitlines() if line.startswith("CapEff:")), 16)
    missing = [name for name, bit in (("CAP_SYS_ADMIN", CAP_SYS_ADMIN), ("CAP_NET_ADMIN", CAP_NET_ADMIN))
               if not capabilities >> bit & 1]
    if missing:
        raise Refusal(f"making network namespaces and links needs {' and '.join(missing)}, which this process does not have; "
                      "run it as root, in a container with these capabilities")
    probe = subprocess.run(["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--net", "--uts",
                            "sh", "-c", PROBE], text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    if probe.returncode != 0:
        said = (probe.stderr.strip().splitlines() or ["no reason was given"])[-1]
        raise Refusal(f"namespaces with a veth pair, a bridge and a tbf queue cannot be made here: {said}")
    if plan.core_share is not None:
        check_core_share()


def check_core_share():
    found = cluster.cpu_controller()
    why = "no control group controller of CPU time is mounted"
    if found is not None:
        folder = found[0] / f"{PROBE_PREFIX}{os.getpid()}"
        try:
            with alone():
                shared = cluster.share_cpu(*found)
                folder.mkdir()
                folder.rmdir()
                if shared:
                    cluster.unshare_cpu(found[0])
            return
        except OSError as error:
            why = f"control groups with a share of the CPU cannot be made in {found[0]} ({error.strerror})"
    raise Refusal(f"the speed of a rank cannot be limited: {why}; core_share=none measures without, where ranks that "
                  "wait lend their core to others")


# ---- what a killed run left ----

def processes_of(folder):
    """PIDs whose environment names a run's folder."""
    mark = f"{cluster.MARK}={folder}".encode()
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:  # it has ended, or is a thread of the kernel
            pass
    return found


def end_processes(folder, patience=PATIENCE):
    """Kills what still runs for `folder`. True when nothing does."""
    end = time.monotonic() + patience
    while True:
        found = processes_of(folder)
        if not found:
            return True
        if time.monotonic() > end:
            return False
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.05)


def remove_run(folder):
    """Processes, control groups and the folder of a run, in this order. What could not be removed."""
    left = []
    if not end_processes(folder):
        left.append(f"processes {', '.join(map(str, processes_of(folder)))}")
    controller = cluster.cpu_controller()
    if controller is not None and not cluster.remove_run_group(controller[0] / folder.name):
        left.append(str(controller[0] / folder.name))
    shutil.rmtree(folder, ignore_errors=True)
    return left + ([str(folder)] if folder.exists() else [])


def lock(places):
    """A lock on every one of these folders until closed, as long as this process lives at most; None where another has one."""
    locks = contextlib.ExitStack()
    try:
        for place in places:
            descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
            locks.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        locks.close()
        return None
    return locks


def remove_leftovers():
    """Of runs whose starter is gone; those that still run are left alone, also where their folder is elsewhere (TMPDIR):
    then it is their control group that is locked. Their names."""
    place = pathlib.Path(tempfile.gettempdir())
    removed = []
    controller = cluster.cpu_controller()
    names = {path.name for path in place.glob(f"{cluster.GROUP_PREFIX}*")}
    if controller is not None:
        names |= {path.name for path in controller[0].glob(f"{cluster.GROUP_PREFIX}*")}
    for name in sorted(names):
        places = [place / name] + ([controller[0] / name] if controller is not None else [])
        locks = lock([folder for folder in places if folder.is_dir()])
        if locks is None:
            continue
        left = remove_run(place / name)
        locks.close()
        if left:
            print(f"Left by an earlier run and not removable: {', '.join(left)}", file=sys.stderr)
        else:
            removed.append(name)
    return removed


# ---- a run ----

def die_with(parent):
    """For the child between fork and exec: the kernel kills it when `parent` ends, however that ends."""
    def prepare():
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
    return prepare


def raise_interrupt(number, frame):
    raise KeyboardInterrupt(signal.Signals(number).name)


def run_inside(folder, options):
    """Starts the part inside the namespaces and waits for its results; whatever ends this ends that."""
    read, write = os.pipe()
    command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--net", "--uts",
               sys.executable, str(HERE / "inside.py"), str(folder), str(write)]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[write], preexec_fn=die_with(os.getpid()),
                             start_new_session=True, env={**os.environ, cluster.MARK: str(folder)})
    os.close(write)
    try:
        child.stdin.write(json.dumps(dataclasses.asdict(options)).encode())
        child.stdin.close()
        with open(read) as results:
            text = results.read()
        code = child.wait()
    finally:
        child.kill()
        child.wait()
    if not text:
        raise Refusal(f"the part inside the namespaces ended with {code} and without results")
    results = json.loads(text)
    if "error" in results:
        raise Refusal(results["error"])
    return results


def write_json(path, results):
    path = pathlib.Path(path)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.write_text(json.dumps(results, indent=1) + "\n")
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def absolute(options):
    for name in ("program", "json", "profiles"):
        value = getattr(options, name)
        if value:
            setattr(options, name, os.path.abspath(value))


@contextlib.contextmanager
def alone():
    """While no other run makes or removes folders or control groups: a new one is not locked yet, and looks like a
    leftover. Runs with another folder for temporary files meet at the controller."""
    controller = cluster.cpu_controller()
    with contextlib.ExitStack() as locks:
        for place in [tempfile.gettempdir()] + ([controller[0]] if controller is not None else []):
            descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
            locks.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


def clean():
    with alone():
        names = remove_leftovers()
    for name in names:
        print(f"Removed what a killed run left: {name}", flush=True)
    return names


@contextlib.contextmanager
def own_folder(plan):
    """The run's folder, and its control group of that name where the speed of ranks is limited; both locked meanwhile."""
    group = shared = None
    with alone():
        folder = pathlib.Path(tempfile.mkdtemp(prefix=cluster.GROUP_PREFIX))
        if plan.core_share is not None:
            controller = cluster.cpu_controller()
            shared = cluster.share_cpu(*controller)
            group = controller[0] / folder.name
            group.mkdir()
        locks = lock([folder] + ([group] if group is not None else []))
    try:
        yield folder
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        with alone():
            left = remove_run(folder)
            if shared:
                cluster.unshare_cpu(controller[0])
            locks.close()
        if left:
            print(f"Could not be removed: {', '.join(left)}", file=sys.stderr)


def measure(options, plan):
    check_rights(options, plan)
    clean()
    if options.profiles:
        os.makedirs(options.profiles, exist_ok=True)
    begin = time.monotonic()
    with own_folder(plan) as folder:
        results = run_inside(folder, options)
    results["seconds"] = time.monotonic() - begin
    return results


def main(words):
    if {"-h", "--help"} & set(words):
        print(__doc__ + "\nKeys:")
        for field in dataclasses.fields(matrix.Options):
            print(f"  {field.name:<11} {matrix.Options.HELP[field.name]} [{field.default or 'empty'}]")
        return 0
    if words == ["clean"]:
        if not clean():
            print("Nothing was left by killed runs.")
        return 0
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, raise_interrupt)
    try:
        options = matrix.parse_options(words)
        absolute(options)
        results = measure(options, matrix.make_plan(options))
    except (Refusal, matrix.OptionError, cluster.ClusterError) as error:
        print(f"emulated_cluster: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as interrupt:
        print(f"emulated_cluster: ended by {interrupt}; nothing of it remains", file=sys.stderr)
        return 130
    cells = [matrix.Cell(**{k: v for k, v in cell.items() if k not in ("run", "disturbed")}) for cell in results["cells"]]
    print(f"\n{matrix.table(cells)}\n\n{matrix.summary(cells)}\n\nThe whole took {results['seconds']:.0f} s.")
    if options.json:
        write_json(options.json, results)
        print(f"Wrote {options.json}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
