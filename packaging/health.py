"""Asks a gateway or placer how it is; exit code 0: it serves, 1: it does not, 2: usage.

The probe of the containers: ``python health.py HOST:PORT CA_FILE``. The port is the API's, or that
of the gateway's enrolments; both speak gRPC's health protocol over TLS, to anybody.
"""

import sys
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

_TIMEOUT_S = 5.0


def main(arguments: list[str]) -> int:
    """Ask once; the answer, or why there is none, is one line on stderr."""
    if len(arguments) != 2:
        _say("usage: health.py HOST:PORT CA_FILE")
        return 2
    target, ca_file = arguments
    try:
        ca = Path(ca_file).read_bytes()
    except OSError as error:
        _say(f"{ca_file}: cannot be read ({error.strerror})")
        return 2
    with grpc.secure_channel(target, grpc.ssl_channel_credentials(ca)) as channel:
        ask = health_pb2_grpc.HealthStub(channel).Check
        try:
            answer = ask(health_pb2.HealthCheckRequest(), timeout=_TIMEOUT_S)
        except grpc.RpcError as error:
            _say(f"{target}: {error.code().name}: {error.details()}")
            return 1
    _say(f"{target}: {health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)}")
    return 0 if answer.status == health_pb2.HealthCheckResponse.SERVING else 1


def _say(words: str) -> None:
    sys.stderr.write(f"{words}\n")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
