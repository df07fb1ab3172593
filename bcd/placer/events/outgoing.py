"""Puts the ways out together, as the settings say: the feed, the publisher, the deliverer."""

import ssl

from bcd.model.errors import BadConfiguration
from bcd.placer.admission.policy import Policy
from bcd.placer.events.deliverer import Deliverer
from bcd.placer.events.feed import Feed
from bcd.placer.events.post import Poster, Resolver
from bcd.placer.events.publisher import Publisher
from bcd.placer.events.target import Reach, networks_of
from bcd.placer.loops import Loop
from bcd.placer.settings import WebhookSettings
from bcd.store.database import Database

_PUBLISH_TICK_S = 1.0
_DELIVER_TICK_S = 5.0
_ADDED_AT_ONCE = 32
# Two for each webhook that there may be.
_DELIVERED_AT_ONCE = 256


class Outgoing:
    """Events on their way out of one placer. Raises BadConfiguration."""

    def __init__(self, database: Database, policy: Policy, settings: WebhookSettings) -> None:
        self.feed = Feed(database, policy)
        # Who adds webhooks with names that hang must not hold deliveries up.
        self._resolvers = Resolver(_ADDED_AT_ONCE), Resolver(_DELIVERED_AT_ONCE)
        reach = Reach(settings.allow_http, networks_of(settings.allow_private))
        self.poster, poster = (Poster(reach, one, _trust(settings)) for one in self._resolvers)
        self._database = database
        self._publisher = Publisher(database)
        self._deliverer = Deliverer(database, self.feed, poster)

    def loops(self) -> tuple[Loop, ...]:
        """What must run."""
        deliver = self._deliverer.pass_once
        return (
            Loop("events", self._database, ["event"], self._publisher.pass_once, _PUBLISH_TICK_S),
            Loop("webhooks", self._database, ["published", "webhook"], deliver, _DELIVER_TICK_S),
        )

    async def stop(self) -> None:
        """Break deliveries off; call when the loops have ended."""
        await self._deliverer.stop()
        for resolver in self._resolvers:
            resolver.close()


def _trust(settings: WebhookSettings) -> ssl.SSLContext:
    trust = ssl.create_default_context()
    if settings.ca_file is not None:
        try:
            trust.load_verify_locations(settings.ca_file)
        except OSError as error:  # of what is in the file too: SSLError is one
            raise BadConfiguration(
                f"webhooks.ca_file: {settings.ca_file} cannot be used ({error.strerror or error});"
                " name a PEM file with certificates"
            ) from error
    return trust
