#!/usr/bin/env python3
"""Runs a command under mpirun on an emulated cluster: a rank on each host, hosts as network namespaces joined by links of
a given rate (run.py measures attention there). What the command prints is printed.

    bench/emulated_cluster/command.py hosts=2 mbit=1000 -- build/release/bin/zoetrope generate MODEL fsdp_parallelism=-1 …

Needs what run.py needs. Nothing outlives it."""
import os
import pathlib
import shutil
import subprocess
import sys
import types

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import cluster  # noqa: E402
import inside  # noqa: E402
import matrix  # noqa: E402
import run  # noqa: E402

INSIDE = "--inside"  # the word by which this script calls itself in the namespaces
TIMEOUT = 24 * 3600


def run_in_namespaces(folder, hosts, mbit, command):
    inside.mount_private(folder)
    with cluster.Cluster(folder, matrix.Layout(int(hosts), 1), None) as made:
        made.shape(float(mbit) / 8e-6)
        print(made.mpirun(command, TIMEOUT), end="", flush=True)


def settings(words):
    found = {"hosts": "2", "mbit": "1000"}
    for word in words:
        key, _, value = word.partition("=")
        try:
            number = int(value) if key == "hosts" else float(value)
        except ValueError:
            number = 0
        if key not in found or not 0 < number < 1e6 or number > 200 and key == "hosts":
            raise run.Refusal(f"'{word}' is neither hosts=NUMBER, of 1 to 200, nor mbit=NUMBER")
        found[key] = value
    return found


def main(words):
    if words[:1] == [INSIDE]:
        try:
            run_in_namespaces(*words[1:4], words[4:])
        except (cluster.ClusterError, OSError) as error:
            print(f"emulated_cluster: {error}", file=sys.stderr)
            return 1
        return 0
    try:
        if "--" not in words or words[-1] == "--":
            raise run.Refusal("the command is missing; it comes after '--'")
        at = words.index("--")
        keys, command = settings(words[:at]), words[at + 1:]
        program = shutil.which(command[0])
        if program is None:
            raise run.Refusal(f"{command[0]}: no such program")
        plan = types.SimpleNamespace(core_share=None)
        run.check_rights(types.SimpleNamespace(program=program, directions=matrix.Options.directions), plan)
        run.clean()
        with run.own_folder(plan) as folder:
            return subprocess.run(
                ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--net", "--uts",
                 sys.executable, __file__, INSIDE, str(folder), keys["hosts"], keys["mbit"],
                 os.path.abspath(program), *command[1:]],
                env={**os.environ, cluster.MARK: str(folder)}).returncode
    except run.Refusal as error:
        print(f"emulated_cluster: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
