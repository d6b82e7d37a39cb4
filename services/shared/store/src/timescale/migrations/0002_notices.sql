-- What people decide: teams, rule sets, silences. Payloads are encoded braid.alerts.v1.{Document, Notice, NoticeOutcome}; until_us
-- of what holds for good is the largest number.
CREATE TABLE documents (
    key bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind text NOT NULL,
    tenant text NOT NULL,
    subject text NOT NULL,
    version bigint NOT NULL,
    until_us bigint NOT NULL,
    payload bytea NOT NULL,
    UNIQUE (kind, tenant, subject, version)
);
CREATE INDEX documents_until ON documents (kind, until_us);
CREATE TRIGGER documents_immutable BEFORE UPDATE ON documents FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

CREATE TABLE notices (
    id text PRIMARY KEY,
    alert text NOT NULL,
    payload bytea NOT NULL
);
CREATE INDEX notices_alert ON notices (alert);
CREATE TRIGGER notices_immutable BEFORE UPDATE ON notices FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
CREATE TABLE notice_outcomes (
    id text PRIMARY KEY,
    payload bytea NOT NULL
);
CREATE TRIGGER notice_outcomes_immutable BEFORE UPDATE ON notice_outcomes FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
-- Notices without an outcome. due_us is also the end of the lease of whoever delivers; a lane keeps its order.
CREATE TABLE notice_queue (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id text NOT NULL UNIQUE,
    channel text NOT NULL,
    lane text NOT NULL,
    due_us bigint NOT NULL,
    attempts int NOT NULL
);
CREATE INDEX notice_queue_due ON notice_queue (channel, due_us);
CREATE INDEX notice_queue_lane ON notice_queue (channel, lane, seq);
-- Alerts that somebody is yet to be told of: the timer of each. due_us NULL: waits for the alert's end only.
CREATE TABLE watches (
    alert text PRIMARY KEY,
    version bigint NOT NULL,
    due_us bigint,
    state bytea NOT NULL
) WITH (fillfactor = 50);
CREATE INDEX watches_due ON watches (due_us);
