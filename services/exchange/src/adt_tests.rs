#![allow(clippy::unwrap_used)]
use super::*;

const PID: &str = "PID|1||4711^^^HOSP^MR~X9^^^&1.2.3&ISO^SS||Example^Ada^B.||19400131|F|||||||de";
const PV1: &str = "PV1|1|I|4W^12^B^North";

fn read(event: &str, segments: &[&str]) -> Result<Adt, AdtError> {
    let header = format!("MSH|^~\\&|KIS|HOSP|BRAID|WARD|20261129140000||ADT^{event}|7|P|2.5.1");
    let text = [&[header.as_str()], segments].concat().join("\r");
    Adt::read(&Message::parse(text.as_bytes()).unwrap())
}

fn operations(adt: &Adt, found: Option<&Patient>) -> Vec<Operation> {
    let changes = adt.changes(found, None).unwrap();
    changes.iter().map(Change::operation).collect()
}

/// The record after the admission of [`PID`] and [`PV1`].
fn admitted() -> Patient {
    let adt = read("A01", &[PID, PV1]).unwrap();
    let change = adt.changes(None, None).unwrap().remove(0);
    let mut patient = change.details.unwrap();
    patient.id = change.patient;
    patient.status = PatientStatus::Admitted.into();
    patient.revision = 1;
    patient
}

#[test]
fn an_admission_has_identifiers_name_birth_sex_language_and_place() {
    let patient = admitted();
    assert_eq!(patient.id, "HOSP:4711");
    assert_eq!(patient.name, "Ada B. Example");
    assert_eq!(patient.birth_date, "1940-01-31");
    assert_eq!(
        (patient.sex(), patient.language.as_str()),
        (Sex::Female, "de")
    );
    let systems: Vec<&str> = patient
        .identifiers
        .iter()
        .map(|it| it.system.as_str())
        .collect();
    assert_eq!(systems, ["HOSP", "1.2.3"]);
    let place = patient.place.unwrap();
    assert_eq!((place.ward.as_str(), place.bed.as_str()), ("4W", "B"));
}

#[test]
fn a_message_that_comes_again_changes_nothing() {
    let patient = admitted();
    let departed = |status: PatientStatus| Patient {
        status: status.into(),
        ..patient.clone()
    };
    let again = |event: &str, record: &Patient| {
        operations(&read(event, &[PID, PV1]).unwrap(), Some(record))
    };
    assert_eq!(again("A01", &patient), []);
    assert_eq!(again("A02", &patient), []);
    assert_eq!(again("A08", &patient), []);
    assert_eq!(again("A03", &departed(PatientStatus::Discharged)), []);
    assert_eq!(again("A11", &departed(PatientStatus::Discharged)), []);
    assert_eq!(again("A13", &patient), []);
    let dies = format!("PID|1||4711^^^HOSP{}Y", "|".repeat(27));
    // PID-30 stands 27 fields after PID-3.
    let dies = read("A08", &[&dies]).unwrap();
    assert!(dies.has_died, "{dies:?}");
    assert_eq!(operations(&dies, Some(&departed(PatientStatus::Died))), []);
    assert_eq!(operations(&dies, Some(&patient)), [Operation::Die]);
}

#[test]
fn each_event_is_one_change() {
    let patient = admitted();
    let of = |event: &str, segments: &[&str], status: PatientStatus| {
        let record = Patient {
            status: status.into(),
            ..patient.clone()
        };
        operations(&read(event, segments).unwrap(), Some(&record))
    };
    let there = PatientStatus::Admitted;
    let elsewhere = "PV1|1|I|5E^1^A^North";
    assert_eq!(of("A02", &[PID, elsewhere], there), [Operation::Move]);
    assert_eq!(of("A12", &[PID, elsewhere], there), [Operation::Move]);
    assert_eq!(of("A03", &[PID, PV1], there), [Operation::Discharge]);
    let died = format!("{PV1}{}20", "|".repeat(33));
    assert_eq!(of("A03", &[PID, &died], there), [Operation::Die]);
    assert_eq!(of("A11", &[PID], there), [Operation::Discharge]);
    let gone = PatientStatus::Discharged;
    assert_eq!(of("A13", &[PID], gone), [Operation::Reinstate]);
    assert_eq!(of("A01", &[PID, PV1], gone), [Operation::Admit]);
    let renamed = PID.replace("Example", "Sample");
    assert_eq!(
        of("A08", &[&renamed, elsewhere], there),
        [Operation::Correct, Operation::Move]
    );
    // The record of somebody who has left is corrected, and the person is nowhere.
    assert_eq!(
        of("A08", &[&renamed, elsewhere], gone),
        [Operation::Correct]
    );
}

#[test]
fn a_message_leaves_what_it_does_not_say() {
    let patient = admitted();
    let adt = read("A08", &["PID|1||4711^^^HOSP||Sample^Ada"]).unwrap();
    let change = adt.changes(Some(&patient), None).unwrap().remove(0);
    let details = change.details.unwrap();
    assert_eq!(details.name, "Ada Sample");
    assert_eq!(details.birth_date, patient.birth_date);
    assert_eq!(details.identifiers, patient.identifiers);
    assert_eq!(
        change.revision, 1,
        "it is based on the record as it was read"
    );
}

#[test]
fn a_merge_names_both_records_or_gives_one_its_new_number() {
    let patient = admitted();
    let old = Patient {
        id: "HOSP:12".into(),
        ..Patient::default()
    };
    let adt = read("A40", &[PID, "MRG|12^^^HOSP^MR"]).unwrap();
    assert_eq!(adt.merged[0].value, "12");
    let merge = adt.changes(Some(&patient), Some(&old)).unwrap().remove(0);
    assert_eq!(
        (merge.patient.as_str(), merge.into.as_str()),
        ("HOSP:12", "HOSP:4711")
    );
    assert_eq!(merge.operation(), Operation::Merge);
    let renumbered = adt.changes(None, Some(&old)).unwrap().remove(0);
    assert_eq!(renumbered.operation(), Operation::Correct);
    assert_eq!(renumbered.details.unwrap().identifiers.len(), 2);
    assert_eq!(adt.changes(Some(&patient), None), Ok(Vec::new()));
    assert_eq!(adt.changes(Some(&patient), Some(&patient)), Ok(Vec::new()));
    assert_eq!(read("A40", &[PID]), Err(AdtError::NoIdentifier("MRG-1")));
}

#[test]
fn what_cannot_be_understood_is_refused_with_its_field() {
    assert_eq!(read("A28", &[PID]), Err(AdtError::Event("A28".into())));
    assert_eq!(
        read("A01", &["PID|1"]),
        Err(AdtError::NoIdentifier("PID-3"))
    );
    assert_eq!(
        read("A01", &["PV1|1"]),
        Err(AdtError::NoIdentifier("PID-3"))
    );
    let wrong = read("A01", &["PID|1||7^^^H||A^B||31.01.1940"]);
    assert_eq!(wrong, Err(AdtError::BirthDate("31.01.1940".into())));
    let wrong = read("A01", &["PID|1||7^^^H||A^B||19400231"]);
    assert_eq!(wrong, Err(AdtError::BirthDate("19400231".into())));
    let moved = read("A02", &[PID, PV1]).unwrap();
    assert_eq!(moved.changes(None, None), Err(AdtError::Unknown));
}

#[test]
fn two_identifiers_never_give_one_id() {
    let id = |system: &str, value: &str| {
        id_of(&[Identifier {
            system: system.into(),
            value: value.into(),
        }])
    };
    let long = "9".repeat(100);
    let all = [
        id("HOSP", "47-11"),
        id("HOSP", "47/11"),
        id("HOSP", "47 11"),
        id("HOSP:47", "11"),
        id("HOSP", "47:11"),
        id("HOSP", &long),
        id("HOSP", &format!("{long}9")),
        id("HOSP", "é"),
        id("HOSP", "è"),
    ];
    for (at, one) in all.iter().enumerate() {
        assert!(!all[..at].contains(one), "{one} is there twice");
        let is_valid = vitals::validate_identifier("patient", one, "ada").is_ok();
        assert!(is_valid && one.len() <= ID_BYTES_MAX, "{one}");
    }
}
