-- What nobody ever got: drafts, what was denied, and what a person was or is asked about. Counted
-- per tenant and pool; drafts and what was denied are swept when old.
CREATE INDEX reservations_unused ON reservations (tenant_id, pool_id, created_ms)
  WHERE state IN ('draft', 'denied', 'awaiting-confirmation', 'expired');

-- A denied request that was swept: its id is the digest of tenant, identity and idempotency key,
-- so that the key stays refused for ever.
CREATE TABLE refused_keys (
  id TEXT PRIMARY KEY,
  request_hash TEXT NOT NULL
) STRICT;
