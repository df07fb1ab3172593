-- Offers of pools to other tenants, and what administrators do to pools and nodes.

-- limits is a JSON object of ceilings by resource. What counts against them are the charges with
-- this offer's pool and tenant.
CREATE TABLE offers (
  pool_id TEXT NOT NULL REFERENCES pools (id),
  tenant_id TEXT NOT NULL,
  limits TEXT NOT NULL,
  created_ms INTEGER NOT NULL,
  PRIMARY KEY (pool_id, tenant_id)
) STRICT;
CREATE INDEX offers_by_tenant ON offers (tenant_id);

-- Which ceilings a charge counts against: the quota's used has it where in_quota is 1; it is under
-- an offer where offer_pool_id names the pool.
ALTER TABLE quota_charges ADD COLUMN in_quota INTEGER NOT NULL DEFAULT 1;
ALTER TABLE quota_charges ADD COLUMN offer_pool_id TEXT;
CREATE INDEX quota_charges_by_offer ON quota_charges (offer_pool_id, tenant_id, resource)
  WHERE offer_pool_id IS NOT NULL;

-- A draining node is cordoned too. Removed nodes and deleted pools stay on record for what was
-- booked there.
ALTER TABLE nodes ADD COLUMN draining INTEGER NOT NULL DEFAULT 0;
ALTER TABLE nodes ADD COLUMN removed_ms INTEGER;
ALTER TABLE pools ADD COLUMN deleted_ms INTEGER;

-- kind: reservation, or maintenance for a node's maintenance window.
ALTER TABLE reservations ADD COLUMN kind TEXT NOT NULL DEFAULT 'reservation';
CREATE INDEX reservations_of_kind ON reservations (kind, start_ms) WHERE kind <> 'reservation';
