-- Everything the control plane keeps. Times are epoch milliseconds, windows half-open, JSON is
-- text. Written once for both engines; bcd/store/dialect.py says what is translated.

CREATE TABLE control (
  key TEXT PRIMARY KEY,
  value INTEGER NOT NULL
) STRICT;
INSERT INTO control (key, value) VALUES ('epoch', 1);

-- A pool's row is the lock of everything that books in it. clock_ms is the newest time that was
-- given under the lock; change_token names the newest row of pool_changes; models are those of its
-- devices.
CREATE TABLE pools (
  id TEXT PRIMARY KEY,
  name TEXT NOT NULL,
  tenant_id TEXT NOT NULL,
  region TEXT NOT NULL,
  policy TEXT NOT NULL,
  models TEXT NOT NULL DEFAULT '[]',
  clock_ms INTEGER NOT NULL DEFAULT 0,
  change_seq INTEGER NOT NULL DEFAULT 0,
  change_token TEXT NOT NULL DEFAULT '',
  created_ms INTEGER NOT NULL,
  UNIQUE (tenant_id, name)
) STRICT;

-- Which nodes changed (what: bookings, or node for devices and state), so that a placer
-- refreshes only those.
CREATE TABLE pool_changes (
  pool_id TEXT NOT NULL REFERENCES pools (id),
  seq INTEGER NOT NULL,
  token TEXT NOT NULL,
  node_id TEXT NOT NULL,
  what TEXT NOT NULL,
  PRIMARY KEY (pool_id, seq)
) STRICT;

CREATE TABLE nodes (
  id TEXT PRIMARY KEY,
  pool_id TEXT NOT NULL REFERENCES pools (id),
  role TEXT NOT NULL,
  trusted INTEGER NOT NULL,
  ready INTEGER NOT NULL DEFAULT 0,
  cordoned INTEGER NOT NULL DEFAULT 0,
  reachable INTEGER NOT NULL DEFAULT 0,
  hostname TEXT NOT NULL DEFAULT '',
  driver_version TEXT NOT NULL DEFAULT '',
  inventory_hash TEXT NOT NULL DEFAULT '',
  conditions TEXT NOT NULL DEFAULT '[]',
  created_ms INTEGER NOT NULL
) STRICT;
CREATE INDEX nodes_by_pool ON nodes (pool_id);

-- Written by gateways; epoch grows with every session of the node and fences the older ones.
CREATE TABLE sessions (
  node_id TEXT PRIMARY KEY REFERENCES nodes (id),
  epoch INTEGER NOT NULL,
  gateway_id TEXT NOT NULL,
  process_instance TEXT NOT NULL,
  boot_id TEXT NOT NULL,
  daemon_version TEXT NOT NULL,
  protocol_version INTEGER NOT NULL,
  connected INTEGER NOT NULL,
  opened_ms INTEGER NOT NULL,
  last_seen_ms INTEGER NOT NULL,
  ttl_ms INTEGER NOT NULL,
  acked_epoch INTEGER NOT NULL DEFAULT 0,
  acked_generation INTEGER NOT NULL DEFAULT 0,
  acked_hash TEXT NOT NULL DEFAULT '',
  ack_status TEXT NOT NULL DEFAULT '',
  ack_errors TEXT NOT NULL DEFAULT '[]'
) STRICT;

CREATE TABLE gateways (
  id TEXT PRIMARY KEY,
  started_ms INTEGER NOT NULL
) STRICT;

-- The newest inventory as received; nodes.inventory_hash says which one was applied.
CREATE TABLE inventories (
  node_id TEXT PRIMARY KEY REFERENCES nodes (id),
  session_epoch INTEGER NOT NULL,
  hash TEXT NOT NULL,
  body BLOB NOT NULL,
  received_ms INTEGER NOT NULL
) STRICT;

CREATE TABLE node_labels (
  node_id TEXT NOT NULL REFERENCES nodes (id),
  key TEXT NOT NULL,
  value TEXT NOT NULL,
  source TEXT NOT NULL CHECK (source IN ('system', 'operator')),
  PRIMARY KEY (node_id, key, source)
) STRICT;

CREATE TABLE gpus (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  node_id TEXT NOT NULL REFERENCES nodes (id),
  uuid TEXT NOT NULL,
  UNIQUE (node_id, uuid)
) STRICT;

-- One bookable device. mode (0 whole, 1 MIG, 2 slot) lets a rule keep whole GPUs and shares of
-- one physical GPU apart.
CREATE TABLE atoms (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  node_id TEXT NOT NULL REFERENCES nodes (id),
  gpu_id INTEGER NOT NULL REFERENCES gpus (id),
  mode INTEGER NOT NULL,
  class TEXT NOT NULL,
  uuid TEXT NOT NULL,
  model TEXT NOT NULL,
  profile TEXT NOT NULL,
  memory_bytes INTEGER NOT NULL,
  numa_node INTEGER,
  nvlink_domain TEXT NOT NULL,
  nvlink_peers TEXT NOT NULL,
  bookable INTEGER NOT NULL,
  health TEXT NOT NULL,
  health_reason TEXT NOT NULL,
  UNIQUE (node_id, class, uuid)
) STRICT;

-- attempts counts placements that failed to bind; seq orders the list, newest first.
CREATE TABLE reservations (
  seq INTEGER PRIMARY KEY AUTOINCREMENT,
  id TEXT NOT NULL UNIQUE,
  tenant_id TEXT NOT NULL,
  pool_id TEXT NOT NULL REFERENCES pools (id),
  owner TEXT NOT NULL,
  identity TEXT NOT NULL,
  idempotency_key TEXT NOT NULL,
  request_hash TEXT NOT NULL,
  request TEXT NOT NULL,
  host_share TEXT NOT NULL,
  state TEXT NOT NULL,
  operation TEXT NOT NULL,
  conditions TEXT NOT NULL DEFAULT '[]',
  start_ms INTEGER,
  end_ms INTEGER,
  attempts INTEGER NOT NULL DEFAULT 0,
  bind_deadline_ms INTEGER,
  version INTEGER NOT NULL DEFAULT 1,
  created_ms INTEGER NOT NULL
) STRICT;
CREATE INDEX reservations_by_tenant ON reservations (tenant_id, seq);
CREATE INDEX reservations_by_pool ON reservations (pool_id, state, seq);

-- One node's part of one placement attempt. state: booked, assigned (in the desired state),
-- bound, lost (bound before, not now), ended.
CREATE TABLE allocations (
  id TEXT PRIMARY KEY,
  reservation_id TEXT NOT NULL REFERENCES reservations (id),
  node_id TEXT NOT NULL REFERENCES nodes (id),
  state TEXT NOT NULL,
  until_ms INTEGER NOT NULL,
  devices TEXT NOT NULL,
  binding TEXT,
  bound_report BLOB,
  bound_sig_kid TEXT,
  bound_sig BLOB,
  created_ms INTEGER NOT NULL
) STRICT;
CREATE INDEX allocations_by_reservation ON allocations (reservation_id);
CREATE INDEX allocations_by_node ON allocations (node_id, state);

-- The booked range includes the pool's turnaround.
CREATE TABLE bookings (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  allocation_id TEXT NOT NULL REFERENCES allocations (id),
  reservation_id TEXT NOT NULL REFERENCES reservations (id),
  node_id TEXT NOT NULL,
  atom_id INTEGER NOT NULL REFERENCES atoms (id),
  gpu_id INTEGER NOT NULL REFERENCES gpus (id),
  mode INTEGER NOT NULL,
  start_ms INTEGER NOT NULL,
  end_ms INTEGER NOT NULL,
  CHECK (start_ms < end_ms)
) STRICT;
CREATE INDEX bookings_by_reservation ON bookings (reservation_id);
CREATE INDEX bookings_by_node ON bookings (node_id, end_ms);

CREATE TABLE quotas (
  tenant_id TEXT NOT NULL,
  resource TEXT NOT NULL,
  ceiling INTEGER NOT NULL CHECK (ceiling >= 0),
  used INTEGER NOT NULL DEFAULT 0 CHECK (used >= 0),
  PRIMARY KEY (tenant_id, resource)
) STRICT;

-- A reservation's charges; a refund deletes them, so that it happens once.
CREATE TABLE quota_charges (
  reservation_id TEXT NOT NULL REFERENCES reservations (id),
  resource TEXT NOT NULL,
  tenant_id TEXT NOT NULL,
  amount INTEGER NOT NULL CHECK (amount > 0),
  PRIMARY KEY (reservation_id, resource)
) STRICT;

-- The durable work queue: one row a subject, with its nearest moment.
CREATE TABLE work (
  key TEXT PRIMARY KEY,
  wake_ms INTEGER NOT NULL,
  attempts INTEGER NOT NULL DEFAULT 0,
  lock_token TEXT,
  lock_until_ms INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX work_by_wake ON work (wake_ms);

CREATE TABLE events (
  seq INTEGER PRIMARY KEY AUTOINCREMENT,
  subject TEXT NOT NULL,
  type TEXT NOT NULL,
  data TEXT NOT NULL,
  at_ms INTEGER NOT NULL,
  published_seq INTEGER UNIQUE
) STRICT;
CREATE INDEX events_by_subject ON events (subject, seq);

-- Desired states as signed by the placer, relayed by gateways.
CREATE TABLE desired_states (
  node_id TEXT PRIMARY KEY REFERENCES nodes (id),
  epoch INTEGER NOT NULL,
  generation INTEGER NOT NULL,
  hash TEXT NOT NULL,
  key_id TEXT NOT NULL,
  signed BLOB NOT NULL,
  updated_ms INTEGER NOT NULL
) STRICT;

-- Reports as received; verdict is NULL until the placer judged the signature and the number,
-- applied_ms until the reservation took the outcome in. The digest keeps a forged report from
-- taking the number of a genuine one.
CREATE TABLE reports (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  node_id TEXT NOT NULL REFERENCES nodes (id),
  key_id TEXT NOT NULL,
  number INTEGER NOT NULL,
  digest TEXT NOT NULL,
  allocation_id TEXT NOT NULL,
  envelope BLOB NOT NULL,
  session_epoch INTEGER NOT NULL,
  received_ms INTEGER NOT NULL,
  verdict TEXT,
  applied_ms INTEGER,
  UNIQUE (node_id, key_id, number, digest)
) STRICT;
CREATE INDEX reports_unjudged ON reports (node_id, number) WHERE verdict IS NULL;
CREATE INDEX reports_by_allocation ON reports (allocation_id);

-- The highest number that counted, per node and key: an older one is a replay.
CREATE TABLE report_numbers (
  node_id TEXT NOT NULL REFERENCES nodes (id),
  key_id TEXT NOT NULL,
  highest INTEGER NOT NULL,
  PRIMARY KEY (node_id, key_id)
) STRICT;

CREATE TABLE trust_bundles (
  pin TEXT PRIMARY KEY,
  der BLOB NOT NULL,
  created_ms INTEGER NOT NULL
) STRICT;

CREATE TABLE certificates (
  serial TEXT PRIMARY KEY,
  role TEXT NOT NULL,
  subject_id TEXT NOT NULL,
  key_id TEXT NOT NULL,
  der BLOB NOT NULL,
  not_after_ms INTEGER NOT NULL,
  issued_ms INTEGER NOT NULL
) STRICT;
CREATE INDEX certificates_by_key ON certificates (key_id);
CREATE INDEX certificates_by_subject ON certificates (subject_id);

CREATE TABLE revocations (
  serial TEXT PRIMARY KEY,
  revoked_ms INTEGER NOT NULL,
  reason TEXT NOT NULL
) STRICT;

-- hmac_key is SHA-256 of the secret; used_csr lets the same request be answered again when the
-- answer was lost.
CREATE TABLE join_tokens (
  id TEXT PRIMARY KEY,
  hmac_key BLOB NOT NULL,
  node_id TEXT NOT NULL,
  pool_id TEXT NOT NULL REFERENCES pools (id),
  role TEXT NOT NULL,
  trusted INTEGER NOT NULL,
  expires_ms INTEGER NOT NULL,
  used_csr TEXT
) STRICT;

-- Enrolments and renewals on their way from a gateway to the placer and back.
CREATE TABLE enrolments (
  id TEXT PRIMARY KEY,
  kind TEXT NOT NULL CHECK (kind IN ('join', 'renewal')),
  body BLOB NOT NULL,
  created_ms INTEGER NOT NULL,
  answer BLOB,
  refusal TEXT,
  answered_ms INTEGER
) STRICT;
CREATE INDEX enrolments_open ON enrolments (created_ms) WHERE answered_ms IS NULL;
