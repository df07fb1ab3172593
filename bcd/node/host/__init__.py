"""The parts of the daemon that touch the machine: folders, /proc and /sys, clocks, systemd.

The only place that may import pynvml, pystemd and psutil. Every path lies below a configurable
root, so that captured machines are test inputs and a simulated host is a folder.
"""
