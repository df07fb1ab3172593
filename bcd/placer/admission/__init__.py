"""From a request to a decision: normal form, quota charges, policy, and the create itself.

``request`` and ``quota`` are pure; ``policy`` wraps Cedar; ``create`` runs the two transactions
around the decision (spec 4.1).
"""
