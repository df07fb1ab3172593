"""Holds with limits on a real host: one systemd slice per allocation, and its control files.

- ``slices``: the port ``Slices``; creates, repairs, reads back and stops.
- ``above``: limits that a person set on the slices above them.
- ``tree``: the control groups that workloads made below a slice, walked and removed.
- ``cgroup``: the control files of the slices, read and compared; huge pages, which systemd has no
  property for, and the ban on new children before a stop.
- ``conversation``: one operation of systemd at a time, with a deadline, in a child process that
  serves a burst of them.
- ``process``: the daemon's end of that child; ``child``: the other end, and what they say.
- ``units``: the operations; the only module that imports pystemd.

systemd owns the slices and every limit that it knows a property for: what is written behind its
back is lost at the next ``daemon-reload``. But it reports success while it applies nothing, so
only the control files say whether a limit is in force.
"""
