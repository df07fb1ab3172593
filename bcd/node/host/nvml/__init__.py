"""NVIDIA's management library, NVML, in a child process that may hang without the daemon.

One reading passes through: ``reading`` (in the child, the only one here that calls NVML, through
``calls``) asks every GPU; ``child`` sends it up a pipe as ``messages``; ``process`` holds the
parent's end of one child; ``supervisor`` keeps a child alive, asks it, and replaces it when it
hangs, ends or is outdated; ``gpus`` implements the ``Gpus`` port and turns what comes into a
snapshot with the pure ``plausible``, ``devices``, ``topology``, ``health`` and ``conditions``.
``events`` is the child's thread that waits for Xids.

``child``, ``library``, ``calls``, ``reading``, ``processes``, ``events`` and ``messages`` run in
the child and import nothing of the daemon, so that it stays small.
"""
