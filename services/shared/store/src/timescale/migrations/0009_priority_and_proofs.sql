-- The most urgent notices are taken first, and of one urgency the shares take turns. Rows of an older version count as most urgent.
-- A row in hand is leased; other rows that were tried have failed.
ALTER TABLE notice_queue ADD COLUMN urgency int NOT NULL DEFAULT 3;
ALTER TABLE notice_queue ADD COLUMN turn bigint NOT NULL DEFAULT 0;
ALTER TABLE notice_queue ADD COLUMN in_hand boolean NOT NULL DEFAULT false;
DROP INDEX notice_queue_due;
CREATE INDEX notice_queue_fresh ON notice_queue (channel, urgency, turn, seq) WHERE attempts = 0;
CREATE INDEX notice_queue_tried ON notice_queue (channel, urgency, due_us, seq) WHERE attempts > 0;
CREATE INDEX notice_queue_share ON notice_queue (channel, urgency, share, turn) WHERE attempts = 0;
ALTER TABLE outbox ADD COLUMN urgency int NOT NULL DEFAULT 3;
CREATE INDEX outbox_urgent ON outbox (id) WHERE urgency >= 3;
-- Heartbeats of channels: the last one of each recipient, and when somebody confirmed one. A token is kept as its hash.
CREATE TABLE proofs (
    channel text NOT NULL,
    tenant text NOT NULL,
    recipient text NOT NULL,
    settings text NOT NULL,
    token text NOT NULL UNIQUE,
    sent_us bigint NOT NULL,
    confirmed_us bigint,
    confirmed_by text NOT NULL,
    PRIMARY KEY (channel, tenant, recipient)
);
