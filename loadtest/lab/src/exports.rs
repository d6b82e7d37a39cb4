//! Files of an exhibit's charts: picture, table and data beside each other.

use std::path::Path;

use crate::error::LabError;
use crate::exhibit::{Drawn, Exhibit};

/// Writes each chart as SVG, CSV and JSON, and the rows as `figures.json`.
pub(crate) fn write(folder: &Path, exhibit: &Exhibit) -> Result<(), LabError> {
    write_charts(folder, &exhibit.plots)?;
    let rows = serde_json::to_string_pretty(&exhibit.figures)?;
    write_file(folder, "figures.json", &rows)
}

pub(crate) fn write_charts(folder: &Path, charts: &[Drawn]) -> Result<(), LabError> {
    charts
        .iter()
        .try_for_each(|drawn| write_chart(folder, drawn))
}

fn write_chart(folder: &Path, drawn: &Drawn) -> Result<(), LabError> {
    write_file(folder, &format!("{}.svg", drawn.id), &drawn.svg)?;
    write_file(folder, &format!("{}.csv", drawn.id), &drawn.csv)?;
    let data = serde_json::to_string(&drawn.data)?;
    write_file(folder, &format!("{}.json", drawn.id), &data)
}

/// Makes the folder when it is missing.
pub(crate) fn write_file(folder: &Path, name: &str, text: &str) -> Result<(), LabError> {
    let file = folder.join(name);
    std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::write(&file, text))
        .map_err(|source| LabError::Write { file, source })
}
