-- What a GPU's share of its host is worked out from, and how a hold was handed over.

-- What the host leaves to be booked before the pool's ratio; the other amounts are after it.
ALTER TABLE host_capacity ADD COLUMN allocatable_vcpu INTEGER NOT NULL DEFAULT 0;
ALTER TABLE host_capacity ADD COLUMN allocatable_memory_gib INTEGER NOT NULL DEFAULT 0;

-- The least that any GPU host of a pool leaves for each of its GPUs, as fractions; the host of the
-- CPUs need not be that of the memory. No row for a pool without such hosts.
CREATE TABLE pool_shares (
  pool_id TEXT PRIMARY KEY REFERENCES pools (id),
  vcpu INTEGER NOT NULL,
  vcpu_gpus INTEGER NOT NULL,
  memory_gib INTEGER NOT NULL,
  memory_gpus INTEGER NOT NULL
) STRICT;

-- How the node is told to hand an allocation over, from its start on: the binding, and how slots
-- share their GPU, JSON.
ALTER TABLE allocations ADD COLUMN handed_as TEXT NOT NULL DEFAULT 'hold';
ALTER TABLE allocations ADD COLUMN sharing TEXT;
