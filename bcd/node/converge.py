"""The planner: from what is wanted and what is there to the steps between (spec 16.2). Pure.

Removals come before additions, and a failed hold never stops the others: ``execute`` skips the
rest of that hold's steps, and of the holds that wait for it. What is on disk is the hold: one
whose spec stands is never judged again, and without an accepted desired state nothing is removed.
A hold that another node's daemon made is never touched; it only keeps its devices from others.
"""

from collections.abc import Iterable

from bcd.model.assignment import Binding, DesiredState, HostReserve
from bcd.model.ids import AllocationId
from bcd.model.report import Bound, Failed, FailureReason, Outcome
from bcd.node import cdi, steps
from bcd.node.condition import NodeCondition
from bcd.node.fit import Capacity, Ledger
from bcd.node.hold import Hold, MalformedHold, env_file, hold_of, physical_id
from bcd.node.limits import enforced
from bcd.node.mps import share_step, stop_step
from bcd.node.others import OtherHold, holds_of_others
from bcd.node.plan import Observed, Place, Plan
from bcd.node.ports import OwnSpec
from bcd.node.readiness import Waits, occupied, unavailable
from bcd.node.rejoin import join_again
from bcd.node.sharing import SharedGpus, misshapen, mps_edits, mps_gpu


def plan(desired: DesiredState | None, observed: Observed, place: Place) -> Plan:
    """The steps from ``observed`` to ``desired``; None keeps, and rebuilds, what the specs say."""
    return _Planner(desired, observed, place).plan()


class _Planner:
    def __init__(self, desired: DesiredState | None, observed: Observed, place: Place) -> None:
        self._desired = desired
        self._place = place
        # An allocation that is assigned to us is ours, whatever a person made of its files.
        ours = {entry.allocation_id for entry in desired.assignments} if desired else set()
        others = holds_of_others(observed.cdi.own, observed.env, place.node_id)
        self._others = tuple(other for other in others if other.allocation_id not in ours)
        self._slices = observed.slices
        observed = observed.without(frozenset(other.allocation_id for other in self._others))
        self._observed = observed
        self._steps: list[steps.Step] = []
        self._outcomes: dict[AllocationId, Outcome] = {}
        self._waits: dict[AllocationId, frozenset[AllocationId]] = {}
        self._waiting: dict[AllocationId, str] = {}
        self._conditions: list[NodeCondition] = list(observed.gpus.conditions)
        self._files: dict[AllocationId, list[OwnSpec]] = {}
        for spec in observed.cdi.own:
            self._files.setdefault(spec.allocation_id, []).append(spec)
        self._on_disk = {id_: self._parse(files) for id_, files in self._files.items()}
        self._shared = SharedGpus()
        self._mps: set[str] = set()
        self._ledger = Ledger(
            Capacity(
                devices={device.id: device for device in observed.gpus.devices},
                host=observed.host,
                reserve=desired.host_reserve if desired is not None else HostReserve(0, 0),
                machines=observed.machines,
                slice_problem=observed.slice_problem,
            )
        )

    def plan(self) -> Plan:
        for other in self._others:
            self._say_other(other)
        self._say_not_ready()
        if self._desired is None:
            self._converge([hold for hold in self._on_disk.values() if hold is not None])
        else:
            self._release(self._desired)
            self._converge(self._wanted(self._desired))
            self._stop_mps()
        return Plan(
            steps=tuple(self._steps),
            outcomes=self._outcomes,
            waits_for=self._waits,
            waiting=self._waiting,
            held=self._ledger.devices(),
            conditions=tuple(self._conditions),
            others=self._others,
        )

    # What is there.

    def _main(self, id_: AllocationId) -> OwnSpec | None:
        """The file of the allocation's first class: it is the hold."""
        return next((spec for spec in self._files.get(id_, ()) if not spec.device_class), None)

    def _parse(self, files: list[OwnSpec]) -> Hold | None:
        main = next((spec for spec in files if not spec.device_class), None)
        if main is None:
            return None
        try:
            return cdi.read_spec(main.content, main.allocation_id)
        except cdi.MalformedSpec as error:
            self._say("CorruptSpec", main.name, str(error))
            return None

    def _say_not_ready(self) -> None:
        """Each device that cannot be handed over; what all lack is one condition already."""
        gpus = self._observed.gpus
        for device_id, problem in sorted(gpus.problems.items()):
            if not any(said.message.startswith(problem.message) for said in gpus.conditions):
                self._say("DeviceNotReady", device_id, problem.message)

    def _say_other(self, other: OtherHold) -> None:
        paths = [f"{self._place.cdi_folder}/{name}" for name in other.specs]
        if other.has_env:
            paths.append(self._place.env_path(other.allocation_id))
        self._say(
            "HoldOfAnotherNode",
            str(other.allocation_id),
            f"{other.node_id} made this hold and it stays; remove {' and '.join(paths)} once"
            f" nothing uses its devices, or {join_again(other.node_id)}",
        )

    def _stands(self, hold: Hold) -> bool:
        """Whether the hold is there with these devices; a corrupt file still is its hold."""
        if self._main(hold.allocation_id) is None:
            return False
        found = self._on_disk[hold.allocation_id]
        return found is None or (found.devices, found.sharing) == (hold.devices, hold.sharing)

    # Removals.

    def _release(self, desired: DesiredState) -> None:
        """Take away what no assignment stands for: owe the report, then spec, env, slice."""
        observed = self._observed
        assigned = {entry.allocation_id for entry in desired.assignments}
        there = {*self._files, *observed.env, *observed.slices, *observed.held}
        gone = sorted(there - assigned)
        owing = [id_ for id_ in gone if self._owes(id_)]
        if owing:
            releases = tuple((id_, self._empty(id_)) for id_ in owing)
            self._add(steps.OweReleases(releases, "no longer assigned"))
        for id_ in gone:
            self._take_away(id_, "no longer assigned")
            if id_ in observed.held or self._owes(id_):
                self._add(steps.FreeRelease(id_, "its spec and env file are gone"))
        for id_ in gone:
            self._stop(id_, "no longer assigned, and empty")

    def _owes(self, id_: AllocationId) -> bool:
        stood = self._main(id_) is not None or id_ in self._observed.bound
        return stood and id_ not in self._observed.owed

    def _empty(self, id_: AllocationId) -> bool:
        state = self._observed.slices.get(id_)
        return state is None or state.empty

    def _take_away(self, id_: AllocationId, reason: str) -> None:
        for spec in _main_last(self._files.get(id_, ())):
            self._add(steps.RemoveSpec(id_, spec.name, reason))
        if id_ in self._observed.env:
            self._add(steps.RemoveEnv(id_, reason))

    def _stop(self, id_: AllocationId, reason: str) -> None:
        state = self._observed.slices.get(id_)
        if state is None:
            return
        if state.empty:
            self._add(steps.StopSlice(id_, reason))
            return
        self._ledger.enter_limits(state.limits)
        self._say(
            "LingeringWorkload", str(id_), "processes outlived the hold; end them to free the slice"
        )

    # Additions.

    def _wanted(self, desired: DesiredState) -> list[Hold]:
        holds = []
        for assignment in desired.assignments:
            if assignment.binding is Binding.HOLD:
                holds.append(hold_of(assignment))
            else:
                text = f"this daemon does not bind {assignment.binding}"
                self._refuse(
                    assignment.allocation_id, Failed(FailureReason.UNSUPPORTED_BINDING, text)
                )
        return holds

    def _converge(self, wanted: list[Hold]) -> None:
        """Standing holds first, oldest first: an id sorts by the time it was made."""
        accepted = []
        for new in (False, True):
            for hold in sorted(wanted, key=lambda hold: hold.allocation_id):
                if self._stands(hold) is new:
                    continue
                verdict = self._judge(hold, new)
                if isinstance(verdict, Failed):
                    self._refuse(hold.allocation_id, verdict)
                    continue
                self._enter(hold)  # one that waits keeps its place, too
                if isinstance(verdict, Waits):
                    self._hold_back(hold, verdict)
                else:
                    accepted.append((hold, new))
            if not new:
                # After our own that stand: another node's hold never ends one of them.
                self._enter_others()
        for hold, new in accepted:
            self._clear(hold, new)
        for hold, new in accepted:
            if new:
                self._wait(hold)
            self._make(hold, new)

    def _enter_others(self) -> None:
        for other in self._others:
            state = self._slices.get(other.allocation_id)
            if other.hold is not None:
                self._enter(other.hold)
            elif state is not None:  # whatever its files said, so much may be used in there
                self._ledger.enter_limits(state.limits)

    def _enter(self, hold: Hold) -> None:
        self._ledger.enter(hold)
        self._shared.enter(hold)
        self._mps.add(mps_gpu(hold))

    def _judge(self, hold: Hold, new: bool) -> Failed | Waits | None:
        foreign = self._foreign(hold)
        if not new:
            return self._ledger.conflict(hold) or self._shared.conflict(hold)
        return (
            unavailable(hold, self._observed)
            or misshapen(hold)
            or self._ledger.admit(hold)
            or self._shared.conflict(hold)
            or foreign
            or occupied(hold, self._observed)
        )

    def _hold_back(self, hold: Hold, waits: Waits) -> None:
        self._waiting[hold.allocation_id] = waits.reason
        self._say(
            "HoldWaits", str(hold.allocation_id), f"it is made when it can be: {waits.reason}"
        )

    def _foreign(self, hold: Hold) -> Failed | None:
        for spec in self._observed.cdi.foreign:
            for device in hold.devices:
                if cdi.names_device(spec, device):
                    text = f"{spec.path} claims {device.cdi_name}; remove it from that file"
                    self._say("ForeignDeviceName", spec.path, text)
                    return Failed(FailureReason.FOREIGN_DEVICE_NAME, text)
        return None

    def _refuse(self, id_: AllocationId, failed: Failed) -> None:
        self._outcomes[id_] = failed
        if self._desired is not None:
            self._take_away(id_, "the hold was refused")
            self._stop(id_, "the hold was refused")

    def _clear(self, hold: Hold, new: bool) -> None:
        """Files of the hold that say something else go before any new file comes."""
        if self._desired is None:
            return
        others = {str(device.device_class) for device in hold.devices}
        others.discard(str(hold.devices[0].device_class))
        for spec in _main_last(self._files.get(hold.allocation_id, ())):
            if new:
                reason = "left by another shape of the hold"
                self._add(steps.RemoveSpec(hold.allocation_id, spec.name, reason))
            elif spec.device_class and spec.device_class not in others:
                self._add(steps.RemoveSpec(hold.allocation_id, spec.name, "an orphan"))

    def _wait(self, hold: Hold) -> None:
        """A device name must have left its old file before it comes into a new one."""
        names = [device.id.encode() for device in hold.devices]
        removed = {step.file for step in self._steps if isinstance(step, steps.RemoveSpec)}
        before = frozenset(
            spec.allocation_id
            for spec in self._observed.cdi.own
            if spec.name in removed
            and (spec.content is None or any(name in spec.content for name in names))
        )
        if before:
            self._waits[hold.allocation_id] = before

    def _make(self, hold: Hold, new: bool) -> None:
        id_, gpus = hold.allocation_id, self._observed.gpus
        lost = cdi.lost_devices(hold, gpus) if self._gpus_are_known() else ()
        try:
            files = cdi.render(
                hold,
                cdi.without_lost(hold, gpus) if lost else gpus,
                self._place.node_id,
                annotate=self._place.annotate,
                mps=mps_edits(hold, self._place.run_folder),
            )
            env = env_file(hold, self._place.node_id)
        except (cdi.MalformedSpec, MalformedHold) as error:
            self._outcomes[id_] = Failed(FailureReason.WRITE_FAILED, str(error))
            return
        if self._on_disk.get(id_) is None and lost:
            self._outcomes[id_] = Failed(
                FailureReason.UNKNOWN_DEVICE, "its spec is corrupt and its device is gone"
            )
            return
        if self._on_disk.get(id_) is None and files is None:
            self._hold_back(hold, Waits("its spec is corrupt, and the GPUs cannot be asked now"))
            return
        for device in lost:
            text = "it is gone; the hold stays, and gives out nothing in its place"
            self._say("DeviceLost", f"{id_} {device.cdi_name}", text)
        self._outcomes[id_] = Bound(
            cdi_devices=tuple(device.cdi_name for device in hold.devices),
            env_file=self._place.env_path(id_),
            cgroup_parent=hold.cgroup_parent,
        )
        self._slice(hold)
        self._share(hold)
        if new:
            # Before the env file: one that stands says that the hold once stood.
            ids = tuple(device.id for device in hold.devices)
            self._add(steps.PrepareDevices(id_, ids, "its spec is written next"))
        if self._observed.env.get(id_) != env:
            self._add(steps.WriteEnv(id_, env, _difference(id_ in self._observed.env)))
        self._specs(hold, files, new)

    def _gpus_are_known(self) -> bool:
        gpus = self._observed.gpus
        return not gpus.waiting and gpus.unavailable is None

    def _slice(self, hold: Hold) -> None:
        id_ = hold.allocation_id
        state = self._observed.slices.get(id_)
        if hold.limits is None:
            if state is not None and state.empty and self._desired is not None:
                self._add(steps.StopSlice(id_, "the hold has no limits"))
            return
        trouble = self._ledger.cpuset(hold.limits)
        if trouble is not None:  # of a hold that stands; a new one was refused
            text = "the hold stays, and its processes run where the kernel lets them"
            self._say("CpusetLost", str(id_), f"{trouble.message}; {text}")
        if state is not None and state.narrowed:  # of a hold that stands; a new one fails
            text = "the hold stays, and its processes have less than was booked"
            self._say("SliceNarrowed", str(id_), f"{state.narrowed}; {text}")
        if state is None or state.surprise or state.limits != enforced(hold.limits):
            reason = state.surprise if state is not None else ""
            reason = reason or _difference(state is not None)
            self._add(steps.EnsureSlice(id_, hold.limits, reason))

    def _share(self, hold: Hold) -> None:
        self._do(share_step(hold, self._observed, stands=self._stands(hold)))

    def _stop_mps(self) -> None:
        for gpu in sorted(self._observed.mps.keys() - self._mps):
            self._do(stop_step(gpu, self._observed.mps[gpu]))

    def _do(self, found: steps.Step | NodeCondition | None) -> None:
        if isinstance(found, NodeCondition):
            self._say(found.type, found.subject, found.message)
        elif found is not None:
            self._add(found)

    def _specs(self, hold: Hold, files: tuple[cdi.SpecFile, ...] | None, new: bool) -> None:
        id_ = hold.allocation_id
        gpus = self._observed.gpus
        if files is None:
            return  # nobody says whether its devices are there
        if not new and any(physical_id(device) in gpus.problems for device in hold.devices):
            # What is there may still serve what runs; a spec with holes in it would serve nobody.
            return
        there = {} if new else {spec.name: spec.content for spec in self._files[id_]}
        for file in files:
            if there.get(file.name) != file.content:
                reason = _difference(file.name in there)
                self._add(steps.WriteSpec(id_, file.name, file.content, reason))

    def _add(self, step: steps.Step) -> None:
        self._steps.append(step)

    def _say(self, type_: str, subject: str, message: str) -> None:
        condition = NodeCondition(type_, subject, message)
        if condition not in self._conditions:
            self._conditions.append(condition)


def _main_last(files: Iterable[OwnSpec]) -> list[OwnSpec]:
    return sorted(files, key=lambda spec: not spec.device_class)


def _difference(exists: bool) -> str:
    return "it differs from the hold" if exists else "it is missing"
