#!/bin/sh
# Runs a rank as an emulated device: under the control group that holds it to its share of a core, where the run has
# such groups.
#
#     device_agent.sh COMMAND…
#
# ZOETROPE_EMULATED_DEVICES: the folder of the groups, or empty.
set -e
if [ -n "$ZOETROPE_EMULATED_DEVICES" ]; then
  echo 0 > "$ZOETROPE_EMULATED_DEVICES/rank$OMPI_COMM_WORLD_RANK/cgroup.procs"
fi
exec "$@"
