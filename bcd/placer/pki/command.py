"""The command key: signs desired states, so that no gateway can make or change one."""

from dataclasses import dataclass

from bcd.model.assignment import DesiredState
from bcd.signing.certificates import to_der
from bcd.signing.envelope import PayloadType, seal
from bcd.signing.keyfile import Credentials
from bcd.signing.keys import key_id
from bcd.wire.desired import desired_hash, encode_desired
from bcd.wire.node.v1 import desired_pb2 as pb


@dataclass(frozen=True, slots=True)
class Signed:
    """A signed desired state: its payload's hash, the signing key, and the whole frame."""

    hash: str
    key_id: str
    frame: bytes


class CommandSigner:
    """Signs with the current command key; ``replace`` brings a renewed one in."""

    def __init__(self, credentials: Credentials) -> None:
        self.replace(credentials)

    def replace(self, credentials: Credentials) -> None:
        """Sign with these credentials from now on."""
        self._credentials = credentials
        self._certificate = to_der(credentials.leaf)
        self.key_id = key_id(credentials.key.public_key())

    def sign(self, state: DesiredState) -> Signed:
        """Encode and sign a state."""
        credentials, certificate = self._credentials, self._certificate
        payload = encode_desired(state)
        envelope = seal(credentials.key, PayloadType.DESIRED_STATE, payload)
        frame = pb.SignedDesiredState(envelope=envelope, certificate=certificate)
        return Signed(
            desired_hash(payload),
            envelope.key_id,
            frame.SerializeToString(deterministic=True),
        )
