use contracts::vitals::Metric;
use rusqlite::{Connection, OptionalExtension};

use crate::{SeriesPoints, SeriesQuery, thinning::Thinner};

pub fn read(
    connection: &Connection,
    patient: i64,
    query: &SeriesQuery,
) -> rusqlite::Result<Vec<SeriesPoints>> {
    let metrics: Vec<i32> = if query.metrics.is_empty() {
        connection
            .prepare_cached("SELECT metric FROM latest WHERE patient = ?1 ORDER BY metric")?
            .query_map([patient], |row| row.get(0))?
            .collect::<rusqlite::Result<_>>()?
    } else {
        query.metrics.iter().map(|it| it.number()).collect()
    };
    let mut series = Vec::with_capacity(metrics.len());
    for metric in metrics {
        let mut thinner = Thinner::new(query.from_us, query.to_us, query.points);
        values(connection, patient, metric, query, &mut thinner)?;
        waveforms(connection, patient, metric, query, &mut thinner)?;
        let (times_us, values) = thinner.finish();
        if !times_us.is_empty() {
            series.push(SeriesPoints {
                metric: Metric::from_number(metric),
                times_us,
                values,
            });
        }
    }
    Ok(series)
}

fn values(
    connection: &Connection,
    patient: i64,
    metric: i32,
    query: &SeriesQuery,
    thinner: &mut Thinner,
) -> rusqlite::Result<()> {
    let mut statement = connection.prepare_cached(
        "SELECT time_us, value FROM samples WHERE patient = ?1 AND metric = ?2 AND time_us >= ?3 AND time_us < ?4
         ORDER BY time_us",
    )?;
    let mut rows = statement.query((patient, metric, query.from_us, query.to_us))?;
    while let Some(row) = rows.next()? {
        thinner.push(row.get(0)?, row.get(1)?);
    }
    Ok(())
}

fn waveforms(
    connection: &Connection,
    patient: i64,
    metric: i32,
    query: &SeriesQuery,
    thinner: &mut Thinner,
) -> rusqlite::Result<()> {
    let mut statement = connection.prepare_cached(
        "SELECT time_us, period_us, readings FROM waveforms WHERE patient = ?1 AND metric = ?2 AND time_us >= ?3 AND time_us < ?4
         ORDER BY time_us",
    )?;
    let longest_us: Option<i64> = connection
        .prepare_cached("SELECT longest_us FROM latest WHERE patient = ?1 AND metric = ?2")?
        .query_row((patient, metric), |row| row.get(0))
        .optional()?;
    let from = query.from_us.saturating_sub(longest_us.unwrap_or(0));
    let mut rows = statement.query((patient, metric, from, query.to_us))?;
    while let Some(row) = rows.next()? {
        let mut time: i64 = row.get(0)?;
        let period: i64 = row.get(1)?;
        for value in readings(row.get_ref(2)?.as_blob()?) {
            if (query.from_us..query.to_us).contains(&time) {
                thinner.push(time, f64::from(value));
            }
            time = time.saturating_add(period);
        }
    }
    Ok(())
}

pub fn readings(blob: &[u8]) -> impl Iterator<Item = f32> {
    let (readings, _) = blob.as_chunks::<4>();
    readings.iter().map(|bytes| f32::from_le_bytes(*bytes))
}
