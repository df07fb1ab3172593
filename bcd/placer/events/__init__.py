"""Events on their way out: published in one order, read by watchers, delivered to webhooks.

One datum: a transition writes an event in its own transaction (``store/events``); ``publisher``
gives it its place; ``feed`` reads in that order what somebody may see; a watcher gets it from
there (``placer/api/events``); ``deliverer`` makes it a delivery of each webhook that wants it and
tries until the receiver takes it: ``message`` says what is sent, ``target`` where it
may go, ``post`` sends, ``backoff`` says when next. ``outgoing`` puts them together. May import
``admission``, ``store``, ``wire`` and ``model``.
"""
