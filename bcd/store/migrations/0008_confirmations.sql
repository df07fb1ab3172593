-- What persons are asked about their agents' requests; one a reservation. state: waiting, approved,
-- rejected, used, expired, withdrawn. The owner is the person, the actor the agent.
CREATE TABLE confirmations (
  seq INTEGER PRIMARY KEY AUTOINCREMENT,
  id TEXT NOT NULL UNIQUE,
  reservation_id TEXT NOT NULL UNIQUE REFERENCES reservations (id),
  request_hash TEXT NOT NULL,
  action TEXT NOT NULL,
  owner TEXT NOT NULL,
  actor TEXT NOT NULL,
  reason TEXT NOT NULL,
  state TEXT NOT NULL,
  created_ms INTEGER NOT NULL,
  expires_ms INTEGER NOT NULL,
  decided_ms INTEGER
) STRICT;
CREATE INDEX confirmations_by_owner ON confirmations (owner, seq);
