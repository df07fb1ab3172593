"""Random histories of the real control plane beside a simple reference of what it must do.

``stage`` gives the real service on a database that records every committed change; ``reference``
and ``fits`` are the reference, which knows the rules and none of the program; ``machine`` draws
the histories. What the rules determine is predicted, what is a free choice (which node, which
devices) is checked: that it is allowed, and that there was one.
"""
