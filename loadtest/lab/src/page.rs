//! The report as one HTML file, and the data of every chart and table beside it.

mod html;
mod machine;

use crate::error::LabError;
use crate::exhibit::Finished;
use crate::figures::{Figure, Goal};
use crate::options::ReportOptions;
use crate::output;
use crate::references::{self, Comparison};

/// Folder of the charts' files.
const CHARTS: &str = "charts";
/// Folder of the tables' files.
const TABLES: &str = "tables";

/// Writes all files of the report; returns the summary for the user.
pub(crate) fn report(options: &ReportOptions, finished: &[Finished]) -> Result<String, LabError> {
    let out = &options.out;
    check_references(finished)?;
    for entry in finished {
        for chart in &entry.exhibit.plots {
            let at = |ending: &str| out.join(CHARTS).join(format!("{}.{ending}", chart.id));
            output::write(&at("svg"), chart.svg.as_bytes())?;
            output::write(&at("csv"), chart.csv.as_bytes())?;
            output::write(
                &at("json"),
                serde_json::to_string_pretty(&chart.data)?.as_bytes(),
            )?;
        }
        for (number, table) in (1..).zip(&entry.exhibit.tables) {
            let file = out.join(TABLES).join(format!("{}.{number}.csv", entry.id));
            output::write(&file, html::table_csv(table).as_bytes())?;
        }
    }
    let figures: Vec<&Figure> = finished
        .iter()
        .flat_map(|entry| &entry.exhibit.figures)
        .collect();
    let file = out.join("figures.json");
    output::write(&file, serde_json::to_string_pretty(&figures)?.as_bytes())?;
    let file = out.join("report.html");
    output::write(&file, html::document(options, finished).as_bytes())?;
    let count = |wanted: fn(&Figure) -> bool| figures.iter().filter(|row| wanted(row)).count();
    let asked = count(|row| row.goal != Goal::Shown);
    let met = count(|row| row.goal != Goal::Shown && row.met);
    let mut text = format!("{met} of {asked} targets met; {}", file.display());
    for row in figures.iter().filter(|row| !row.met) {
        let target = row.target.unwrap_or_default();
        text += &format!(
            "\nmissed: {} {:.2} {} (target {target})",
            row.id, row.measured, row.unit
        );
    }
    Ok(text)
}

/// Every row and every chart has an entry in the data file.
fn check_references(finished: &[Finished]) -> Result<(), LabError> {
    for entry in finished {
        let rows = entry.exhibit.figures.iter().map(|row| &row.id);
        let missing = |id: &&String| references::comparison(id) == Comparison::Missing;
        let charts = entry.exhibit.plots.iter().map(|chart| &chart.id);
        let uncharted = |id: &&String| references::chart(id).is_none();
        if let Some(id) = rows
            .clone()
            .find(missing)
            .or(charts.clone().find(uncharted))
        {
            return Err(LabError::NoReference(id.clone()));
        }
    }
    Ok(())
}

/// Whether no target is missed.
pub(crate) fn is_met(finished: &[Finished]) -> bool {
    finished
        .iter()
        .flat_map(|entry| &entry.exhibit.figures)
        .all(|figure| figure.met)
}
