"""NVIDIA's management library, NVML, in a child process that may hang without the daemon.

One reading passes through: ``reading`` (in the child) asks every GPU; ``child`` sends it up a pipe
as ``messages``; ``process`` holds the parent's end of one child; ``supervisor`` keeps a child
alive, asks it, and replaces it when it hangs, ends or is outdated; ``gpus`` implements the ``Gpus``
port and turns what comes into a snapshot with the pure ``plausible``, ``devices``, ``topology``,
``health`` and ``conditions``.

An Xid passes through: ``events``, a thread of the child, waits for it and hands it to ``child``,
which sends it up the same pipe; ``gpus`` takes what ``supervisor`` heard, ``health`` judges it by
its number, and the next snapshot and its conditions show what it means for the GPU.

``library`` chooses the file that NVML is, and says which was loaded; ``stamp`` (in the parent) says
when that file or the kernel module has been replaced, so that ``supervisor`` starts a new child.

pynvml is called by ``child`` (start and versions), ``reading``, ``processes`` (who computes) and
``events`` alone, mostly through ``calls``, which forgives what one GPU cannot answer. ``child``,
``library``, ``calls``, ``reading``, ``processes``, ``events`` and ``messages`` run in the child and
import nothing of the daemon, so that it stays small.
"""
