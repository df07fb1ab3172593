-- What a gateway may touch, and nothing else: it relays, and cannot book, bind or sign.

GRANT USAGE ON SCHEMA public TO bcd_gateway;

GRANT SELECT ON schema_version TO bcd_gateway;
GRANT SELECT ON desired_states, trust_bundles, revocations TO bcd_gateway;
GRANT SELECT (id, node_id) ON allocations TO bcd_gateway;

GRANT SELECT, INSERT, UPDATE ON sessions, gateways, inventories TO bcd_gateway;
GRANT SELECT, INSERT, DELETE ON node_labels TO bcd_gateway;
GRANT SELECT (id, node_id, key_id, number, digest, verdict),
  INSERT (node_id, key_id, number, digest, allocation_id, envelope, session_epoch, received_ms)
  ON reports TO bcd_gateway;
GRANT SELECT (id, answer, refusal, answered_ms), INSERT (id, kind, body, created_ms)
  ON enrolments TO bcd_gateway;

ALTER TABLE node_labels ENABLE ROW LEVEL SECURITY;
CREATE POLICY gateway_capabilities ON node_labels TO bcd_gateway
  USING (source = 'system' AND key LIKE 'bc.dev/cap.%')
  WITH CHECK (source = 'system' AND key LIKE 'bc.dev/cap.%');
