"""Every service of the API, by name, and how they are put onto a server."""

from dataclasses import dataclass

import grpc

from bcd.placer.admission.create import Admission
from bcd.placer.admission.extend import Extensions
from bcd.placer.admission.policy import Policy
from bcd.placer.admission.preview import Previews
from bcd.placer.api.capacity import CapacityCalls, CapacityServicer
from bcd.placer.api.confirmations import ConfirmationCalls, ConfirmationsServicer
from bcd.placer.api.credentials import CredentialCalls, CredentialsServicer
from bcd.placer.api.edge import Edge
from bcd.placer.api.events import EventCalls, EventsServicer
from bcd.placer.api.maintenance import MaintenanceCalls, MaintenanceServicer
from bcd.placer.api.nodes import NodeCalls, NodesServicer
from bcd.placer.api.offers import OfferCalls, OffersServicer
from bcd.placer.api.pools import PoolCalls, PoolsServicer
from bcd.placer.api.quotas import QuotaCalls, QuotasServicer
from bcd.placer.api.reservations import ReservationCalls, ReservationsServicer
from bcd.placer.api.webhooks import WebhookCalls, WebhooksServicer
from bcd.placer.events.outgoing import Outgoing
from bcd.placer.pki.command import CommandSigner
from bcd.placer.pki.state import Secrets
from bcd.placer.placement.booking import Placements
from bcd.store.database import Database
from bcd.wire.compute.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    capacity_pb2,
    capacity_pb2_grpc,
    confirmations_pb2,
    confirmations_pb2_grpc,
    events_pb2,
    events_pb2_grpc,
    maintenance_pb2,
    maintenance_pb2_grpc,
    offers_pb2,
    offers_pb2_grpc,
    reservations_pb2,
    reservations_pb2_grpc,
)

SERVICES = tuple(
    service.full_name
    for module in (
        reservations_pb2,
        capacity_pb2,
        confirmations_pb2,
        events_pb2,
        admin_pb2,
        offers_pb2,
        maintenance_pb2,
    )
    for service in module.DESCRIPTOR.services_by_name.values()
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What the services are made of."""

    database: Database
    policy: Policy
    placements: Placements
    signer: CommandSigner
    secrets: Secrets
    outgoing: Outgoing
    confirmation_lifetime_ms: int


def register(server: grpc.aio.Server, parts: Parts) -> None:
    """Let a server answer for every service."""
    edge = Edge(parts.secrets.issuer)
    _register_for_tenants(server, edge, parts)
    _register_for_administrators(server, edge, parts)


def _register_for_tenants(server: grpc.aio.Server, edge: Edge, parts: Parts) -> None:
    database, policy, signer = parts.database, parts.policy, parts.signer
    placements, outgoing = parts.placements, parts.outgoing
    lifetime_ms = parts.confirmation_lifetime_ms
    admission = Admission(database, policy, placements, signer, lifetime_ms)
    extensions = Extensions(database, policy, placements, signer)
    calls = ReservationCalls(database, admission, extensions, policy, signer)
    reservations_pb2_grpc.add_ReservationsServiceServicer_to_server(
        ReservationsServicer(edge, calls), server
    )
    previews = Previews(database, placements, signer)
    capacity_pb2_grpc.add_CapacityServiceServicer_to_server(
        CapacityServicer(edge, CapacityCalls(database, previews)), server
    )
    confirmations_pb2_grpc.add_ConfirmationsServiceServicer_to_server(
        ConfirmationsServicer(edge, ConfirmationCalls(database, signer)), server
    )
    events_pb2_grpc.add_EventsServiceServicer_to_server(
        EventsServicer(edge, EventCalls(outgoing.feed)), server
    )
    events_pb2_grpc.add_WebhooksServiceServicer_to_server(
        WebhooksServicer(edge, WebhookCalls(database, outgoing.poster, outgoing.feed)), server
    )


def _register_for_administrators(server: grpc.aio.Server, edge: Edge, parts: Parts) -> None:
    database, signer, secrets = parts.database, parts.signer, parts.secrets
    admin_pb2_grpc.add_PoolsServiceServicer_to_server(
        PoolsServicer(edge, PoolCalls(database, signer)), server
    )
    offers_pb2_grpc.add_OffersServiceServicer_to_server(
        OffersServicer(edge, OfferCalls(database)), server
    )
    admin_pb2_grpc.add_QuotasServiceServicer_to_server(
        QuotasServicer(edge, QuotaCalls(database)), server
    )
    maintenance_pb2_grpc.add_MaintenanceServiceServicer_to_server(
        MaintenanceServicer(edge, MaintenanceCalls(database, signer)), server
    )
    admin_pb2_grpc.add_NodesServiceServicer_to_server(
        NodesServicer(edge, NodeCalls(database)), server
    )
    admin_pb2_grpc.add_CredentialsServiceServicer_to_server(
        CredentialsServicer(edge, CredentialCalls(database, secrets.authority, secrets.issuer)),
        server,
    )
