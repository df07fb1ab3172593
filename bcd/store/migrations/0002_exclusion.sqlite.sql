-- No overlap is a rule of the database: one device has one booking at a time, and a physical GPU
-- is booked whole, as MIG instances or as slots, never two of these at once.
-- The first rule looks at the one predecessor only, which suffices because the others are
-- disjoint already.

CREATE INDEX bookings_by_atom ON bookings (atom_id, start_ms);
CREATE INDEX bookings_by_gpu ON bookings (gpu_id, end_ms);

CREATE TRIGGER bookings_atom_once_insert BEFORE INSERT ON bookings
WHEN (
  SELECT end_ms FROM bookings
  WHERE atom_id = NEW.atom_id AND start_ms < NEW.end_ms
  ORDER BY start_ms DESC LIMIT 1
) > NEW.start_ms
BEGIN
  SELECT RAISE(ABORT, 'overlap: bookings_atom_once');
END;

CREATE TRIGGER bookings_atom_once_update BEFORE UPDATE OF atom_id, start_ms, end_ms ON bookings
WHEN (
  SELECT end_ms FROM bookings
  WHERE atom_id = NEW.atom_id AND start_ms < NEW.end_ms AND id <> OLD.id
  ORDER BY start_ms DESC LIMIT 1
) > NEW.start_ms
BEGIN
  SELECT RAISE(ABORT, 'overlap: bookings_atom_once');
END;

CREATE TRIGGER bookings_gpu_one_mode_insert BEFORE INSERT ON bookings
WHEN EXISTS (
  SELECT 1 FROM bookings
  WHERE gpu_id = NEW.gpu_id AND end_ms > NEW.start_ms
    AND start_ms < NEW.end_ms AND mode <> NEW.mode
)
BEGIN
  SELECT RAISE(ABORT, 'overlap: bookings_gpu_one_mode');
END;

CREATE TRIGGER bookings_gpu_one_mode_update
BEFORE UPDATE OF gpu_id, mode, start_ms, end_ms ON bookings
WHEN EXISTS (
  SELECT 1 FROM bookings
  WHERE gpu_id = NEW.gpu_id AND end_ms > NEW.start_ms
    AND start_ms < NEW.end_ms AND mode <> NEW.mode AND id <> OLD.id
)
BEGIN
  SELECT RAISE(ABORT, 'overlap: bookings_gpu_one_mode');
END;
