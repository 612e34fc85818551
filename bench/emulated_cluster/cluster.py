"""Builds hosts on one machine, each with a network and a host name of its own, joined by links of a given rate to one
bridge, with devices of a given speed. Runs commands under mpirun across them and reads the links' counters.

It must run as the first process of a PID namespace, in mount, network and host-name namespaces of its own (see run.py):
then the kernel ends every process and removes every link and namespace when this process ends, for any reason.

    host0 ┤link0├──────┤port0├┐
    host1 ┤link0├──────┤port1├┤ bridge ── 10.77.0.254: mpirun
    host2 ┤link0├──────┤port2├┘

Both ends of each pair send through a token bucket, so that each host has one link of that rate in each direction, which
all its ranks share."""
import dataclasses
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time

NETWORK = "10.77.0"
HEAD = f"{NETWORK}.254"
SUBNET = f"{NETWORK}.0/24"
HERE = pathlib.Path(__file__).resolve().parent
MARK = "ZOETROPE_EMULATED_CLUSTER"  # in the environment of every process of a run: its folder
KEEPER = "speed_keeper"  # the program, in the folder of zoetrope
DEVICE_PREFIX = "device_"
GROUP_PREFIX = "zoetrope_cluster_"  # of control groups and folders: found by this when their run was killed

# Jumbo frames, as in clusters: six times fewer packets, which take less of the cores that the ranks compute on.
MTU = 9000
# What a bucket may send at once: a little more than the largest segment of the network stack (64 KB).
BURST = 72 << 10
# The queue of a switch port where several senders meet: larger than all data in flight. With 1 MB one run in ten waited
# for retransmission timers, 6 and 10 s instead of 3.8.
QUEUE = 16 << 20
# Bytes of one connection in its sender's queue: those of other connections wait behind them.
UNSENT = 128 << 10
# Bytes of one connection that were sent but not yet received: more than a round trip on the fastest link, a tenth of a
# second on the slowest. With the kernel's 4 MB it was a second, in which the rest of an exchange that its receiver was
# waiting for shared the link with a hop that was not needed yet.
SEND_BUFFER = 512 << 10
MEASURED_SECONDS = 2.0  # of measuring a core's speed at the start


class ClusterError(Exception):
    """One sentence: what is wrong, where, and what would be right."""


def call(*arguments, check=True):
    words = [str(a) for a in arguments]
    result = subprocess.run(words, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if check and result.returncode != 0:
        said = (result.stderr.strip() or result.stdout.strip() or f"exit code {result.returncode}").splitlines()[-1]
        raise ClusterError(f"'{' '.join(words)}' failed: {said}")
    return result.stdout


# ---- control groups ----

def cpu_controller():
    """(folder, version) of the mounted controller of CPU time, or None."""
    found = None
    for line in pathlib.Path("/proc/mounts").read_text().splitlines():
        _, folder, kind, options = line.split()[:4]
        if kind == "cgroup" and "cpu" in options.split(","):
            return pathlib.Path(folder), 1
        if kind == "cgroup2":
            controllers = pathlib.Path(folder) / "cgroup.controllers"
            if controllers.exists() and "cpu" in controllers.read_text().split():
                found = pathlib.Path(folder), 2
    return found


def share_cpu(folder, version):
    """Enables the controller for groups below `folder`, as version 2 requires. True if it was not enabled before."""
    control = folder / "cgroup.subtree_control"
    if version == 1 or "cpu" in control.read_text().split():
        return False
    control.write_text("+cpu")
    return True


def unshare_cpu(folder):
    """Undoes share_cpu(); the kernel refuses while groups of another run use it."""
    try:
        (folder / "cgroup.subtree_control").write_text("-cpu")
    except OSError:
        pass


def make_devices(name, devices):
    """Groups of these names in the run's own; the speed keepers set their shares."""
    folder, version = cpu_controller()
    top = folder / name
    share_cpu(top, version)
    for device in devices:
        (top / device).mkdir()
    return top


def remove_groups(find, patience=10.0):
    """Removes groups, which takes a moment after the end of their last process. True when find() finds no more."""
    end = time.monotonic() + patience
    while True:
        for folder in find():
            try:
                folder.rmdir()
            except OSError:
                pass
        if not find():
            return True
        if time.monotonic() > end:
            return False
        time.sleep(0.05)


def remove_devices(top):
    """The groups of devices; the run's own is kept for its next layout."""
    return remove_groups(lambda: list(top.glob(f"{DEVICE_PREFIX}*")))


def remove_run_group(top):
    return remove_groups(lambda: [*top.glob(f"{DEVICE_PREFIX}*"), top] if top.is_dir() else [])


# ---- the speed of devices ----

def measure_speed(program, dtype):
    """The speed of the slowest core of this process while all are busy, in FLOP/s."""
    looks = [subprocess.Popen(["taskset", "--cpu-list", str(core), str(program), "measure", dtype, str(MEASURED_SECONDS)],
                              text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for core in os.sched_getaffinity(0)]
    said = [look.communicate() for look in looks]
    if any(look.returncode != 0 for look in looks):
        raise ClusterError(f"the speed of the cores cannot be measured: {' '.join(errors for _, errors in said).strip()}")
    return min(float(output) for output, _ in said)


@dataclasses.dataclass(frozen=True)
class Speed:
    """Of every device: `flops` per second, with at most the share `most` of its core where the core has become slow."""
    program: str
    dtype: str
    flops: float
    most: float


class SpeedKeeper:
    """Keeps the devices of one core at their speed, until closed."""

    def __init__(self, speed, core, groups):
        # In the root group, next to the run's: in a group with a weight of its own, its idle loop would slow the devices.
        in_root_group = 'echo 0 > "$0" && exec "$@"'
        self.process = subprocess.Popen(["sh", "-c", in_root_group, str(cpu_controller()[0] / "cgroup.procs"), "taskset",
                                         "--cpu-list", str(core), speed.program, "keep", speed.dtype, str(speed.flops),
                                         str(speed.most), *map(str, groups)], text=True, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def report(self):
        """(measurements of the core since the last report, those that the host disturbed)"""
        try:
            self.process.stdin.write("report\n")
            self.process.stdin.flush()
            looks, disturbed = map(int, self.process.stdout.readline().split())
            return looks, disturbed
        except (OSError, ValueError):
            raise ClusterError(f"the devices are no longer at their speed: {self.process.stderr.read().strip()}")

    def close(self):
        self.process.kill()
        self.process.communicate()


# ---- the cluster ----

class Cluster:
    """The hosts and devices of a matrix.Layout, kept at `speed` if there is one. A context manager that removes everything
    it builds."""

    def __init__(self, folder, layout, speed):
        self.folder, self.layout, self.speed = pathlib.Path(folder), layout, speed
        self.hosts, self.ranks_per_host, self.ranks = layout.hosts, layout.ranks_per_host, layout.ranks
        self.holders = []
        self.keepers = []
        self.devices = None
        self.rate = None  # bytes/s, as the links are set

    def __enter__(self):
        try:
            self.build()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *ignored):
        self.remove()

    def host(self, index):
        return f"host{index}"

    def cores(self):
        """Of each host: a part of the cores that this process may use."""
        mine = sorted(os.sched_getaffinity(0))
        return [[mine[core] for core in cores] for cores in self.layout.cores(len(mine))]

    def build(self):
        names = self.folder / "hosts"
        shutil.rmtree(names, ignore_errors=True)
        names.mkdir()
        call("ip", "link", "set", "lo", "up")
        call("ip", "link", "add", "bridge", "type", "bridge")
        call("ip", "link", "set", "bridge", "mtu", MTU, "up")
        call("ip", "address", "add", f"{HEAD}/24", "dev", "bridge")
        for index, cores in enumerate(self.cores()):
            pid = self.hold_namespaces(self.host(index))
            call("ip", "link", "add", f"port{index}", "type", "veth", "peer", "name", "link0", "netns", pid)
            call("ip", "link", "set", f"port{index}", "mtu", MTU, "master", "bridge", "up")
            self.inside(index, "ip", "link", "set", "lo", "up")
            self.inside(index, "ip", "link", "set", "link0", "mtu", MTU, "up")
            self.inside(index, "ip", "address", "add", f"{NETWORK}.{index + 1}/24", "dev", "link0")
            # Settings that every kernel has, so that figures do not depend on the machine's.
            for name, value in (("congestion_control", "reno"), ("limit_output_bytes", UNSENT),
                                ("wmem", f"4096 65536 {SEND_BUFFER}")):
                self.inside(index, "sh", "-c", f"echo {value} > /proc/sys/net/ipv4/tcp_{name}")
            (names / self.host(index)).write_text(f"{pid} {','.join(map(str, cores))}\n")
        if self.speed is not None:
            self.hold_speed()

    def hold_speed(self):
        """Each device has a core, possibly shared, and a control group named after its host and place."""
        on_core = {}
        for index, cores in enumerate(self.cores()):
            for place in range(self.ranks_per_host):
                on_core.setdefault(cores[place % len(cores)], []).append(f"{DEVICE_PREFIX}{self.host(index)}_{place}")
        self.devices = make_devices(self.folder.name, [name for names in on_core.values() for name in names])
        for core, names in on_core.items():
            self.keepers.append(SpeedKeeper(self.speed, core, [self.devices / name for name in names]))
        self.disturbed()

    def disturbed(self):
        """The share of the time since the last call in which a core was too slow for its devices or taken away; 0 where
        devices have no speed."""
        reports = [keeper.report() for keeper in self.keepers]
        return max((disturbed / max(1, looks) for looks, disturbed in reports), default=0.0)

    def hold_namespaces(self, name):
        """An idle process that owns a host's namespaces; it prints a line when they exist."""
        hold = f"echo {name} > /proc/sys/kernel/hostname && echo ready && exec sleep infinity"
        holder = subprocess.Popen(["unshare", "--net", "--uts", "sh", "-c", hold], stdout=subprocess.PIPE, text=True)
        self.holders.append(holder)
        if holder.stdout.readline() != "ready\n":
            raise ClusterError(f"{name}: a network namespace with a host name of its own could not be made")
        return holder.pid

    def inside(self, index, *arguments):
        return call("nsenter", "--target", self.holders[index].pid, "--net", "--uts", "--", *arguments)

    def shape(self, rate):
        """Links of `rate` bytes/s each way; None: no limit."""
        for index in range(self.hosts):
            port, link = f"port{index}", "link0"
            self.bucket(lambda *a: call("tc", *a), port, rate)
            self.bucket(lambda *a: self.inside(index, "tc", *a), link, rate)
        self.rate = rate

    def bucket(self, tc, device, rate):
        if self.rate is not None:
            tc("qdisc", "delete", "dev", device, "root")
        if rate is not None:
            tc("qdisc", "add", "dev", device, "root", "tbf", "rate", f"{int(rate * 8)}bit", "burst", BURST, "limit",
               QUEUE)

    def link_bytes(self):
        """[(sent, received)] of each host so far, as counted by its link, headers included."""
        counts = []
        for index in range(self.hosts):
            statistics = json.loads(call("ip", "-json", "-statistics", "link", "show", "dev", f"port{index}"))
            counted = statistics[0].get("stats64") or statistics[0]["stats"]
            counts.append((counted["rx"]["bytes"], counted["tx"]["bytes"]))
        return counts

    def limited_periods(self):
        """[periods in which the kernel limited it] of each device, or None without control groups."""
        if self.devices is None:
            return None
        counts = []
        for device in sorted(self.devices.glob(f"{DEVICE_PREFIX}*")):
            lines = (device / "cpu.stat").read_text().splitlines()
            counts.append(int(dict(line.split() for line in lines)["nr_periods"]))
        return counts

    def environment(self):
        folders = {name: self.folder / name for name in ("session", "shared_memory")}
        for folder in folders.values():
            folder.mkdir(exist_ok=True)
        return {
            **os.environ,
            MARK: str(self.folder),
            "ZOETROPE_EMULATED_DEVICES": str(self.devices or ""),
            "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "OMPI_MCA_plm": "rsh",
            "OMPI_MCA_plm_rsh_agent": str(HERE / "launch_agent.sh"),
            "OMPI_MCA_plm_rsh_no_tree_spawn": "1",  # hosts cannot start daemons on each other
            "OMPI_MCA_oob_tcp_if_include": SUBNET, "OMPI_MCA_btl_tcp_if_include": SUBNET,
            "OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,vader,tcp",
            "OMPI_MCA_hwloc_base_binding_policy": "none",  # the launch agent binds
            "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_mpi_yield_when_idle": "1",
            "OMPI_MCA_orte_tmpdir_base": str(folders["session"]),
            "OMPI_MCA_btl_vader_backing_directory": str(folders["shared_memory"]),
        }

    def mpirun(self, command, timeout, placement=None):
        """Runs `command` on every device, or with `placement` {host: ranks} on those. Its standard output."""
        placement = placement or {index: self.ranks_per_host for index in range(self.hosts)}
        hosts = ",".join(f"{self.host(index)}:{ranks}" for index, ranks in placement.items())
        words = ["mpirun", "--host", hosts, "-n", str(sum(placement.values())), "--map-by", "slot",
                 str(HERE / "device_agent.sh"), *map(str, command)]
        with tempfile.TemporaryFile("w+", dir=self.folder) as errors:
            job = subprocess.Popen(words, text=True, cwd=self.folder, env=self.environment(), stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=errors, start_new_session=True)
            try:
                output, _ = job.communicate(timeout=timeout)
            except subprocess.TimeoutExpired:
                end_job(job)
                raise ClusterError(f"'{' '.join(map(str, command))}' on {hosts} had not ended after {timeout:.0f} s")
            errors.seek(0)
            said = errors.read().strip()
        if job.returncode != 0:
            lines = [line for line in said.splitlines() if line.startswith("zoetrope: ")] or said.splitlines()[-3:]
            raise ClusterError(f"'{' '.join(map(str, command))}' on {hosts} ended with {job.returncode}: "
                               f"{' / '.join(lines) or 'it said nothing'}")
        return output

    def remove(self):
        for keeper in self.keepers:
            keeper.close()
        self.keepers = []
        for holder in self.holders:
            holder.kill()
            holder.wait()
            holder.stdout.close()
        self.holders = []
        # Ports go with the namespaces of their other ends, a moment after these; deleting one that is gone is not an error.
        for index in range(self.hosts):
            call("ip", "link", "delete", f"port{index}", check=False)
        call("ip", "link", "delete", "bridge", check=False)
        if self.devices is not None:
            remove_devices(self.devices)
            self.devices = None
        self.rate = None


def end_job(job):
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(job.pid, number)
        except ProcessLookupError:
            break
        try:
            job.wait(timeout=5)
        except subprocess.TimeoutExpired:
            continue
    job.communicate()
