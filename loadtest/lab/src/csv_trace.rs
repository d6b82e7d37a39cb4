//! Traces as CSV: a line for each change of a link, `time_s,rate_mbit,delay_ms,loss`.
//!
//! Times are seconds and rise. Columns after the rate may be left out or empty, and then nothing
//! changes. Lines that are empty or begin with `#`, and one line of headings, are passed over.

/// Lines of a file.
const LINES_MAX: usize = 100_000;
const EXAMPLE: &str = "12.5,8.0,35.0,0.01 (seconds, Mbit/s, ms one way, share lost)";

/// Contents of a file, each list by time.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct CsvTrace {
    pub(crate) rates: Vec<(f64, f64)>,
    pub(crate) delays: Vec<(f64, f64)>,
    pub(crate) losses: Vec<(f64, f64)>,
}

/// A line that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {field}: {reason}; for example {EXAMPLE}")]
pub struct CsvError {
    pub line: usize,
    pub field: &'static str,
    pub reason: String,
}

impl CsvTrace {
    pub(crate) fn parse(text: &str) -> Result<Self, CsvError> {
        let mut trace = Self::default();
        let mut last_s = 0.0;
        for (line, content) in (1..).zip(text.lines()) {
            let content = content.trim();
            let is_heading = trace.rates.is_empty() && content.starts_with("time");
            if content.is_empty() || content.starts_with('#') || is_heading {
                continue;
            }
            if trace.rates.len() == LINES_MAX {
                let reason = format!("more than {LINES_MAX} lines");
                return Err(CsvError {
                    line,
                    field: "time_s",
                    reason,
                });
            }
            let mut cells = content.split(',').map(str::trim);
            let time_s = number(line, "time_s", cells.next(), 0.0, 100_000.0)?;
            let at_s = time_s.ok_or_else(|| missing(line, "time_s"))?;
            if at_s < last_s {
                let reason = format!("{at_s} is earlier than the line before it");
                return Err(CsvError {
                    line,
                    field: "time_s",
                    reason,
                });
            }
            last_s = at_s;
            let rate = number(line, "rate_mbit", cells.next(), 0.0, 100_000.0)?;
            trace
                .rates
                .push((at_s, rate.ok_or_else(|| missing(line, "rate_mbit"))?));
            if let Some(ms) = number(line, "delay_ms", cells.next(), 0.0, 60_000.0)? {
                trace.delays.push((at_s, ms));
            }
            if let Some(share) = number(line, "loss", cells.next(), 0.0, 0.999)? {
                trace.losses.push((at_s, share));
            }
        }
        if trace.rates.is_empty() {
            return Err(missing(1, "time_s"));
        }
        Ok(trace)
    }
}

fn missing(line: usize, field: &'static str) -> CsvError {
    CsvError {
        line,
        field,
        reason: "there is no value".to_owned(),
    }
}

/// None of a cell that is empty or not there.
fn number(
    line: usize,
    field: &'static str,
    cell: Option<&str>,
    from: f64,
    to: f64,
) -> Result<Option<f64>, CsvError> {
    let Some(cell) = cell.filter(|cell| !cell.is_empty()) else {
        return Ok(None);
    };
    let value: f64 = cell.parse().map_err(|_| CsvError {
        line,
        field,
        reason: format!("{cell:?} is not a number"),
    })?;
    // Not a number is within no range.
    if (from..=to).contains(&value) {
        return Ok(Some(value));
    }
    Err(CsvError {
        line,
        field,
        reason: format!("{value} is not between {from} and {to}"),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn columns_may_be_left_out() {
        let text = "time_s,rate_mbit,delay_ms,loss\n0,8,35,0.01\n\n# then\n2.5,4\n3,0,,0.5\n";
        let trace = CsvTrace::parse(text).unwrap();
        assert_eq!(trace.rates, [(0.0, 8.0), (2.5, 4.0), (3.0, 0.0)]);
        assert_eq!(trace.delays, [(0.0, 35.0)]);
        assert_eq!(trace.losses, [(0.0, 0.01), (3.0, 0.5)]);
    }

    #[test]
    fn a_bad_line_is_named_with_field_and_example() {
        let bad = [
            ("0,8\n-1,3", 2, "time_s"),
            ("1,8\n0.5,3", 2, "time_s"),
            ("0,NaN", 1, "rate_mbit"),
            ("0,inf", 1, "rate_mbit"),
            ("0,8,-3", 1, "delay_ms"),
            ("0,8,3,1.5", 1, "loss"),
            ("0", 1, "rate_mbit"),
            ("", 1, "time_s"),
        ];
        for (text, line, field) in bad {
            let error = CsvTrace::parse(text).unwrap_err();
            assert_eq!((error.line, error.field), (line, field), "{text}");
            assert!(
                error.to_string().contains("for example 12.5,8.0"),
                "{error}"
            );
        }
    }
}
