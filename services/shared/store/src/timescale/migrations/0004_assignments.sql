-- Who wore what, and at which gateway, are intervals. `devices` has one row for each device that was ever assigned: its tenant, the
-- lock of its assignments, and when these were changed last.
ALTER TABLE devices RENAME TO devices_before;
DROP INDEX devices_gateway;
ALTER TABLE devices_before RENAME CONSTRAINT devices_pkey TO devices_before_pkey;
CREATE TABLE devices (
    id text PRIMARY KEY,
    tenant text NOT NULL,
    changed_us bigint NOT NULL
);
CREATE INDEX devices_changed ON devices (changed_us);
-- From inclusive, until exclusive; the greatest number goes on, the least has no known beginning.
CREATE TABLE assignments (
    device text NOT NULL REFERENCES devices,
    from_us bigint NOT NULL,
    until_us bigint NOT NULL CHECK (until_us > from_us),
    gateway text NOT NULL,
    patient text NOT NULL,
    author text NOT NULL,
    reason text NOT NULL,
    entered_us bigint NOT NULL,
    PRIMARY KEY (device, from_us)
);
CREATE INDEX assignments_gateway ON assignments (gateway, until_us);
CREATE INDEX assignments_patient ON assignments (patient);
-- What was measured before a device was registered is nobody's: it may have been with somebody else, whose row was replaced.
INSERT INTO devices SELECT id, tenant, registered_us FROM devices_before;
INSERT INTO assignments SELECT id, least(registered_us, 9223372036854775806), 9223372036854775807, gateway, patient, 'migration',
    'registered before assignments had times', registered_us FROM devices_before;
DROP TABLE devices_before;

-- What nobody can be said to have worn: kept apart until it is assigned or discarded by hand. Payloads are encoded
-- braid.vitals.v1.Quarantined.
CREATE TABLE quarantine (
    key bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant text NOT NULL,
    gateway text NOT NULL,
    device text NOT NULL,
    identity text NOT NULL,
    kind text NOT NULL,
    time_us bigint NOT NULL,
    arrived_us bigint NOT NULL,
    payload bytea NOT NULL,
    UNIQUE (device, gateway, identity)
);
