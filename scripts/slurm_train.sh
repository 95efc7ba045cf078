#!/bin/sh
# One training in several processes, as a Slurm job that resumes after a failure.
#
#   sbatch --nodes 4 --time 12:00:00 scripts/slurm_train.sh MODEL 'STORE.{rank}.sbm' [OPTION...]
#
# OPTIONs are those of sbm train, except -o. Stores, model and Python have the same paths on all
# nodes: in a shared folder, or as shards of `sbm split --shards` on the disks of the nodes (rank k
# reads shard k; rank 0 must be able to write the model and its run).
#
# Tested: the syntax of this file, and its decisions with mocks of srun and scontrol. Not tested:
# a real Slurm. `srun --mpi=list` shows what your Slurm supports; MPICH uses pmi2, Open MPI pmix. If
# neither is supported, LAUNCH="mpiexec" runs MPICH's launcher in the allocation. Do not use srun
# --kill-on-bad-exit: a rank that exits with 3 (not converged) must not end one that still writes.
#
# LAUNCH  how to start the processes; default: srun --mpi=pmi2
# PYTHON  the Python that has sbm and mpi4py; default: python
# LIMIT   --time-limit of sbm in seconds, after which it certifies and writes the model as it is;
#         default: 39600, 11 of the 12 hours
# OUTER   seconds until the launcher is killed if it hangs, for example after the loss of a node;
#         default: 42300. LIMIT < OUTER < --time, so that the script can finish
# TRIES   maximum number of times the job is requeued; default: 3
#
# The exit code of the launcher does not prove success: the model must exist and have converged.
# MODEL.status shows the outcome in one line. Exit codes: 0 converged; 2 invalid usage; 3 not
# converged, and no tries left; else that of the last try.
#
#SBATCH --job-name=sbm-train
#SBATCH --ntasks-per-node=1
#SBATCH --time=12:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
set -u

[ $# -ge 2 ] || {
    echo "usage: sbatch [OPTIONS OF SBATCH] slurm_train.sh MODEL STORE [OPTIONS OF SBM TRAIN]" >&2
    exit 2
}
model=$1
shift
tries=${SLURM_RESTART_COUNT:-0}

# LAUNCH may be several words.
# shellcheck disable=SC2086
timeout --kill-after=60 "${OUTER:-42300}" \
    ${LAUNCH:-srun --mpi=pmi2} \
    "${PYTHON:-python}" -m mpi4py -m sbm train "$@" -o "$model" --time-limit "${LIMIT:-39600}s"
code=$?

is_converged() {
    [ -f "$model" ] && "${PYTHON:-python}" -m sbm info "$model" --json |
        grep -q '"converged": true'
}

tell() {
    echo "$1, exit code $code, try $tries, $(date -u +%Y-%m-%dT%H:%M:%SZ)" >"$model.status.tmp" &&
        mv "$model.status.tmp" "$model.status"
}

if [ "$code" -eq 0 ] && is_converged; then
    tell converged
    exit 0
fi
if [ "$code" -eq 2 ]; then
    tell "invalid usage"
    exit 2
fi
[ "$code" -ne 0 ] || code=1 # the launcher reported no failure, but the model is missing
if [ "$tries" -lt "${TRIES:-3}" ]; then
    tell requeued
    scontrol requeue "$SLURM_JOB_ID" && exit "$code"
fi
tell failed
exit "$code"
