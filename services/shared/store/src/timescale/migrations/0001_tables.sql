-- People and what they wear. A row without a tenant is known from data only, not registered.
CREATE TABLE patients (
    key int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id text NOT NULL UNIQUE,
    tenant text NOT NULL,
    name text NOT NULL,
    spo2_scale smallint NOT NULL
);
CREATE INDEX patients_tenant ON patients (tenant, id);
CREATE TABLE gateways (
    key int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id text NOT NULL UNIQUE,
    tenant text NOT NULL
);
CREATE TABLE devices (
    id text PRIMARY KEY,
    tenant text NOT NULL,
    gateway text NOT NULL,
    patient text NOT NULL,
    registered_us bigint NOT NULL
);
CREATE INDEX devices_gateway ON devices (gateway);

-- One row of each device that ever sent, rewritten with every batch: `head` says which sequences are stored and what is the
-- newest value (encoded; see ledger.rs), `stale_*` which stretch of its data the roll-ups do not yet hold. Nothing that
-- changes is indexed and pages are half empty, so that a rewrite stays within its page.
CREATE TABLE device_heads (
    key int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    device text NOT NULL UNIQUE,
    head bytea NOT NULL DEFAULT '',
    stale_from timestamptz,
    stale_to timestamptz,
    stale_hours_from timestamptz,
    stale_hours_to timestamptz
) WITH (fillfactor = 50);
CREATE TABLE streams (
    key int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    device int NOT NULL REFERENCES device_heads,
    stream text NOT NULL,
    UNIQUE (device, stream)
);
-- Sequences stored of a stream apart from the newest run, which is in the device's head. Runs do not overlap.
CREATE TABLE stream_runs (
    stream int NOT NULL,
    first bigint NOT NULL,
    last bigint NOT NULL,
    written timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (stream, last)
);
-- What the samples of a stream have in common, so that a row has one number for it.
CREATE TABLE series (
    key int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    stream int NOT NULL REFERENCES streams,
    patient int NOT NULL REFERENCES patients,
    gateway int NOT NULL REFERENCES gateways,
    metric int NOT NULL,
    unit text NOT NULL,
    -- Length of the longest waveform: a stretch is searched from this much earlier.
    longest_us bigint NOT NULL DEFAULT 0,
    UNIQUE (stream, patient, gateway, metric, unit)
);
CREATE INDEX series_patient ON series (patient, metric);

-- `time` is the device's clock.
CREATE TABLE samples (
    time timestamptz NOT NULL,
    gateway_time timestamptz NOT NULL,
    ingest_time timestamptz NOT NULL,
    sequence bigint NOT NULL,
    value double precision NOT NULL,
    series int NOT NULL,
    sensor_sequence bigint,
    traceparent text
);
SELECT create_hypertable('samples', by_range('time', INTERVAL '1 day'), create_default_indexes => false);
CREATE INDEX samples_series ON samples (series, time);
CREATE TABLE waveforms (
    time timestamptz NOT NULL,
    gateway_time timestamptz NOT NULL,
    ingest_time timestamptz NOT NULL,
    sequence bigint NOT NULL,
    series int NOT NULL,
    period_us int NOT NULL,
    sensor_sequence bigint,
    traceparent text,
    readings real[] NOT NULL
);
SELECT create_hypertable('waveforms', by_range('time', INTERVAL '1 day'), create_default_indexes => false);
CREATE INDEX waveforms_series ON waveforms (series, time);
CREATE TABLE gaps (
    stream int NOT NULL,
    first_sequence bigint NOT NULL,
    last_sequence bigint NOT NULL,
    patient int NOT NULL,
    gateway int NOT NULL,
    from_time timestamptz NOT NULL,
    to_time timestamptz NOT NULL,
    PRIMARY KEY (stream, first_sequence, last_sequence)
);
CREATE INDEX gaps_patient ON gaps (patient, from_time);

-- What both ends measure of each path; payload is the encoded braid.paths.v1.PathReport, the columns are for dashboards.
CREATE TABLE gateway_heads (
    key int PRIMARY KEY REFERENCES gateways,
    head bytea NOT NULL DEFAULT ''
) WITH (fillfactor = 50);
CREATE TABLE path_sessions (
    key int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    gateway int NOT NULL REFERENCES gateways,
    path text NOT NULL,
    end_of int NOT NULL,
    -- An unsigned number bit for bit; only equality matters.
    session bigint NOT NULL,
    UNIQUE (gateway, path, end_of, session)
);
CREATE TABLE session_runs (
    stream int NOT NULL,
    first bigint NOT NULL,
    last bigint NOT NULL,
    written timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (stream, last)
);
CREATE TABLE paths (
    time timestamptz NOT NULL,
    sequence bigint NOT NULL,
    sent_bytes bigint NOT NULL,
    received_bytes bigint NOT NULL,
    sent_packets bigint NOT NULL,
    lost_packets bigint NOT NULL,
    rtt_ms double precision NOT NULL,
    gateway int NOT NULL,
    session int NOT NULL,
    interval_ms int NOT NULL,
    state int NOT NULL,
    payload bytea NOT NULL
);
SELECT create_hypertable('paths', by_range('time', INTERVAL '1 day'), create_default_indexes => false);
CREATE INDEX paths_gateway ON paths (gateway, time);
CREATE INDEX paths_time ON paths (time);
CREATE TABLE latest_paths (
    gateway int NOT NULL,
    path text NOT NULL,
    end_of int NOT NULL,
    time timestamptz NOT NULL,
    payload bytea NOT NULL,
    PRIMARY KEY (gateway, path, end_of)
) WITH (fillfactor = 50);

-- Transitions are few, unique by (id, revision) whatever their time, and are kept as long as their alert: not a hypertable,
-- whose unique index would have to contain the time. Payloads are encoded braid.alerts.v1.Alert.
CREATE TABLE alert_transitions (
    id text NOT NULL,
    revision bigint NOT NULL,
    patient text NOT NULL,
    rule text NOT NULL,
    priority int NOT NULL,
    state int NOT NULL,
    changed timestamptz NOT NULL,
    payload bytea NOT NULL,
    PRIMARY KEY (id, revision)
);
CREATE INDEX alert_transitions_changed ON alert_transitions (changed);
CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN RAISE EXCEPTION '% rows are never changed', TG_TABLE_NAME; END $$;
CREATE TRIGGER alert_transitions_immutable BEFORE UPDATE ON alert_transitions
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
CREATE TABLE alerts (
    id text PRIMARY KEY,
    patient text NOT NULL,
    gateway text NOT NULL,
    state int NOT NULL,
    since_us bigint NOT NULL,
    changed_us bigint NOT NULL,
    revision bigint NOT NULL,
    payload bytea NOT NULL
);
CREATE INDEX alerts_since ON alerts (since_us);
CREATE INDEX alerts_patient ON alerts (patient, since_us);
CREATE TABLE outbox (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    payload bytea NOT NULL
);
CREATE TABLE rule_states (
    topic text NOT NULL,
    part int NOT NULL,
    key text NOT NULL,
    state bytea NOT NULL,
    PRIMARY KEY (topic, part, key)
) WITH (fillfactor = 50);

CREATE TABLE accounts (
    name text PRIMARY KEY,
    tenant text NOT NULL,
    role text NOT NULL,
    password_hash text NOT NULL,
    created_us bigint NOT NULL
);
CREATE TABLE audit (
    key bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    time_us bigint NOT NULL,
    tenant text NOT NULL,
    who text NOT NULL,
    action text NOT NULL,
    patient text NOT NULL,
    detail text NOT NULL
);
CREATE INDEX audit_time ON audit (time_us);
CREATE INDEX audit_patient ON audit (patient, time_us);
CREATE TRIGGER audit_immutable BEFORE UPDATE ON audit FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

-- Who may write what comes from a partition, and how far it is stored.
CREATE TABLE progress (
    grp text NOT NULL,
    topic text NOT NULL,
    part int NOT NULL,
    epoch bigint NOT NULL,
    next_offset bigint,
    PRIMARY KEY (grp, topic, part)
) WITH (fillfactor = 50);
CREATE TABLE probe (id int PRIMARY KEY, count bigint NOT NULL);
INSERT INTO probe VALUES (1, 0);
