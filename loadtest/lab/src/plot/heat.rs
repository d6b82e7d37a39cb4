//! A table of coloured cells. Each cell also has a text, so the colour alone carries nothing.

use std::fmt::Write;

use serde::Serialize;

use super::csv::csv_field;
use super::svg::{self, Canvas, WIDTH};

const ROW: f64 = 26.0;

/// Meaning of a cell's colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Better,
    SlightlyBetter,
    Same,
    Worse,
    /// Not measured or not published.
    Unknown,
}

impl Verdict {
    /// Green, yellow and red in the tones that a colour-blind reader can tell apart.
    fn colour(self) -> &'static str {
        match self {
            Self::Better => "#5cc0a0",
            Self::SlightlyBetter => "#bfe6d8",
            Self::Same => "#f5e6a3",
            Self::Worse => "#e8896b",
            Self::Unknown => "#eeeeee",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Better => "better",
            Self::SlightlyBetter => "slightly better",
            Self::Same => "same",
            Self::Worse => "worse",
            Self::Unknown => "not known",
        }
    }
}

#[derive(Debug, Clone, Serialize)]
pub struct Cell {
    pub text: String,
    pub verdict: Verdict,
}

impl Cell {
    pub fn new(text: &str, verdict: Verdict) -> Self {
        Self {
            text: text.to_owned(),
            verdict,
        }
    }
}

#[derive(Debug, Clone, Serialize)]
pub struct Heat {
    pub title: String,
    pub columns: Vec<String>,
    /// Rows with a name each; a row without cells is a heading.
    pub rows: Vec<(String, Vec<Cell>)>,
}

impl Heat {
    pub fn new(title: &str, columns: &[&str]) -> Self {
        let columns = columns.iter().map(|&name| name.to_owned()).collect();
        Self {
            title: title.to_owned(),
            columns,
            rows: Vec::new(),
        }
    }

    pub fn row(mut self, name: &str, cells: Vec<Cell>) -> Self {
        self.rows.push((name.to_owned(), cells));
        self
    }

    pub fn csv(&self) -> String {
        let mut text = "row,column,text,verdict\n".to_owned();
        for (row, cells) in &self.rows {
            for (column, cell) in self.columns.iter().zip(cells) {
                let (row, column) = (csv_field(row), csv_field(column));
                // A string never refuses what is written to it.
                let _ = writeln!(
                    text,
                    "{row},{column},{},{}",
                    csv_field(&cell.text),
                    cell.verdict.name()
                );
            }
        }
        text
    }

    pub(crate) fn svg(&self) -> String {
        let names = self.rows.iter().map(|row| svg::width_of(&row.0, 12.0));
        let left = names.fold(0.0, f64::max).min(WIDTH / 2.0) + 24.0;
        let columns = self.columns.len().max(1) as f64;
        let width = (WIDTH - 12.0 - left) / columns;
        let longest = self
            .columns
            .iter()
            .map(|name| svg::width_of(name, 12.0))
            .fold(0.0, f64::max);
        let turned = longest > width - 4.0;
        // Turned headings reach beyond the last column.
        let beyond = if turned {
            longest.min(160.0) * 0.82
        } else {
            0.0
        };
        let width = (width - (beyond - width / 2.0).max(0.0) / columns).max(20.0);
        let head = if turned {
            longest.min(160.0) * 0.6 + 22.0
        } else {
            22.0
        };
        let top = 34.0 + head;
        let height = top + self.rows.len() as f64 * ROW + 34.0;
        let mut canvas = Canvas::new(height, &self.title);
        for (index, name) in self.columns.iter().enumerate() {
            let middle = left + width * (index as f64 + 0.5);
            if turned {
                canvas.turned(middle - 4.0, top - 6.0, -35.0, "start", name);
            } else {
                canvas.words(middle, top - 8.0, 12.0, "middle", name);
            }
        }
        let mut y = top;
        for (name, cells) in &self.rows {
            canvas.words(12.0, y + ROW * 0.66, 12.0, "start", name);
            for (index, cell) in cells.iter().take(self.columns.len()).enumerate() {
                let x = left + width * index as f64;
                let style = format!("fill=\"{}\" stroke=\"#ffffff\"", cell.verdict.colour());
                canvas.rect(x, y, width, ROW, &style);
                let fits = svg::width_of(&cell.text, 12.0) < width;
                let size = if fits { 12.0 } else { 9.5 };
                canvas.words(x + width / 2.0, y + ROW * 0.66, size, "middle", &cell.text);
            }
            y += ROW;
        }
        let verdicts = [
            Verdict::Better,
            Verdict::SlightlyBetter,
            Verdict::Same,
            Verdict::Worse,
            Verdict::Unknown,
        ];
        let mut x = 12.0;
        for verdict in verdicts {
            let style = format!("fill=\"{}\" stroke=\"#888888\"", verdict.colour());
            canvas.rect(x, y + 12.0, 14.0, 12.0, &style);
            canvas.words(x + 20.0, y + 22.0, 12.0, "start", verdict.name());
            x += 40.0 + svg::width_of(verdict.name(), 12.0);
        }
        canvas.done()
    }
}
