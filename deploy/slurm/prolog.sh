#!/bin/bash
# Starts a Sealane daemon on every node of a Slurm job, in the job's cgroup, so that it uses the job's CPUs and memory and
# ends with the job at the latest. Source this in the batch script; tasks then attach at $SEALANE_SOCKET:
#
#   #SBATCH --nodes=4 --ntasks-per-node=2
#   source /usr/share/doc/sealane/examples/slurm/prolog.sh
#   srun --overlap python train.py
#   source /usr/share/doc/sealane/examples/slurm/epilog.sh
#
# The first $SEALANE_PS (1) tasks are parameter servers. Needs a directory that all nodes share ($SEALANE_FOLDER).
set -eu

SEALANE_FOLDER=${SEALANE_FOLDER:-$PWD/sealane-$SLURM_JOB_ID}
# On each node; compute nodes may have no /run/user.
SEALANE_SOCKET=/tmp/sealane-$SLURM_JOB_ID.sock
# The daemons and the tasks accept only each other, even if processes of an earlier job are left over.
SEALANE_JOB=slurm-$SLURM_JOB_ID
export SEALANE_FOLDER SEALANE_SOCKET SEALANE_JOB

mkdir -p "$SEALANE_FOLDER"
chmod 0700 "$SEALANE_FOLDER"
sealane map generate --from slurm --ps "${SEALANE_PS:-1}" --out "$SEALANE_FOLDER/endpoint_map"
sealane keys secret "$SEALANE_FOLDER/secret"

# A separate step: one daemon per node, which shares the CPUs with the tasks.
srun --overlap --ntasks-per-node=1 --output="$SEALANE_FOLDER/daemon-%N.log" \
    sealane daemon --endpoint-map "$SEALANE_FOLDER/endpoint_map" --socket "$SEALANE_SOCKET" \
    --set "security.secret_file=$SEALANE_FOLDER/secret" --set "runtime.claim_directory=/tmp/sealane-$SLURM_JOB_ID" &
SEALANE_DAEMONS=$!
export SEALANE_DAEMONS

# Wait until each daemon serves; one that cannot has logged why.
# shellcheck disable=SC2016  # expanded by the node's shell
srun --overlap --ntasks-per-node=1 bash -c '
    for _ in $(seq 300); do [ -S "$SEALANE_SOCKET" ] && exit 0; sleep 0.1; done
    echo "the Sealane daemon of $(hostname) does not serve; its log is in $SEALANE_FOLDER" >&2; exit 1'
