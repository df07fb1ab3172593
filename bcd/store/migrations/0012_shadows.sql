-- What is kept for a pool's oldest reservation that does not fit yet: its earliest window, the
-- turnaround included, and where (JSON: node ids with their atoms' ids). Read and written under the
-- pool's lock; one whose reservation is not pending any more counts for nothing.
CREATE TABLE shadows (
  pool_id TEXT PRIMARY KEY REFERENCES pools (id) ON DELETE CASCADE,
  reservation_id TEXT NOT NULL,
  start_ms INTEGER NOT NULL,
  end_ms INTEGER NOT NULL,
  members TEXT NOT NULL
) STRICT;
