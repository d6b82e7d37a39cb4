-- Sessions of people and of wall displays; key is the hash of the token.
CREATE TABLE sessions (
    key bytea PRIMARY KEY,
    kind text NOT NULL,
    name text NOT NULL,
    tenant text NOT NULL,
    role text NOT NULL,
    password_hash text NOT NULL,
    opened_us bigint NOT NULL,
    expires_us bigint NOT NULL
);
CREATE INDEX sessions_name ON sessions (tenant, name);
CREATE INDEX sessions_expires ON sessions (expires_us);
