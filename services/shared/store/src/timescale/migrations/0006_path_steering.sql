-- For dashboards: month, cap, price and bytes by rule, as gateways report them. Rows of an older version have none.
ALTER TABLE paths ADD COLUMN steering jsonb;
