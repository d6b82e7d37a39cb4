#![allow(clippy::unwrap_used)]

use contracts::patients::Place;
use proptest::prelude::*;

use super::*;

const OPERATIONS: [Operation; 12] = [
    Operation::Expect,
    Operation::Admit,
    Operation::Correct,
    Operation::Move,
    Operation::Pause,
    Operation::Resume,
    Operation::Discharge,
    Operation::Die,
    Operation::Reinstate,
    Operation::Merge,
    Operation::Unmerge,
    Operation::Erase,
];

fn change(operation: Operation) -> Change {
    Change {
        patient: "ada".into(),
        operation: operation.into(),
        place: Some(Place {
            bed: "4".into(),
            ..Place::default()
        }),
        into: "ada-2".into(),
        ..Change::default()
    }
}

fn stored(status: PatientStatus) -> Patient {
    Patient {
        id: "ada".into(),
        name: "Ada".into(),
        status: status.into(),
        revision: 3,
        ..Patient::default()
    }
}

fn apply(found: Option<&Patient>, operation: Operation) -> Result<Planned, Refusal> {
    plan(found, &change(operation), 7)
}

fn is_present(patient: &Patient) -> bool {
    !has_departed(patient.status()) && patient.merged_into.is_empty()
}

#[test]
fn a_refusal_names_the_status_and_what_is_possible() {
    let admitted = stored(PatientStatus::Admitted);
    let refused = apply(Some(&admitted), Operation::Admit).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "patient `ada` is admitted: admit is not possible; pause or discharge the patient"
    );
    assert_eq!(
        apply(None, Operation::Discharge),
        Err(Refusal::Unknown("ada".into()))
    );
    let died = stored(PatientStatus::Died);
    assert!(apply(Some(&died), Operation::Admit).is_err());
    let again = apply(Some(&died), Operation::Reinstate).unwrap();
    assert_eq!(again.patient.unwrap().status(), PatientStatus::Admitted);
    assert_eq!(
        apply(Some(&admitted), Operation::Unspecified),
        Err(Refusal::Operation)
    );
}

#[test]
fn a_correction_that_is_based_on_an_older_record_is_refused() {
    let admitted = stored(PatientStatus::Admitted);
    let corrected = |revision| {
        let change = Change {
            revision,
            details: Some(Patient {
                name: "Ada Example".into(),
                status: PatientStatus::Died.into(),
                ..Patient::default()
            }),
            ..change(Operation::Correct)
        };
        plan(Some(&admitted), &change, 7)
    };
    let patient = corrected(3).unwrap().patient.unwrap();
    assert_eq!((&*patient.name, patient.revision), ("Ada Example", 4));
    assert_eq!(patient.status(), PatientStatus::Admitted, "not by details");
    assert_eq!(
        corrected(2),
        Err(Refusal::Outdated {
            patient: "ada".into(),
            revision: 3
        })
    );
}

#[test]
fn a_merged_record_returns_as_it_was() {
    let paused = stored(PatientStatus::Paused);
    let merged = apply(Some(&paused), Operation::Merge).unwrap();
    assert_eq!(merged.effects.sensors, Sensors::MoveTo("ada-2".into()));
    let record = merged.patient.unwrap();
    for operation in OPERATIONS {
        let is_possible = matches!(operation, Operation::Unmerge | Operation::Erase);
        assert_eq!(
            apply(Some(&record), operation).is_ok(),
            is_possible,
            "{operation:?}"
        );
    }
    let back = apply(Some(&record), Operation::Unmerge).unwrap();
    assert_eq!(back.effects.sensors, Sensors::ReturnFrom("ada-2".into()));
    assert_eq!(back.patient.unwrap().status(), PatientStatus::Paused);
    assert_eq!(
        apply(Some(&paused), Operation::Unmerge),
        Err(Refusal::NotMerged("ada".into()))
    );
    let itself = Change {
        into: "ada".into(),
        ..change(Operation::Merge)
    };
    assert_eq!(
        plan(Some(&paused), &itself, 7),
        Err(Refusal::Itself("ada".into()))
    );
    assert!(check_target(Some(&record), "ada").is_err(), "no chains");
    assert!(check_target(Some(&paused), "ada").is_ok());
}

proptest! {
    /// A patient who leaves the ward leaves no alert and no sensor behind, whatever the order of
    /// operations. Revisions rise by one, and a refusal changes nothing.
    #[test]
    fn who_leaves_the_ward_leaves_nothing_open(steps in prop::collection::vec(0..OPERATIONS.len(), 0..60)) {
        let mut found: Option<Patient> = None;
        for (at_us, step) in (1..).zip(steps) {
            let operation = OPERATIONS[step];
            let Ok(planned) = plan(found.as_ref(), &change(operation), at_us) else {
                continue;
            };
            let was_present = found.as_ref().is_some_and(is_present);
            let Some(patient) = planned.patient else {
                prop_assert_eq!(operation, Operation::Erase);
                prop_assert_eq!(planned.effects.sensors, Sensors::End);
                found = None;
                continue;
            };
            if was_present && !is_present(&patient) {
                prop_assert!(planned.effects.ends.is_some());
                prop_assert_ne!(&planned.effects.sensors, &Sensors::Stay);
            }
            if is_present(&patient) {
                prop_assert!(planned.effects.ends.is_none());
            }
            prop_assert_ne!(patient.status(), PatientStatus::Unspecified);
            let before = found.as_ref().map_or(0, |it| it.revision);
            prop_assert_eq!(patient.revision, before + 1);
            let is_moved = found.as_ref().map(Patient::status) != Some(patient.status());
            prop_assert_eq!(patient.status_at_us == at_us, is_moved);
            found = Some(patient);
        }
    }
}
