-- The log that a position is of; '' was stored before positions had one. read_us: when the bus took the last record that was read.
ALTER TABLE progress ADD COLUMN log text NOT NULL DEFAULT '';
ALTER TABLE progress ADD COLUMN read_us bigint;
-- Records that a group may never get, because its position was of a log that is gone. from_us NULL: unknown. log: the one found.
CREATE TABLE log_gaps (
    grp text NOT NULL,
    topic text NOT NULL,
    part int NOT NULL,
    from_us bigint,
    to_us bigint NOT NULL,
    log text NOT NULL,
    PRIMARY KEY (grp, topic, part, to_us)
);
-- Restores of this database from a backup that was made at made_us. A restore of an older backup has made the table.
CREATE TABLE IF NOT EXISTS restores (
    restored_us bigint PRIMARY KEY,
    made_us bigint NOT NULL
);
-- What was deleted by hand; a restore deletes it again. from_us: 0 for an account.
CREATE TABLE removals (
    kind text NOT NULL,
    subject text NOT NULL,
    from_us bigint NOT NULL,
    removed_us bigint NOT NULL,
    PRIMARY KEY (kind, subject, from_us, removed_us)
);
CREATE FUNCTION note_removed_account() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO removals VALUES ('account', OLD.name, 0, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;
CREATE TRIGGER accounts_removed AFTER DELETE ON accounts FOR EACH ROW EXECUTE FUNCTION note_removed_account();
CREATE FUNCTION note_removed_assignment() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO removals VALUES ('assignment', OLD.device, OLD.from_us, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)
        ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;
CREATE TRIGGER assignments_removed AFTER DELETE ON assignments FOR EACH ROW EXECUTE FUNCTION note_removed_assignment();
