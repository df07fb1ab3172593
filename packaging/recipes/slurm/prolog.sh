#!/bin/sh
# Prolog= of slurm.conf: ties a job to the hold that its comment names, as root, before its tasks.
#
#   sbatch --comment=bcd=alloc_01h… --gres=gpu:4 job.sh
#
# It leaves a link for task_prolog.sh, which takes the variables from there. A Prolog that fails
# drains the node, so a hold that is not here never makes this one fail: the link then leads
# nowhere, task_prolog.sh ends that job with a sentence, and the log has it. Jobs whose comment
# names no hold run as before. Whoever may submit jobs may name any hold of the node: Slurm's own
# accounts and partitions have to say who that is.
set -u

links=/run/bcd/slurm
holds=/run/bcd/allocations
wait_seconds=20 # a hold that was booked for now may be some seconds away

named=no allocation=
set -f # the comment is the user's: its words are not file names
for word in ${SLURM_JOB_COMMENT:-}; do
  case $word in bcd=*) named=yes allocation=${word#bcd=} ;; esac
done
[ "$named" = yes ] || exit 0

case $allocation in
  *[!0-9a-z_]*) allocation= ;; # it becomes a path
  alloc_??????????????????????????) ;;
  *) allocation= ;;
esac
file=$holds/${allocation:-none}.env

waited=0
while [ -n "$allocation" ] && [ ! -f "$file" ] && [ "$waited" -lt "$wait_seconds" ]; do
  sleep 1
  waited=$((waited + 1))
done
if [ ! -f "$file" ]; then
  logger -t bcd-prolog -- "job ${SLURM_JOB_ID:-}: no hold ${allocation:-(not an allocation id)}" \
    "here; the job ends, the node stays; see: bcd holds" 2>/dev/null
fi
mkdir -p "$links" && ln -sfn "$file" "$links/${SLURM_JOB_ID:?}.env"
exit 0
