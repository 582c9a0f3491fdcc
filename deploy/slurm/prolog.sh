#!/bin/bash
# Starts a Sealane daemon on every node of a Slurm job, in the job's own cgroup, so that it takes the job's CPUs and memory and
# ends with the job at the latest. To be sourced in the batch script, after which tasks attach at $SEALANE_SOCKET:
#
#   #SBATCH --nodes=4 --ntasks-per-node=2
#   source /usr/share/doc/sealane/examples/slurm/prolog.sh
#   srun --overlap python train.py
#   source /usr/share/doc/sealane/examples/slurm/epilog.sh
#
# Of the tasks the first $SEALANE_PS (1) are parameter servers. Needs a folder that all nodes share ($SEALANE_FOLDER).
set -eu

SEALANE_FOLDER=${SEALANE_FOLDER:-$PWD/sealane-$SLURM_JOB_ID}
# On each node; /run/user may not be there on compute nodes.
SEALANE_SOCKET=/tmp/sealane-$SLURM_JOB_ID.sock
export SEALANE_FOLDER SEALANE_SOCKET

mkdir -p "$SEALANE_FOLDER"
chmod 0700 "$SEALANE_FOLDER"
sealane map generate --from slurm --ps "${SEALANE_PS:-1}" --out "$SEALANE_FOLDER/endpoint_map"
sealane keys secret "$SEALANE_FOLDER/secret"

# A step of its own beside the job's: one daemon a node, which the tasks share the CPUs with.
srun --overlap --ntasks-per-node=1 --output="$SEALANE_FOLDER/daemon-%N.log" \
    sealane daemon --endpoint-map "$SEALANE_FOLDER/endpoint_map" --socket "$SEALANE_SOCKET" \
    --set "security.secret_file=$SEALANE_FOLDER/secret" --set "runtime.claim_directory=/tmp/sealane-$SLURM_JOB_ID" &
SEALANE_DAEMONS=$!
export SEALANE_DAEMONS

# Until each serves; one that cannot has said why in its log.
# shellcheck disable=SC2016  # of the node's shell
srun --overlap --ntasks-per-node=1 bash -c '
    for _ in $(seq 300); do [ -S "$SEALANE_SOCKET" ] && exit 0; sleep 0.1; done
    echo "the Sealane daemon of $(hostname) does not serve; its log is in $SEALANE_FOLDER" >&2; exit 1'
