-- Kept by TimescaleDB. Real-time: what is not yet materialised is read from the samples.
CREATE MATERIALIZED VIEW IF NOT EXISTS vitals_1m WITH (timescaledb.continuous, timescaledb.materialized_only = false) AS
    SELECT series, time_bucket(INTERVAL '1 minute', time) AS bucket, count(*) AS count, sum(value) AS sum,
        min(value) AS min, first(time, value) AS min_at, max(value) AS max, last(time, value) AS max_at
    FROM samples GROUP BY 1, 2 WITH NO DATA;
CREATE MATERIALIZED VIEW IF NOT EXISTS vitals_1h WITH (timescaledb.continuous, timescaledb.materialized_only = false) AS
    SELECT series, time_bucket(INTERVAL '1 hour', bucket) AS bucket, sum(count)::bigint AS count, sum(sum) AS sum,
        min(min) AS min, first(min_at, min) AS min_at, max(max) AS max, last(max_at, max) AS max_at
    FROM vitals_1m GROUP BY 1, 2 WITH NO DATA;
