#!/bin/sh
# What Open MPI calls instead of ssh (plm_rsh_agent): enters an emulated host, with its network, its host name and its
# cores, and runs there the command that starts the host's daemon.
#
#     launch_agent.sh HOST COMMAND…
#
# ZOETROPE_EMULATED_CLUSTER is the folder of the run; hosts/HOST in it holds "PID CORES".
set -e
host=$1
shift
read -r pid cores < "$ZOETROPE_EMULATED_CLUSTER/hosts/$host"
exec nsenter --target "$pid" --net --uts -- taskset --cpu-list "$cores" /bin/sh -c "$*"
