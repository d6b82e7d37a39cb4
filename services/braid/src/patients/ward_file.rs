//! A ward in one CSV file (RFC 4180). Every line is checked before the first patient is admitted,
//! and all are admitted in one transaction.

use std::{collections::BTreeMap, path::Path};

use contracts::patients::{
    Change as PatientChange, Consent, Identifier, Operation, Patient, Place,
};
use dashboard::patients::{self as changes, Changed};
use serde_json::json;
use store::{Change, PATIENT_CHANGES_MAX, Store};

use super::{
    details::{Named, Person, Purpose, RecordedSex},
    request::Request,
    shown,
};
use crate::moment::Moment;
use crate::process::{self, Failure, say};

/// Bytes of a file. A larger one is refused.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// Columns that a file may have.
const COLUMNS: [&str; 17] = [
    "id",
    "name",
    "status",
    "birth_date",
    "sex",
    "identifiers",
    "site",
    "ward",
    "room",
    "bed",
    "language",
    "time_zone",
    "spo2_scale",
    "spo2_scale_by",
    "spo2_scale_at",
    "contacts",
    "consents",
];

pub(super) async fn admit(file: &Path, dry_run: bool, request: &Request) -> Result<(), Failure> {
    let text = read(file)?;
    let store = request.tenancy.store.open().await?;
    let by = request.by(&*store).await?;
    let lines = lines(&text, by.at_us).map_err(Failure::other)?;
    let report = Report::of(&*store, &request.tenancy.tenant, lines, &by).await?;
    if report.refused() > 0 || dry_run {
        report.show(&Changed::default(), request.json)?;
        return match report.refused() {
            0 => Ok(()),
            refused => Err(Failure::other(format!(
                "{refused} of {} lines are refused, so nothing is changed",
                report.lines.len()
            ))),
        };
    }
    let all: Vec<PatientChange> = report.changes().cloned().collect();
    let made = changes::change(&*store, &request.tenancy.tenant, &all, &by).await;
    let made = made.map_err(|error| Failure::other(format!("nothing is changed: {error}")))?;
    report.show(&made, request.json)
}

fn read(file: &Path) -> Result<String, Failure> {
    let failed = |reason: String| Failure::other(format!("{}: {reason}", file.display()));
    let length = std::fs::metadata(file).map_err(|error| failed(error.to_string()))?;
    if length.len() > FILE_BYTES_MAX {
        return Err(failed(format!("has more than {FILE_BYTES_MAX} bytes")));
    }
    std::fs::read_to_string(file).map_err(|error| failed(error.to_string()))
}

/// One line of the file with what it asks for, or why it is refused.
#[derive(Debug)]
struct Line {
    number: usize,
    change: Result<PatientChange, String>,
    warnings: Vec<String>,
}

#[derive(Debug)]
struct Report {
    lines: Vec<Line>,
}

impl Report {
    /// Each line alone, so that all refusals are known; then all together.
    async fn of(
        store: &dyn Store,
        tenant: &str,
        mut lines: Vec<Line>,
        by: &Change,
    ) -> Result<Report, Failure> {
        for line in &mut lines {
            if let Ok(change) = &line.change {
                let one = std::slice::from_ref(change);
                if let Err(error) = store.check_patients(tenant, one, by.at_us).await {
                    line.change = Err(error.to_string());
                }
            }
        }
        let mut report = Report { lines };
        if report.refused() > 0 {
            return Ok(report);
        }
        let all: Vec<PatientChange> = report.changes().cloned().collect();
        match changes::check(store, tenant, &all, by).await {
            Ok(checked) => report.warn(&checked),
            Err(changes::PatientsError::Change(store::ChangePatientsError::Refused {
                index,
                refusal,
            })) => {
                if let Some(line) = report.lines.get_mut(index) {
                    line.change = Err(refusal.to_string());
                }
            }
            Err(error) => return Err(Failure::other(error)),
        }
        Ok(report)
    }

    fn changes(&self) -> impl Iterator<Item = &PatientChange> {
        self.lines.iter().filter_map(|it| it.change.as_ref().ok())
    }

    fn refused(&self) -> usize {
        self.lines.iter().filter(|it| it.change.is_err()).count()
    }

    fn warn(&mut self, checked: &Changed) {
        for likeness in &checked.likenesses {
            let of_patient = |line: &&mut Line| {
                let change = line.change.as_ref();
                change.is_ok_and(|it| it.patient == likeness.patient)
            };
            if let Some(line) = self.lines.iter_mut().find(of_patient) {
                line.warnings.push(shown::warning(likeness));
            }
        }
    }

    /// `made`: the records after the changes; none when nothing was changed.
    fn show(&self, made: &Changed, json: bool) -> Result<(), Failure> {
        let records: BTreeMap<&str, &Patient> =
            made.patients.iter().map(|it| (&*it.id, it)).collect();
        if json {
            let lines: Vec<_> = self.lines.iter().map(|it| as_json(it, &records)).collect();
            return process::json(&lines);
        }
        for line in &self.lines {
            let number = line.number;
            let text = match &line.change {
                Err(reason) => format!("refused: {reason}"),
                Ok(change) => match records.get(&*change.patient) {
                    Some(record) => shown::line(record),
                    None => format!("{} is accepted", change.patient),
                },
            };
            say(&format!("line {number}: {text}"))?;
            for warning in &line.warnings {
                say(&format!("line {number}: {warning}"))?;
            }
        }
        say(&match records.len() {
            0 => format!("{} lines, nothing is changed", self.lines.len()),
            admitted => format!("{admitted} patients are entered"),
        })
    }
}

fn as_json(line: &Line, records: &BTreeMap<&str, &Patient>) -> serde_json::Value {
    let change = line.change.as_ref().ok();
    let record = change.and_then(|it| records.get(&*it.patient));
    json!({
        "line": line.number,
        "patient": change.map(|it| &it.patient),
        "refused": line.change.as_ref().err(),
        "warnings": line.warnings,
        "record": record.map(|it| shown::as_json(it)),
    })
}

/// Reads the header and the lines. `Err`: the file as a whole is refused.
fn lines(text: &str, now_us: i64) -> Result<Vec<Line>, String> {
    let mut rows = rows(text)?.into_iter();
    let (_, header) = rows.next().ok_or("the file is empty")?;
    let header: Vec<String> = header.iter().map(|it| it.trim().to_lowercase()).collect();
    let is_known = |column: &&String| COLUMNS.contains(&column.as_str());
    if let Some(unknown) = header.iter().find(|it| !is_known(it)) {
        return Err(format!(
            "line 1: column `{unknown}` is unknown; the columns are {}",
            COLUMNS.join(", ")
        ));
    }
    if !header.iter().any(|it| it == "id") {
        return Err("line 1: the column `id` is missing".to_owned());
    }
    let lines: Vec<Line> = rows
        .filter(|(_, cells)| cells.iter().any(|cell| !cell.trim().is_empty()))
        .map(|(number, cells)| Line {
            number,
            change: change(&header, &cells, now_us),
            warnings: Vec::new(),
        })
        .collect();
    if lines.len() > PATIENT_CHANGES_MAX {
        return Err(format!(
            "the file has {} patients, more than {PATIENT_CHANGES_MAX}; make several files",
            lines.len()
        ));
    }
    Ok(lines)
}

fn change(header: &[String], cells: &[String], now_us: i64) -> Result<PatientChange, String> {
    if cells.len() != header.len() {
        return Err(format!(
            "has {} cells, and the header has {}",
            cells.len(),
            header.len()
        ));
    }
    let mut change = PatientChange {
        operation: Operation::Admit.into(),
        ..PatientChange::default()
    };
    let (mut details, mut place) = (Patient::default(), Place::default());
    for (column, cell) in header.iter().zip(cells) {
        let cell = cell.trim();
        let wrong = |reason: String| format!("{column}: {cell:?} {reason}");
        match column.as_str() {
            "id" => cell.clone_into(&mut change.patient),
            "name" => cell.clone_into(&mut details.name),
            "birth_date" => cell.clone_into(&mut details.birth_date),
            "language" => cell.clone_into(&mut details.language),
            "time_zone" => cell.clone_into(&mut details.time_zone),
            "site" => cell.clone_into(&mut place.site),
            "ward" => cell.clone_into(&mut place.ward),
            "room" => cell.clone_into(&mut place.room),
            "bed" => cell.clone_into(&mut place.bed),
            "spo2_scale_by" => cell.clone_into(&mut details.spo2_scale_by),
            _ if cell.is_empty() => {}
            "status" => {
                change.operation = match cell {
                    "admitted" => Operation::Admit.into(),
                    "expected" => Operation::Expect.into(),
                    _ => return Err(wrong("is neither expected nor admitted".to_owned())),
                }
            }
            "sex" => details.sex = cell.parse::<RecordedSex>().map_err(wrong)?.0.into(),
            "spo2_scale" => {
                let scale = cell.parse();
                details.spo2_scale = scale.map_err(|_| wrong("is neither 1 nor 2".to_owned()))?;
            }
            "spo2_scale_at" => {
                details.spo2_scale_at_us = cell.parse::<Moment>().map_err(wrong)?.0;
            }
            "identifiers" => {
                for one in several(cell) {
                    let it = one.parse::<Named>().map_err(wrong)?;
                    details.identifiers.push(Identifier::from(&it));
                }
            }
            "contacts" => {
                for one in several(cell) {
                    details
                        .contacts
                        .push(one.parse::<Person>().map_err(wrong)?.0);
                }
            }
            _ => {
                for one in several(cell) {
                    let Purpose(purpose, given) = one.parse::<Purpose>().map_err(wrong)?;
                    details.consents.push(Consent {
                        purpose,
                        given,
                        at_us: now_us,
                    });
                }
            }
        }
    }
    details.place = (place != Place::default()).then_some(place);
    patients::check(&details).map_err(|found| found.to_string())?;
    change.details = Some(details);
    Ok(change)
}

/// Values of one cell, separated by semicolons.
fn several(cell: &str) -> impl Iterator<Item = &str> {
    let parts = cell.split(';').map(str::trim);
    parts.filter(|part| !part.is_empty())
}

/// Cells by row, each row with the number of its first line. A quoted cell may hold separators,
/// line ends and doubled quotes.
fn rows(text: &str) -> Result<Vec<(usize, Vec<String>)>, String> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let (mut rows, mut cells, mut cell) = (Vec::new(), Vec::new(), String::new());
    let (mut line, mut begun, mut is_quoted) = (1, 1, false);
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '"' if is_quoted && letters.peek() == Some(&'"') => {
                letters.next();
                cell.push('"');
            }
            '"' if is_quoted => is_quoted = false,
            '"' if cell.trim().is_empty() => {
                cell.clear();
                is_quoted = true;
            }
            ',' if !is_quoted => cells.push(std::mem::take(&mut cell)),
            '\n' if !is_quoted => {
                cells.push(std::mem::take(&mut cell));
                rows.push((begun, std::mem::take(&mut cells)));
                line += 1;
                begun = line;
            }
            '\r' if !is_quoted => {}
            other => {
                line += usize::from(other == '\n');
                cell.push(other);
            }
        }
    }
    if is_quoted {
        return Err(format!("line {begun}: a quoted cell has no end"));
    }
    if !cell.is_empty() || !cells.is_empty() {
        cells.push(cell);
        rows.push((begun, cells));
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn change_of(text: &str) -> Vec<Result<PatientChange, String>> {
        let lines = lines(text, 7).unwrap();
        lines.into_iter().map(|it| it.change).collect()
    }

    #[test]
    fn a_spreadsheet_of_a_ward_is_read_with_its_quotes() {
        let text = "\u{feff}id,Name,birth_date,identifiers,ward,contacts,consents\r\n\
            ada,\"Example, Ada \"\"Countess\"\"\",1941-07-30,mrn=1; ehr=x9,4 West,\"Ben, son, +49 30\",home=yes\r\n\
            \r\n\
            ben,Ben Example,,,,,\n";
        let changes = change_of(text);
        assert_eq!(changes.len(), 2);
        let ada = changes[0].as_ref().unwrap();
        let details = ada.details.as_ref().unwrap();
        assert_eq!(details.name, "Example, Ada \"Countess\"");
        assert_eq!(details.identifiers.len(), 2);
        assert_eq!(details.contacts[0].address, "+49 30");
        assert_eq!(details.consents[0].at_us, 7);
        assert_eq!(details.place.as_ref().unwrap().ward, "4 West");
        let ben = changes[1].as_ref().unwrap();
        assert_eq!(ben.details.as_ref().unwrap().place, None);
    }

    #[test]
    fn a_wrong_line_says_what_and_a_wrong_file_is_refused_whole() {
        let text = "id,sex,birth_date,status\nada,f,,\nben,male,30.7.1941,\neve,,,gone\nann,,\n";
        let reasons: Vec<String> = change_of(text)
            .into_iter()
            .map(|it| it.unwrap_err())
            .collect();
        let begins = [
            "sex: \"f\"",
            "birth_date: ",
            "status: \"gone\"",
            "has 3 cells",
        ];
        for (reason, begin) in reasons.iter().zip(begins) {
            assert!(reason.starts_with(begin), "{reason}");
        }
        for (text, part) in [
            ("", "empty"),
            ("id,nmae\n", "`nmae` is unknown"),
            ("name\nAda\n", "`id` is missing"),
            ("id,name\nada,\"Ada\n", "line 2: a quoted cell has no end"),
        ] {
            let refused = lines(text, 7).unwrap_err();
            assert!(refused.contains(part), "{refused}");
        }
    }
}
