"""When MPS daemons are started and stopped: never under clients (spec 16.2, 16.4). Pure.

Clients end with their daemon. What a busy one gives therefore stays as it is, even when the holds
say something else by now, such as after a driver that counts memory in another way: a person is
told, and new holds are refused by the step itself.
"""

from bcd.node import steps
from bcd.node.condition import NodeCondition
from bcd.node.hold import Hold
from bcd.node.plan import Observed
from bcd.node.ports import MpsState
from bcd.node.sharing import UNKNOWN_SHARE, mps_gpu, mps_share

_STAYS = (
    "it has clients or does not answer, and stays; end what uses the GPU,"
    " and stop its bcd-mps@ unit if it does not answer then"
)


def share_step(
    hold: Hold, observed: Observed, *, stands: bool
) -> steps.EnsureMps | NodeCondition | None:
    """What the hold's MPS daemon needs, or what a person should know; None when all is well."""
    gpu = mps_gpu(hold)
    if not gpu:
        return None
    state = observed.mps.get(gpu)
    given = state.share if state is not None else UNKNOWN_SHARE
    share = mps_share(hold, observed.gpus.devices, given)
    if (state is not None and state.ready and share == given) or (stands and share is None):
        return None
    if state is not None and state.busy and stands:
        text = f"what its MPS daemon gives differs from its holds; {_STAYS}"
        return NodeCondition("MpsDiffers", gpu, text)
    # A new hold of which nobody knows the share is refused by this step, in words.
    reason = "it differs from the hold" if state is not None else "it is missing"
    return steps.EnsureMps(hold.allocation_id, gpu, share or UNKNOWN_SHARE, reason)


def stop_step(gpu: str, state: MpsState) -> steps.StopMps | NodeCondition:
    """What becomes of a daemon that no hold needs any more."""
    if state.busy:
        return NodeCondition("LingeringMps", gpu, f"its MPS daemon outlived its holds; {_STAYS}")
    return steps.StopMps(gpu, "no hold shares this GPU by MPS")
