#!/bin/sh
# One training in several processes, as a Slurm job that goes on after a failure.
#
#   sbatch --nodes 4 --time 12:00:00 scripts/slurm_train.sh MODEL 'STORE.{rank}.sbm' [OPTION...]
#
# OPTIONs are those of sbm train, beside -o. Stores, model and Python lie in the same places on all
# nodes: in a shared folder, or shards of `sbm split --shards` each on its own node's disk (process
# k reads shard k; the model and its run must be where the first process can write).
#
# Tested: this file's syntax, and its decisions with stand-ins for srun and scontrol. Not tested: a
# real Slurm. `srun --mpi=list` names what your site's Slurm knows; MPICH speaks pmi2, Open MPI
# pmix. Where neither fits, LAUNCH="mpiexec" runs MPICH's launcher in the allocation. Do not give srun
# --kill-on-bad-exit: a process that ends with 3, not converged, must not end one that still writes.
#
# LAUNCH  how to start the processes; default: srun --mpi=pmi2
# PYTHON  the Python that has sbm and mpi4py; default: python
# LIMIT   seconds of sbm's own --time-limit: it ends itself, certifies and writes the model as it is;
#         default: 39600, 11 of the 12 hours
# OUTER   seconds until the launcher is killed if it hangs, as it may when a node is gone; default:
#         42300. LIMIT < OUTER < --time, so that the end of the script is reached
# TRIES   how often the job is put into the queue again at most; default: 3
#
# Success is never the exit code of the launcher alone: the model must be there and say that it
# converged. MODEL.status tells it in one line. Exit codes: 0 converged; 2 wrong use; 3 not
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

# LAUNCH is several words.
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
    tell "wrong use"
    exit 2
fi
[ "$code" -ne 0 ] || code=1 # the launcher saw no failure, and there is no model
if [ "$tries" -lt "${TRIES:-3}" ]; then
    tell "to be gone on with"
    scontrol requeue "$SLURM_JOB_ID" && exit "$code"
fi
tell failed
exit "$code"
