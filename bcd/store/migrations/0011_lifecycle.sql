-- The window's length where it was extended; a placement anew takes it over. NULL is the request's.
ALTER TABLE reservations ADD COLUMN duration_ms INTEGER;

-- Whether it yields to others, as its request says: only these are looked at for that.
ALTER TABLE reservations ADD COLUMN spot INTEGER NOT NULL DEFAULT 0;
CREATE INDEX reservations_spot ON reservations (pool_id, seq)
  WHERE spot = 1 AND state IN ('placed', 'binding', 'active');
