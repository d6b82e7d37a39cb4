-- Filled by the store's own task (rollups.rs).
CREATE TABLE IF NOT EXISTS vitals_1m (
    series int NOT NULL,
    bucket timestamptz NOT NULL,
    count bigint NOT NULL,
    sum double precision NOT NULL,
    min double precision NOT NULL,
    min_at timestamptz NOT NULL,
    max double precision NOT NULL,
    max_at timestamptz NOT NULL,
    PRIMARY KEY (series, bucket)
);
SELECT create_hypertable('vitals_1m', by_range('bucket', INTERVAL '7 days'), create_default_indexes => false, if_not_exists => true);
CREATE TABLE IF NOT EXISTS vitals_1h (LIKE vitals_1m INCLUDING ALL);
SELECT create_hypertable('vitals_1h', by_range('bucket', INTERVAL '90 days'), create_default_indexes => false, if_not_exists => true);
