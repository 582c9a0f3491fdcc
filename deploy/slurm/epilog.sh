#!/bin/bash
# Drains the daemons that prolog.sh started. Source this at the end of the batch script.
set -eu

srun --overlap --ntasks-per-node=1 sealane drain --socket "$SEALANE_SOCKET" --timeout-s 60
wait "$SEALANE_DAEMONS"
rm -r "$SEALANE_FOLDER"
