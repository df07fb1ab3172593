"""gRPC health on the enrolment port, for load balancers and probes."""

from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from bcd.gateway.server import Gateway
from tests.gateway.conftest import Site


async def status(site: Site, gateway: Gateway) -> str:
    """What the health service says, without a client certificate."""
    credentials = grpc.ssl_channel_credentials(site.authority.gateway().bundle_pem)
    target = f"127.0.0.1:{gateway.enrolment_port}"
    async with grpc.aio.secure_channel(target, credentials) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        answer: Any = await stub.Check(health_pb2.HealthCheckRequest(), timeout=10)
    name: str = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
    return name


async def test_a_running_gateway_serves(gateway: Gateway, site: Site) -> None:
    assert await status(site, gateway) == "SERVING"
