"""The parts of the daemon that touch the machine: files, /proc and /sys, drivers, systemd.

The only place that may import pynvml, pystemd and psutil. Every path lies below a configurable
root, so that captured machines are test inputs and a simulated host is a folder.

- ``real``: the ports of a real host, put together; ``machine``: those that every host has
- ``cdi``, ``env``, ``folder``, ``files``: specs, env files, and the daemon's own folder
- ``facts``, ``pci``: CPUs, NUMA nodes, memory, and the GPUs on the bus
- ``nvml``: the GPUs, their health and links, in a child process; ``driver``: the driver's files
- ``systemd``: slices with their control files; ``mps``: MPS control daemons as units
- ``standing``: holds as they lie on disk; ``doctor``: what is missing on this host
"""
