"""The daemon ``bcd``: makes the holds of one GPU host stand, and signs what it did.

May import ``signing``, ``wire`` and ``model``; never store, gateway or placer. How one
assignment passes through:

1. ``session`` reads a signed desired state off the stream and keeps only the newest.
2. ``desired`` judges it: signature, chain to the pinned CA, node, version; then persists it.
3. ``observe`` looks at disk and hardware; ``converge`` (pure, asks ``fit``) makes a plan.
4. ``execute`` runs the plan's steps through the ports (``ports``); ``host`` touches the machine:
   a hold's slice is made by ``host.systemd.slices``, before its specs are written.
5. ``reports`` signs changed outcomes into the ``outbox``; the session sends until acknowledged.

``holds`` joins 2 to 5 into one pass; ``daemon`` is the loop that runs passes, ``opening`` makes
one; ``link`` keeps a session alive; ``identity`` and ``enrolment`` keep the node's key young.
Nothing on disk but the CDI specs is the hold (``hold``, ``cdi``); everything else is rebuilt from
them. What another node id made (``others``) is left alone. ``readiness`` says what makes a new
hold wait, ``sharing`` how slots share a GPU; ``answers`` and ``metrics`` are what people may ask.
"""
