"""The part that runs inside the namespaces (run.py starts it): builds each layout, calibrates, measures, and returns the
results as one JSON line on a file descriptor. Prints its progress.

    inside.py FOLDER RESULT_FD      with the options as JSON on standard input"""
import dataclasses
import json
import os
import pathlib
import shutil
import sys

sys.dont_write_bytecode = True
import matrix  # noqa: E402
import traffic  # noqa: E402
from cluster import KEEPER, Cluster, ClusterError, Speed, call, measure_speed  # noqa: E402

CHECK_SHAPE = "1x2048x4x64"  # of the two runs that check the path of messages: small, but megabytes of keys
# Headers and acknowledgements on top of what the ranks send; of a run that sends nothing, start and end of the job.
OVERHEAD, START_BYTES = 0.06, 1 << 20
# The program repeats runs shorter than 0.02 s within a repeat, and then the number of messages is unknown.
SHORTEST = 0.04
# Of the share of a core that is available to a device: its speed at the start of the run, and the most that it may get
# where the core has become slower. The rest is for the network.
DEVICE_SHARE, MOST_SHARE = 0.5, 0.9
LAUNCH_SECONDS = 60  # overhead of a job on a busy machine, at most
CALIBRATE_SECONDS = 600
PATIENCE = 20        # timeout of a cell, in multiples of its expected time
# The share of a measurement's time that the host may disturb: with more it is repeated, and the least disturbed try
# counts.
DISTURBED = 0.25


def say(text=""):
    print(text, flush=True)


def mount_private(folder):
    """Puts Open MPI's files where they disappear with the namespace, and gives the hosts names."""
    call("mount", "-t", "tmpfs", "tmpfs", folder)
    hosts = pathlib.Path(folder) / "etc_hosts"
    hosts.write_text("127.0.0.1 localhost\n10.77.0.254 head\n" +
                     "".join(f"10.77.0.{index + 1} host{index}\n" for index in range(200)))
    call("mount", "--bind", hosts, "/etc/hosts")
    pathlib.Path("/proc/sys/kernel/hostname").write_text("head\n")


class Bench:
    def __init__(self, folder, options):
        self.folder, self.options = pathlib.Path(folder), options
        self.plan = matrix.make_plan(options)
        self.results = {"options": dataclasses.asdict(options), "cells": [], "rates": [], "layouts": [], "core_share": None}
        self.speed = None
        if self.plan.core_share is not None:
            self.set_speed(1 / max(layout.devices_on_a_core(len(os.sched_getaffinity(0))) for layout in self.plan.layouts))

    def set_speed(self, cores):
        """Of devices that have so much of a core each."""
        keeper = str(pathlib.Path(self.options.program).parent / KEEPER)
        share = self.plan.core_share or round(DEVICE_SHARE * cores, 3)
        if share > cores:
            raise ClusterError(f"core_share={share:g}: {1 / cores:g} devices share a core here; give {cores:g} at most")
        core = measure_speed(keeper, self.plan.dtype)
        self.speed = Speed(keeper, self.plan.dtype, share * core, max(share, MOST_SHARE * cores))
        self.results["core_share"], self.results["device_flops"] = share, self.speed.flops
        say(f"A core makes {core * 1e-9:.1f} GFLOP/s of multiply-adds; a device is {share:g} of that, "
            f"{self.speed.flops * 1e-9:.1f} GFLOP/s")

    # ---- one run of the program ----

    def attention(self, cluster, *words, shape, timeout, repeat=1, placement=None):
        report = self.folder / "attention.json"
        report.unlink(missing_ok=True)
        cluster.mpirun([self.options.program, "attention", f"shape={shape}", f"dtype={self.plan.dtype}", "threads=1",
                        f"repeat={repeat}", f"json={report}", *words], timeout, placement)
        return json.loads(report.read_text())

    def cell(self, cluster, setting, seconds, *words):
        """One configuration, and that its messages took the link: every run's bytes, and no more than headers on top."""
        before, periods = cluster.link_bytes(), cluster.limited_periods()
        measured = self.attention(cluster, *setting.keys, *words, shape=self.plan.problem.shape, repeat=self.plan.repeat,
                                  timeout=LAUNCH_SECONDS + PATIENCE * seconds * (self.plan.repeat + 1))
        if measured["seconds_min"] < SHORTEST:
            raise ClusterError(f"shape={self.plan.problem.shape}: {setting.name} takes {measured['seconds_min']:.3f} s, too "
                               f"short for its messages to be counted; give it more tokens, for {SHORTEST:g} s at least")
        carried = [tuple(now - then for now, then in zip(*pair)) for pair in zip(cluster.link_bytes(), before)]
        if setting.one_way:
            self.check_bytes(cluster, setting.ulysses, setting.ring, carried)
        if periods is not None and any(now <= then for now, then in zip(cluster.limited_periods(), periods)):
            raise ClusterError("a rank computed at an unlimited speed: it is not in its control group")
        measured["link_bytes"] = max(max(pair) for pair in carried) / (self.plan.repeat + 1)
        return measured

    def check_bytes(self, cluster, ulysses, ring, carried):
        runs = self.plan.repeat + 1
        expected = traffic.link_bytes(self.plan.problem, ulysses, ring, cluster.ranks_per_host)
        for index, (counted, sums) in enumerate(zip(carried, expected)):
            for flow, count, one in zip(("sent", "received"), counted, sums):
                if runs * one <= count <= runs * one * (1 + OVERHEAD) + START_BYTES:
                    continue
                raise ClusterError(
                    f"host{index} {flow} {count / 1e6:.1f} MB over its link in {runs} runs of U{ulysses} R{ring}, where "
                    f"the ranks of other hosts need {runs * one / 1e6:.1f} MB: messages do not go where they should")

    # ---- a layout ----

    def check_paths(self, cluster):
        """Two ranks of one host talk without the link; two ranks of two hosts do not."""
        problem = traffic.Problem(*map(int, CHECK_SHAPE.split("x")), matrix.ELEMENT_BYTES[self.plan.dtype])
        payload = traffic.ring_bytes(problem, 2)
        cases = [("across hosts", {0: 1, 1: 1})] + ([("within a host", {0: 2})] if cluster.ranks_per_host > 1 else [])
        for name, placement in cases:
            before = cluster.link_bytes()[0][0]
            self.attention(cluster, "attention=ring", shape=CHECK_SHAPE, timeout=LAUNCH_SECONDS, placement=placement)
            sent = cluster.link_bytes()[0][0] - before
            say(f"  two ranks {name}: {sent / 1e6:.2f} MB over host0's link, {payload / 1e6:.2f} MB between the ranks a run")
            if (sent >= payload) != (len(placement) > 1):
                raise ClusterError(f"two ranks {name} sent {sent} bytes over the link, {payload} bytes a run between them; "
                                   "Open MPI does not keep to the hosts")

    def build_text(self, layout, cluster):
        cores = "; ".join(f"host{i}: {cluster.ranks_per_host} rank{'s' * (cluster.ranks_per_host > 1)} on core "
                          f"{','.join(map(str, c))}" for i, c in enumerate(cluster.cores()))
        return f"{layout}: {cores}" + ("; ranks have no set speed" if self.speed is None else "")

    def find_rates(self, compute):
        for ratio in self.plan.ratios:
            rate = matrix.link_rate(self.plan, compute, ratio)
            self.results["rates"].append({"ratio": ratio, "mbit": rate * 8e-6})
        self.results["compute_seconds"] = compute
        say(f"  a ring of all ranks computes {compute:.3f} s over unshaped links; rates "
            + ", ".join(f"{r['mbit']:.0f} Mbit/s (ratio {r['ratio']:g})" for r in self.results["rates"]))

    def undisturbed(self, cluster, what, measure):
        """(measure(), share of its time in which the host was in the way)"""
        best = None
        for left in reversed(range(self.plan.tries)):
            cluster.disturbed()
            result = measure()
            disturbed = cluster.disturbed()
            if best is None or disturbed < best[1]:
                best = result, disturbed
            if disturbed <= DISTURBED:
                break
            say(f"  {what}: the host was in the way {disturbed:.0%} of the time" + ("; again" if left else ""))
        return best

    def calibrate(self, cluster, profile):
        cluster.mpirun([self.options.program, "calibrate", f"output={profile}", f"dtype={self.plan.dtype}",
                        "threads=1", f"seconds={self.options.window}"], CALIBRATE_SECONDS)
        return profile.read_text()

    def layout(self, layout):
        with Cluster(self.folder, layout, self.speed) as cluster:
            say(f"\nBuilt {self.build_text(layout, cluster)}")
            self.check_paths(cluster)
            if not self.results["rates"]:
                ring = matrix.Setting(1, layout.ranks, "forward")
                unshaped, _ = self.undisturbed(cluster, "unshaped links",
                                               lambda: self.cell(cluster, ring, 60))
                self.find_rates(unshaped["seconds_median"])
            for rate in self.results["rates"]:
                self.rate(cluster, layout, rate)

    def rate(self, cluster, layout, rate):
        cluster.shape(rate["mbit"] / 8e-6)
        profile = self.folder / f"emulated_{layout}_{rate['ratio']:g}.yml"
        text, _ = self.undisturbed(cluster, "calibration", lambda: self.calibrate(cluster, profile))
        profile.write_text(text)
        if self.options.profiles:
            shutil.copy(profile, self.options.profiles)
        for setting in self.plan.cells():
            allowed = self.results["compute_seconds"] * (2 + 2 * rate["ratio"])
            measured, disturbed = self.undisturbed(
                cluster, setting.name, lambda: self.cell(cluster, setting, allowed, f"hardware={profile}"))
            cell = matrix.Cell(str(layout), rate["ratio"], rate["mbit"], *setting,
                               measured["seconds_min"], measured["seconds_median"], measured["predicted_seconds"],
                               measured["link_bytes"] / 1e6)
            say(f"  {rate['mbit']:6.0f} Mbit/s  {cell.name:<14} {cell.seconds_median:7.3f} s, predicted "
                f"{cell.predicted:7.3f} s ({cell.error:+.1%})")
            self.results["cells"].append({**dataclasses.asdict(cell), "disturbed": disturbed, "run": measured})

    def run(self):
        mount_private(self.folder)
        for layout in self.plan.layouts:
            self.layout(layout)
        return self.results


def main():
    folder, descriptor = sys.argv[1], int(sys.argv[2])
    options = matrix.Options(**json.load(sys.stdin))
    try:
        results = Bench(folder, options).run()
    except (ClusterError, OSError) as error:
        results = {"error": str(error)}
    with open(descriptor, "w") as out:
        json.dump(results, out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
