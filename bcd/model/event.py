"""The catalogue of events: what a watcher or a webhook may ask for."""

# The last parts of the types of a reservation's events (spec 9.4).
RESERVATION_EVENTS = (
    "placed",
    "pending",
    "queued",
    "binding",
    "active",
    "extended",
    "released",
    "cancelled",
    "failed",
    "awaiting-confirmation",
    "expired",
    "repaired",
    "preempting",
    "preempted",
    "reassigned",
    "binding-rejected",
)
EVENT_TYPES = (
    *(f"reservation.{name}" for name in RESERVATION_EVENTS),
    "node.enrolment-rejected",
)
