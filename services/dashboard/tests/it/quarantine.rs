//! The page lists readings of no patient, and the number of readings that the list omits. A change
//! of a sensor's wearer says which readings it does not move.

use crate::browser::{ANYWHERE, client, cookie_of, patients};
use crate::ward::Ward;
use contracts::patients::{AssignSensorRequest, EndAssignmentRequest, ListAssignmentsRequest};
use contracts::query::ListQuarantineRequest;
use store::{AuditQuery, Role, Scope};
use tonic::Code;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readings_of_no_patient_are_listed_and_the_list_counts_what_it_leaves_out() {
    let dir = tempfile::tempdir().unwrap();
    let ward = Ward::start(dir.path(), ANYWHERE, &[]).await;
    ward.account("eve", Role::Viewer).await;
    for (device, count) in [("belt", 3), ("clip", 5), ("ring", 7)] {
        ward.quarantined("default", "gw-1", device, count).await;
    }
    ward.quarantined("elsewhere", "gw-9", "theirs", 9).await;
    let mut client = client(&ward, &cookie_of(&ward, "eve").await);
    let mut list = async |limit| {
        let answer = client
            .list_quarantine(ListQuarantineRequest { limit })
            .await;
        answer.unwrap().into_inner()
    };
    let all = list(0).await;
    let mut devices: Vec<_> = all
        .cases
        .iter()
        .map(|it| (&*it.device, it.entries))
        .collect();
    devices.sort_unstable();
    assert_eq!(devices, [("belt", 3), ("clip", 5), ("ring", 7)]);
    assert_eq!(
        (all.entries, all.cases_omitted, all.entries_omitted),
        (15, 0, 0)
    );
    assert!(
        all.cases
            .iter()
            .all(|it| it.kind == "unknown-device" && it.gateway == "gw-1")
    );

    let some = list(2).await;
    let listed: u64 = some.cases.iter().map(|it| it.entries).sum();
    assert_eq!(
        (some.cases.len(), some.cases_omitted, some.entries),
        (2, 1, 15)
    );
    assert_eq!(some.entries_omitted, 15 - listed);
    let query = AuditQuery {
        patient: None,
        from_us: 0,
        to_us: i64::MAX,
        limit: 0,
    };
    let audit = ward.store.audit(&Scope::tenant("default"), &query).await;
    let audit = audit.unwrap();
    let reads = audit.iter().filter(|it| it.action == "read quarantine");
    assert_eq!(reads.count(), 2, "each answer is in the log");
    ward.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sensor_is_handed_over_after_a_look_at_what_changes() {
    let dir = tempfile::tempdir().unwrap();
    let ward = Ward::start(dir.path(), ANYWHERE, &[]).await;
    ward.account("eve", Role::Clinician).await;
    ward.account("vera", Role::Viewer).await;
    ward.patient("ann", "Ann", "default", "gw-1").await;
    ward.patient("ben", "Ben", "default", "gw-1").await;
    ward.quarantined("default", "gw-1", "ann-device", 3).await;
    let mut eve = patients(&ward, &cookie_of(&ward, "eve").await);
    let asked = |patient: &str, dry_run| AssignSensorRequest {
        sensor: "ann-device".to_owned(),
        gateway: "gw-1".to_owned(),
        patient: patient.to_owned(),
        reason: "swapped".to_owned(),
        dry_run,
    };
    let mut vera = patients(&ward, &cookie_of(&ward, "vera").await);
    let refused = vera.assign_sensor(asked("ben", true)).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    let refused = eve.assign_sensor(asked("zoe", false)).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    let same = eve.assign_sensor(asked("ann", true)).await.unwrap();
    assert!(same.into_inner().unchanged);

    for dry_run in [true, false] {
        let answer = eve.assign_sensor(asked("ben", dry_run)).await.unwrap();
        let answer = answer.into_inner();
        assert!(!answer.unchanged);
        assert_eq!(answer.ended.unwrap().patient, "ann", "dry run: {dry_run}");
        let all = answer.remarks.join("\n");
        assert!(all.contains("may hold some"), "{all}");
        assert!(all.contains("3 entries of ann-device"), "{all}");
    }
    let of = |sensor: &str| ListAssignmentsRequest {
        sensor: sensor.to_owned(),
        ..ListAssignmentsRequest::default()
    };
    let worn = vera.list_assignments(of("ann-device")).await.unwrap();
    let worn = worn.into_inner().assignments;
    let wearers: Vec<_> = worn.iter().map(|it| (&*it.patient, &*it.by)).collect();
    assert_eq!(wearers.len(), 2, "{worn:?}");
    assert_eq!(wearers[0], ("ben", "eve"), "the newest comes first");

    let end = |sensor: &str| EndAssignmentRequest {
        sensor: sensor.to_owned(),
        reason: "broken".to_owned(),
    };
    eve.end_assignment(end("ben-device")).await.unwrap();
    let again = eve.end_assignment(end("ben-device")).await.unwrap_err();
    assert_eq!(again.code(), Code::FailedPrecondition, "{again}");
    let present = vera.list_assignments(of("")).await.unwrap().into_inner();
    assert!(
        present
            .assignments
            .iter()
            .all(|it| it.sensor != "ben-device")
    );
    ward.end().await;
}
