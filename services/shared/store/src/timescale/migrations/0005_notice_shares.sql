-- Whose share of the queue a notice takes: its alert's gateway or, without one, its patient.
-- Rows of an older version share one.
ALTER TABLE notice_queue ADD COLUMN share text NOT NULL DEFAULT '';
-- For the oldest sessions of a gateway.
CREATE INDEX path_sessions_gateway ON path_sessions (gateway, key);
