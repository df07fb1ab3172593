"""From a request to a decision: normal form, what it costs, policy, and the create itself.

``create`` runs the two transactions around the decision (spec 4.1), ``extend`` does the same for a
longer end, and ``preview`` takes a create's steps and undoes them. ``request`` gives the normal
form, ``share`` the host resources that ride on the devices, ``quota`` what is charged, and
``attributes`` what a policy sees: all pure. ``policy`` wraps Cedar, whose files lie in
``policies``; ``unused`` bounds what is asked for and never got; ``confirmation`` is what a create
has to do where a person must say yes (spec 13).
"""
