-- The window's length where it was extended; a placement anew takes it over. NULL is the request's.
ALTER TABLE reservations ADD COLUMN duration_ms INTEGER;
