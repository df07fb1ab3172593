-- Events get a tenant ('' for those that only administrators see) and, when they are published, an
-- id and their place in the one order that watchers and webhooks follow.
-- published_seq has no gap: control.published is the newest, and up to control.forgotten they have
-- been kept for their time and are gone.

ALTER TABLE events ADD COLUMN id TEXT;
ALTER TABLE events ADD COLUMN tenant_id TEXT NOT NULL DEFAULT '';
ALTER TABLE events ADD COLUMN published_ms INTEGER;
UPDATE events SET tenant_id = coalesce(
  (SELECT r.tenant_id FROM reservations r WHERE r.id = substr(events.subject, 13)), ''
) WHERE subject LIKE 'reservation/%';
CREATE INDEX events_unpublished ON events (seq) WHERE published_seq IS NULL;
CREATE INDEX events_by_tenant ON events (tenant_id, published_seq);
INSERT INTO control (key, value) VALUES ('published', 0), ('forgotten', 0);

-- types is '' for all or has a space around each; creator is who it delivers for, as the token
-- said; disabled says why nothing is delivered. Events up to taken_seq have become deliveries;
-- skipped counts those that were forgotten before. failures counts the tries in a row that all
-- failed, and rest_until_ms is when the next one may be.
CREATE TABLE webhooks (
  id TEXT PRIMARY KEY,
  tenant_id TEXT NOT NULL,
  url TEXT NOT NULL,
  types TEXT NOT NULL,
  creator TEXT NOT NULL,
  secret BLOB NOT NULL,
  disabled TEXT NOT NULL DEFAULT '',
  taken_seq INTEGER NOT NULL,
  skipped INTEGER NOT NULL DEFAULT 0,
  failures INTEGER NOT NULL DEFAULT 0,
  rest_until_ms INTEGER NOT NULL DEFAULT 0,
  problem TEXT NOT NULL DEFAULT '',
  delivered_ms INTEGER,
  lease_token TEXT NOT NULL DEFAULT '',
  lease_until_ms INTEGER NOT NULL DEFAULT 0,
  created_ms INTEGER NOT NULL
) STRICT;
CREATE INDEX webhooks_by_tenant ON webhooks (tenant_id);

-- One event on its way to one webhook; state: waiting or dead. What was acknowledged has no row.
CREATE TABLE webhook_deliveries (
  webhook_id TEXT NOT NULL REFERENCES webhooks (id),
  published_seq INTEGER NOT NULL REFERENCES events (published_seq),
  subject TEXT NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('waiting', 'dead')),
  attempts INTEGER NOT NULL DEFAULT 0,
  due_ms INTEGER NOT NULL,
  problem TEXT NOT NULL DEFAULT '',
  PRIMARY KEY (webhook_id, published_seq)
) STRICT;
CREATE INDEX webhook_deliveries_by_subject
  ON webhook_deliveries (webhook_id, state, subject, published_seq);
CREATE INDEX webhook_deliveries_by_event ON webhook_deliveries (published_seq);
