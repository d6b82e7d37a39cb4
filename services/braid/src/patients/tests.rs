#![allow(clippy::unwrap_used)]
use clap::Parser;
use contracts::patients::PatientStatus;
use store::{PatientsStore, SqliteStore};

use super::*;

#[derive(clap::Parser)]
struct Line {
    #[command(subcommand)]
    command: PatientsCommand,
}

/// Runs a line on the store of the folder. `|` separates its words.
fn run(folder: &std::path::Path, line: &str) -> Result<(), String> {
    let signed = ["--by", "Eve", "--data", folder.to_str().unwrap()];
    let words = ["patients"]
        .into_iter()
        .chain(line.split('|'))
        .chain(signed);
    let line = Line::try_parse_from(words).map_err(|error| error.to_string())?;
    line.command.run().map_err(|error| error.to_string())
}

fn record(folder: &std::path::Path, id: &str) -> Option<Patient> {
    process::block_on(async {
        let store = SqliteStore::open(folder).unwrap();
        store.patient_record(&Scope::Service, id).await.unwrap()
    })
    .unwrap()
}

#[test]
fn a_patient_is_admitted_corrected_moved_and_let_go_by_hand() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let admit = "admit|ada|--name|Ada Example|--identifier|mrn=4711|--ward|4 West|--bed|12|--reason|pneumonia";
    run(folder, admit).unwrap();
    let again = run(folder, admit).unwrap_err();
    assert!(
        again.contains("is admitted: admit is not possible"),
        "{again}"
    );
    run(
        folder,
        "correct|ada|--birth-date|1941-07-30|--reason|typing",
    )
    .unwrap();
    run(folder, "move|ada|--ward|4 West|--bed|3|--reason|isolation").unwrap();
    run(folder, "pause|ada|--reason|surgery").unwrap();
    let ada = record(folder, "ada").unwrap();
    assert_eq!(ada.status(), PatientStatus::Paused);
    assert_eq!(
        (&*ada.name, &*ada.birth_date),
        ("Ada Example", "1941-07-30")
    );
    assert_eq!(ada.identifiers.len(), 1);
    assert_eq!(ada.place.unwrap().bed, "3");
    let scale = "correct|ada|--spo2-scale|2|--reason|COPD";
    let refused = run(folder, scale).unwrap_err();
    assert!(
        refused.contains("needs the person who prescribed it"),
        "{refused}"
    );
    run(folder, &format!("{scale}|--prescribed-by|Dr. Eve")).unwrap();
    let wrong = run(folder, "correct|ada|--birth-date|30.7.1941|--reason|typing").unwrap_err();
    assert!(wrong.contains("is no date"), "{wrong}");
    run(folder, "discharge|ada|--reason|home").unwrap();
    let refused = run(folder, "erase|ada|--reason|she asked for it, she has COPD").unwrap_err();
    assert!(
        refused.contains("requested, retention, mistake"),
        "{refused}"
    );
    run(folder, "erase|ada|--reason|requested").unwrap();
    assert_eq!(record(folder, "ada"), None);
    let back = run(folder, admit).unwrap_err();
    assert!(back.contains("is not available"), "{back}");
}

#[test]
fn a_ward_is_admitted_by_one_file_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let file = folder.join("ward.csv");
    let admit = format!("admit|--csv|{}|--reason|move of the ward", file.display());
    let header = "id,name,birth_date,identifiers,ward,status\n";
    let ada = "ada,Ada Example,1941-07-30,mrn=1,4 West,\n";
    let wrong = format!("{header}{ada}ben,Ben,1941-13-01,mrn=2,4 West,\neve,Eve,,mrn=1,,\n");
    std::fs::write(&file, wrong).unwrap();
    let refused = run(folder, &admit).unwrap_err();
    assert!(refused.contains("1 of 3 lines are refused"), "{refused}");
    // Two lines with one identifier are found when the lines alone are well.
    let twice = format!("{header}{ada}eve,Eve,,mrn=1,,\n");
    std::fs::write(&file, twice).unwrap();
    assert!(run(folder, &admit).is_err());
    assert_eq!(record(folder, "ada"), None, "nothing half done");
    let good = format!("{header}{ada}ben,Ben Example,,mrn=2,4 West,expected\n");
    std::fs::write(&file, good).unwrap();
    for ignored in ["--ward|5 East", "--name|Ada"] {
        let refused = run(folder, &format!("{admit}|{ignored}")).unwrap_err();
        assert!(refused.contains("cannot be used with"), "{refused}");
    }
    run(folder, &format!("{admit}|--dry-run")).unwrap();
    assert_eq!(record(folder, "ada"), None, "a dry run");
    run(folder, &admit).unwrap();
    let status = |id: &str| record(folder, id).unwrap().status();
    assert_eq!(status("ada"), PatientStatus::Admitted);
    assert_eq!(status("ben"), PatientStatus::Expected);
}
