#!/bin/sh
# TaskProlog= of slurm.conf: gives a task the variables of its job's hold (see prolog.sh).
#
# Slurm sets CUDA_VISIBLE_DEVICES to indexes of its own gres.conf; the hold's UUIDs take their
# place, and what has indexes still goes. A hold that is not here ends this task with exit code 1,
# which drains no node.
set -u

link=/run/bcd/slurm/${SLURM_JOB_ID:?}.env
[ -L "$link" ] || exit 0

if [ ! -r "$link" ]; then
  echo "print bcd: the hold that this job's comment names is not on $(uname -n); see: bcd holds"
  exit 1
fi
while IFS= read -r line; do
  # Strict KEY=VALUE; what is not is not ours.
  case $line in
    BCD_[A-Z]*=* | CUDA_VISIBLE_DEVICES=*) echo "export $line" ;;
  esac
  case $line in
    CUDA_VISIBLE_DEVICES=*) echo "export NVIDIA_VISIBLE_DEVICES=${line#*=}" ;;
  esac
done <"$link"
for name in GPU_DEVICE_ORDINAL ROCR_VISIBLE_DEVICES ZE_AFFINITY_MASK; do
  echo "unset $name"
done
