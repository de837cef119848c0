-- Why the latest attempt at a notification failed, and the trace that it belongs to.

ALTER TABLE notifications ADD COLUMN failure TEXT;     -- NULL: there is none
ALTER TABLE notifications ADD COLUMN traceparent TEXT; -- NULL: it belongs to no run
CREATE INDEX notifications_dead ON notifications (n, target) WHERE state = 'dead';
