-- These views give dashboards names instead of keys. They are replaced at every start, so that they
-- follow the program.
CREATE OR REPLACE VIEW vitals_view AS
    SELECT s.time, s.gateway_time, s.ingest_time, p.tenant, p.id AS patient, m.name AS metric, e.unit, s.value, h.device, t.stream,
        g.id AS gateway, s.sequence
    FROM samples s JOIN series e ON e.key = s.series JOIN metrics m ON m.metric = e.metric JOIN patients p ON p.key = e.patient
        JOIN streams t ON t.key = e.stream JOIN device_heads h ON h.key = t.device JOIN gateways g ON g.key = e.gateway;
-- Readings that ingest converted, with the value and the unit as they came.
CREATE OR REPLACE VIEW vitals_converted_view AS
    SELECT s.time, p.tenant, p.id AS patient, m.name AS metric, s.value, e.unit, s.original_value, s.original_unit, h.device
    FROM samples s JOIN series e ON e.key = s.series JOIN metrics m ON m.metric = e.metric JOIN patients p ON p.key = e.patient
        JOIN streams t ON t.key = e.stream JOIN device_heads h ON h.key = t.device
    WHERE s.original_value IS NOT NULL;
CREATE OR REPLACE VIEW vitals_1m_view AS
    SELECT r.bucket AS time, p.tenant, p.id AS patient, m.name AS metric, e.unit, r.count, r.sum, r.min, r.max, r.sum / r.count AS mean
    FROM vitals_1m r JOIN series e ON e.key = r.series JOIN metrics m ON m.metric = e.metric JOIN patients p ON p.key = e.patient;
CREATE OR REPLACE VIEW vitals_1h_view AS
    SELECT r.bucket AS time, p.tenant, p.id AS patient, m.name AS metric, e.unit, r.count, r.sum, r.min, r.max, r.sum / r.count AS mean
    FROM vitals_1h r JOIN series e ON e.key = r.series JOIN metrics m ON m.metric = e.metric JOIN patients p ON p.key = e.patient;
CREATE OR REPLACE VIEW paths_view AS
    SELECT r.time, g.tenant, g.id AS gateway, s.path, s.end_of, r.state, r.interval_ms, r.sent_bytes, r.received_bytes,
        r.sent_packets, r.lost_packets, r.rtt_ms
    -- The sessions of a gateway are bounded: an old report may have outlived the name of its path.
    FROM paths r LEFT JOIN path_sessions s ON s.key = r.session JOIN gateways g ON g.key = r.gateway;
-- Data of the month as the gateway's end counts it. Numbers of gateways may exceed bigint.
CREATE OR REPLACE VIEW path_caps_view AS
    SELECT r.time, g.tenant, g.id AS gateway, s.path, (r.steering->>'version')::numeric AS version,
        (r.steering->>'month_bytes')::numeric AS month_bytes, (r.steering->>'cap_bytes')::numeric AS cap_bytes,
        (r.steering->>'reset_day')::numeric AS reset_day, (r.steering->>'price_per_gb')::numeric AS price_per_gb, r.steering->>'rank' AS rank,
        coalesce(nullif(r.steering->>'time_zone', ''), 'UTC') AS time_zone
    FROM paths r JOIN path_sessions s ON s.key = r.session JOIN gateways g ON g.key = r.gateway
    WHERE r.steering->>'month_bytes' IS NOT NULL AND s.end_of = 1;
-- An earlier release replaces this view after a roll-back. PostgreSQL would refuse that if the view
-- had more columns by then.
CREATE OR REPLACE VIEW path_months_view AS
    SELECT time, tenant, gateway, path, version, month_bytes, cap_bytes, reset_day, price_per_gb, rank FROM path_caps_view;
CREATE OR REPLACE VIEW rule_bytes_view AS
    SELECT r.time, g.tenant, g.id AS gateway, CASE WHEN u.rule <> '' THEN u.rule WHEN u.mode = '' THEN 'no flow' ELSE 'no rule' END AS rule,
        coalesce(nullif(u.mode, ''), 'uploads, packets, headers') AS mode, u.bytes
    FROM paths r JOIN gateways g ON g.key = r.gateway,
        LATERAL jsonb_to_recordset(r.steering->'rules') AS u(rule text, mode text, bytes numeric);
-- Patients of the ward: 4 and 5 are discharged and died.
CREATE OR REPLACE VIEW patients_view AS
    SELECT tenant, id AS patient, name FROM patients WHERE tenant <> '' AND status < 4 AND merged_into = '';
CREATE OR REPLACE VIEW alerts_view AS
    SELECT t.changed AS time, t.id AS alert, t.revision, p.tenant, t.patient, t.rule,
        CASE t.priority WHEN 1 THEN 'low' WHEN 2 THEN 'medium' WHEN 3 THEN 'high' ELSE 'unknown' END AS priority,
        CASE t.state WHEN 1 THEN 'pending' WHEN 2 THEN 'active' WHEN 3 THEN 'acknowledged' WHEN 4 THEN 'latched' WHEN 5 THEN 'resolved'
            ELSE 'unknown' END AS state
    FROM alert_transitions t LEFT JOIN patients p ON p.id = t.patient
    WHERE t.patient <> 'braid-canary'; -- the system's own test alert belongs to no patient
-- This role is for readers such as Grafana, if an installation has created it. It sees only the
-- views.
DO $$ BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'braid_reader') THEN
        GRANT SELECT ON vitals_view, vitals_converted_view, vitals_1m_view, vitals_1h_view, paths_view, path_caps_view, path_months_view, rule_bytes_view, patients_view,
            alerts_view TO braid_reader;
    END IF;
END $$;
