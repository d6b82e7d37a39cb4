-- The value and the unit of a reading as they came, where ingest converted it.
ALTER TABLE samples ADD COLUMN original_value double precision;
ALTER TABLE samples ADD COLUMN original_unit text;
