-- The models of the pool's devices that the policy saw when it admitted a reservation (JSON, sorted):
-- it is given no others. NULL for what was admitted before this was recorded, and for drafts.
ALTER TABLE reservations ADD COLUMN models TEXT;

-- Whether somebody in a pool is queued and was not looked at yet, however many others wait;
-- left_queued: that may be so although the pool's placer is inline.
ALTER TABLE pools ADD COLUMN left_queued INTEGER NOT NULL DEFAULT 1;
CREATE INDEX reservations_queued ON reservations (pool_id)
  WHERE state = 'pending' AND operation = 'running';
