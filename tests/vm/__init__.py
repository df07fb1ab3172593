"""The daemon's own side of a real host: an emulated machine with systemd and the kernel's limits.

``image`` makes a disk from Debian's packages, ``payload`` says how bcd gets onto it, ``machine``
boots it, and ``guest`` runs there: every scenario in one boot, since booting is what costs. The
tests here only read what came of each.
"""
