-- A physical GPU is one node's, whichever nodes report it. leaving: its node reports it no more
-- and has it booked.
CREATE TABLE gpu_claims (
  uuid TEXT PRIMARY KEY,
  node_id TEXT NOT NULL REFERENCES nodes (id),
  leaving INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX gpu_claims_by_node ON gpu_claims (node_id);
CREATE INDEX gpu_claims_leaving ON gpu_claims (node_id) WHERE leaving = 1;

-- GPUs that a node reports and another one has: holder is who had it when the node was told.
CREATE TABLE gpu_waits (
  node_id TEXT NOT NULL REFERENCES nodes (id),
  uuid TEXT NOT NULL,
  holder TEXT NOT NULL,
  PRIMARY KEY (node_id, uuid)
) STRICT;
CREATE INDEX gpu_waits_by_uuid ON gpu_waits (uuid);

-- Of several nodes that report a GPU one keeps it: that which hands it out, or has it booked, or is
-- there and trusted, or was first. The others' devices take no new booking from now on; their
-- inventories are applied again, which tells of it.
INSERT INTO gpu_claims (uuid, node_id, leaving)
  SELECT uuid, node_id, 1 - reported FROM (
    SELECT uuid, node_id, reported, row_number() OVER (
      PARTITION BY uuid ORDER BY handed_out DESC, booked DESC, there DESC, id
    ) AS place FROM (
      SELECT g.id AS id, g.uuid AS uuid, g.node_id AS node_id, n.reachable * n.trusted AS there,
        CASE WHEN EXISTS (SELECT 1 FROM atoms a WHERE a.gpu_id = g.id
          AND (a.bookable = 1 OR a.health_reason <> 'not in the inventory'))
          THEN 1 ELSE 0 END AS reported,
        CASE WHEN EXISTS (SELECT 1 FROM bookings b JOIN reservations r ON r.id = b.reservation_id
          WHERE b.gpu_id = g.id AND b.end_ms > compute_now() AND r.kind = 'reservation'
          AND r.state IN ('binding', 'active')) THEN 1 ELSE 0 END AS handed_out,
        CASE WHEN EXISTS (SELECT 1 FROM bookings b JOIN reservations r ON r.id = b.reservation_id
          WHERE b.gpu_id = g.id AND b.end_ms > compute_now() AND r.kind = 'reservation')
          THEN 1 ELSE 0 END AS booked
      FROM gpus g JOIN nodes n ON n.id = g.node_id WHERE n.removed_ms IS NULL
    ) known WHERE reported = 1 OR booked = 1
  ) ranked WHERE place = 1;
INSERT INTO gpu_waits (node_id, uuid, holder)
  SELECT DISTINCT g.node_id, g.uuid, '' FROM gpus g
    JOIN nodes n ON n.id = g.node_id JOIN atoms a ON a.gpu_id = g.id
    JOIN gpu_claims c ON c.uuid = g.uuid
  WHERE n.removed_ms IS NULL AND c.node_id <> g.node_id
    AND (a.bookable = 1 OR a.health_reason <> 'not in the inventory');
UPDATE atoms SET bookable = 0 WHERE gpu_id IN (
  SELECT g.id FROM gpus g JOIN gpu_waits w ON w.node_id = g.node_id AND w.uuid = g.uuid
);
