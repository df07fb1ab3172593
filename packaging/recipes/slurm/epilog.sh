#!/bin/sh
# Epilog= of slurm.conf: takes the link of prolog.sh away. The hold stays until it is released.
rm -f "/run/bcd/slurm/${SLURM_JOB_ID:?}.env"
exit 0
