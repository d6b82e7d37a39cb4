-- Why samples are lost: braid.vitals.v1.GapCause.
ALTER TABLE gaps ADD COLUMN cause int NOT NULL DEFAULT 0;
-- Accounts of gateways: each journal, and the sequences that it gave each stream. A journal is a u64 kept bit for bit.
CREATE TABLE journals (
    gateway text NOT NULL,
    journal bigint NOT NULL,
    since_us bigint NOT NULL,
    as_of_us bigint NOT NULL,
    waiting bigint NOT NULL,
    PRIMARY KEY (gateway, journal)
) WITH (fillfactor = 50);
CREATE TABLE ledgers (
    device text NOT NULL,
    stream text NOT NULL,
    gateway text NOT NULL,
    journal bigint NOT NULL,
    first bigint NOT NULL,
    next bigint NOT NULL,
    PRIMARY KEY (device, stream, gateway, journal, first)
) WITH (fillfactor = 50);
-- What gateways are to send again.
CREATE TABLE asked (
    gateway text NOT NULL,
    device text NOT NULL,
    stream text NOT NULL,
    first bigint NOT NULL,
    last bigint NOT NULL,
    from_us bigint NOT NULL,
    to_us bigint NOT NULL,
    asked_us bigint NOT NULL,
    PRIMARY KEY (gateway, device, stream, first)
);
