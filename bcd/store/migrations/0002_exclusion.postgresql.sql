-- No overlap is a rule of the database: one device has one booking at a time, and a physical GPU
-- is booked whole, as MIG instances or as slots, never two of these at once.

CREATE EXTENSION IF NOT EXISTS btree_gist;

ALTER TABLE bookings ADD CONSTRAINT bookings_atom_once
  EXCLUDE USING gist (atom_id WITH =, int8range(start_ms, end_ms) WITH &&);

ALTER TABLE bookings ADD CONSTRAINT bookings_gpu_one_mode
  EXCLUDE USING gist (gpu_id WITH =, mode WITH <>, int8range(start_ms, end_ms) WITH &&);

CREATE FUNCTION compute_now() RETURNS bigint LANGUAGE sql VOLATILE AS
  $$ SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint $$;
