-- An alert whose priority is not known counts as one of the highest: writers of an earlier version do not know this column.
ALTER TABLE alerts ADD COLUMN priority int NOT NULL DEFAULT 3;
UPDATE alerts a SET priority = t.priority FROM alert_transitions t WHERE t.id = a.id AND t.revision = a.revision AND a.state <> 5;
CREATE INDEX alerts_open ON alerts (priority, since_us) WHERE state <> 5;
