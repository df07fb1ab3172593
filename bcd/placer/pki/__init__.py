"""The control plane's secrets: CA key, command key, bearer-token issuer; and who gets in.

``state`` keeps them in files only the placer reads; ``authority`` issues certificates, ``command``
signs desired states, ``issuer`` makes and checks bearer tokens, ``join`` mints join tokens,
``enrolment`` answers what gateways relay, ``own`` keeps the placer's own certificates.
"""
