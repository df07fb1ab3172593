"""What ``bcd doctor`` looks at: each check answers with what was found and how to mend it.

``finding`` has the values, ``patient`` what every check may look at, ``examine`` the list of all
checks in the order in which they are shown. The checks lie by subject: ``own`` (settings, identity,
state) and ``places`` (folders of holds), which ask ``folders``; ``system`` (systemd, cgroups, the
unit), ``link`` (gateway), ``driver`` (NVIDIA's) and ``runtimes`` (containers). A check reads only,
below ``paths.root``, and blames one thing: where it cannot look because another one failed, it says
so and is skipped.
"""
