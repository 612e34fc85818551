#!/bin/sh
# Runs a rank as an emulated device: on its core, and under the control group that limits its speed, where the run has
# such groups.
#
#     device_agent.sh COMMAND…
#
# ZOETROPE_EMULATED_DEVICES: the folder of the groups, or empty. ZOETROPE_EMULATED_CLUSTER: the folder of the run;
# hosts/HOST in it holds "PID CORES".
set -e
if [ -z "$ZOETROPE_EMULATED_DEVICES" ]; then
  exec "$@"
fi
host=$(cat /proc/sys/kernel/hostname)
place=$OMPI_COMM_WORLD_LOCAL_RANK
echo 0 > "$ZOETROPE_EMULATED_DEVICES/device_${host}_$place/cgroup.procs"
read -r _ cores < "$ZOETROPE_EMULATED_CLUSTER/hosts/$host"
count=$(echo "$cores" | tr , '\n' | wc -l)
exec taskset --cpu-list "$(echo "$cores" | cut -d , -f $((place % count + 1)))" "$@"
