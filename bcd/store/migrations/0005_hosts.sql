-- Host resources beside devices, leases, and what an extend stages.

-- What a host's inventory leaves to be booked, per resource; a host without a row books none.
-- gpus are its physical GPUs, bookable or not.
CREATE TABLE host_capacity (
  node_id TEXT PRIMARY KEY REFERENCES nodes (id),
  vcpu INTEGER NOT NULL,
  memory_gib INTEGER NOT NULL,
  hugepages_2mi INTEGER NOT NULL,
  hugepages_1gi INTEGER NOT NULL,
  gpus INTEGER NOT NULL
) STRICT;

-- Amounts of a host for a window; sums, not exclusion, guarded under the pool's lock. The range
-- includes the pool's turnaround, as that of the devices does.
CREATE TABLE host_bookings (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  allocation_id TEXT NOT NULL REFERENCES allocations (id),
  reservation_id TEXT NOT NULL REFERENCES reservations (id),
  node_id TEXT NOT NULL REFERENCES nodes (id),
  start_ms INTEGER NOT NULL,
  end_ms INTEGER NOT NULL,
  vcpu INTEGER NOT NULL,
  memory_gib INTEGER NOT NULL,
  hugepages_1gi INTEGER NOT NULL,
  CHECK (start_ms < end_ms)
) STRICT;
CREATE INDEX host_bookings_by_node ON host_bookings (node_id, end_ms);
CREATE INDEX host_bookings_by_reservation ON host_bookings (reservation_id);

-- resources are the host resources of each node, host_share included; '{}' for none.
ALTER TABLE reservations ADD COLUMN resources TEXT NOT NULL DEFAULT '{}';
ALTER TABLE reservations ADD COLUMN lease_until_ms INTEGER;

-- Limits of the hold as the control plane worked them out when it handed it over, JSON.
ALTER TABLE allocations ADD COLUMN limits TEXT;

-- One extend at a time: the nonce that has the slot, since when on the database's clock, and the
-- total duration that it asks for.
CREATE TABLE extend_holds (
  reservation_id TEXT PRIMARY KEY REFERENCES reservations (id),
  hold TEXT NOT NULL,
  taken_ms INTEGER NOT NULL,
  duration_ms INTEGER NOT NULL
) STRICT;
